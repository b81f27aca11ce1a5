"""A configuration as YAML, which says the same when it is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tailrace.config.model import Value

__all__ = ["to_yaml"]

_COLUMN: Final = 48  # where origins stand
_PART: Final = re.compile(r"[^.\[\]]+|\[\d+\]")
_PLAIN: Final = re.compile(r"[A-Za-z][\w./-]*|\d+(ms|[smhdw]|[KMGT]iB)", re.ASCII)
_NOT_PLAIN: Final = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


def to_yaml(values: Iterable[Value], *, origins: bool = False) -> Iterator[str]:
    """One line for each value, and one for each mapping or list that holds some."""
    before: list[str] = []
    for value in values:
        *above, name = _PART.findall(value.key)
        same = 0
        while same < min(len(above), len(before)) and above[same] == before[same]:
            same += 1
        dash = None
        for depth in range(same, len(above)):
            if above[depth].startswith("["):
                dash = depth
            else:
                yield f"{'  ' * depth}{above[depth]}:"
        line = f"{'  ' * len(above)}{name}: {_scalar(value.value)}"
        if dash is not None:
            line = f"{'  ' * dash}- {line[2 * dash + 2 :]}"
        yield f"{line:<{_COLUMN}}  # {value.origin}" if origins else line
        before = above


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN:
        return value
    return json.dumps(value, ensure_ascii=False)  # JSON is YAML
