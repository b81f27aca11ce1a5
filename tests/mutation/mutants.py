"""Small mistakes that a programmer might make, one at a time.

A mutant is a module in which one expression, or one statement, is something else. Docstrings,
annotations, log messages, the texts of errors and the constants of a module are left alone: nothing
depends on them that a test should hold on to. Neither is there anything for `assert`, which states
what is true anyway.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

__all__ = ["Mutant", "Place", "mutant", "places"]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_UNTOUCHED = ("annotation", "returns", "decorator_list", "type_params", "bases")
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign)
_TOLD = ("debug", "info", "warning", "error", "exception")


class Place(NamedTuple):
    """Which of the nodes, and which of its mistakes."""

    number: int
    variant: int


class Mutant(NamedTuple):
    """A module with a mistake in it."""

    line: int
    what: str
    source: str


def places(source: str, lines: Collection[int] | None = None) -> list[Place]:
    """Where a mistake can be made in a module, or on some of its lines."""
    return [
        Place(number, variant)
        for number, node in enumerate(_worth(ast.parse(source)))
        if lines is None or getattr(node, "lineno", 0) in lines
        for variant in range(_count(node))
    ]


def mutant(source: str, place: Place) -> Mutant:
    """The module with the mistake in it."""
    tree = ast.parse(source)
    node = list(_worth(tree))[place.number]
    line, before = getattr(node, "lineno", 0), _short(ast.unparse(node))
    what = _change(tree, node, place.variant)
    return Mutant(line, f"{before}: {what}", ast.unparse(ast.fix_missing_locations(tree)))


def _short(text: str) -> str:
    first = text.splitlines()[0]
    return first if len(first) <= 60 else f"{first[:57]}…"


def _worth(node: ast.AST) -> Iterator[ast.AST]:
    """What can be changed, without what is not worth it."""
    if isinstance(node, ast.Assert | ast.Raise | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "logger" and node.func.attr in _TOLD:
            return
    if _count(node):
        yield node
    for name, value in ast.iter_fields(node):
        if name in _UNTOUCHED:
            continue
        for child in value if isinstance(value, list) else [value]:
            is_constant = isinstance(node, ast.Module) and isinstance(child, _ASSIGNMENTS)
            if isinstance(child, ast.AST) and not is_constant:
                yield from _worth(child)


def _count(node: ast.AST) -> int:
    """How many mistakes can be made with it."""
    match node:
        case ast.Compare(ops=ops):
            return len(ops)
        case ast.BinOp(op=op):
            return int(type(op) in _ARITHMETIC)
        case ast.BoolOp(values=values):
            return len(values)
        case ast.UnaryOp(op=ast.Not()):
            return 1
        case ast.Constant(value=bool() | int()):
            return 1
        case ast.If() | ast.While() | ast.IfExp():
            return 1
        case ast.AugAssign(op=op):
            return int(type(op) in _ARITHMETIC)
        case ast.Expr(value=ast.Call()) | ast.Delete() | ast.Break() | ast.Continue():
            return 1
        case ast.Return(value=value):
            return int(value is not None and not isinstance(value, ast.Constant))
    return 0


def _change(tree: ast.AST, node: ast.AST, variant: int) -> str:
    """Make the mistake; what it is."""
    match node:
        case ast.Compare(ops=ops):
            ops[variant] = _COMPARISONS[type(ops[variant])]()
            return type(ops[variant]).__name__
        case ast.BinOp(op=op) | ast.AugAssign(op=op):
            node.op = _ARITHMETIC[type(op)]()
            return type(node.op).__name__
        case ast.BoolOp(values=values):
            del values[variant]
            if len(values) == 1:
                _replace(tree, node, values[0])
            return f"without part {variant + 1}"
        case ast.UnaryOp(operand=operand):
            _replace(tree, node, operand)
            return "without not"
        case ast.Constant(value=bool() as value):
            node.value = not value
            return str(node.value)
        case ast.Constant(value=int() as value):
            node.value = value + 1
            return str(node.value)
        case ast.If() | ast.While() | ast.IfExp():
            node.test = ast.Constant(value=False)
            return "never"
        case ast.Return():
            node.value = ast.Constant(value=None)
            return "return None"
        case ast.Expr() | ast.Delete() | ast.Break() | ast.Continue():
            _replace(tree, node, ast.Pass())
            return "left out"
    return ""


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(each is old for each in value):
                setattr(parent, name, [new if each is old else each for each in value])
