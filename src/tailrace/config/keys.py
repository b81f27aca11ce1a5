"""The schema as a tree of keys, for those who go through it; and as a table and a JSON schema."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from tailrace.config.schema import File

__all__ = ["EXPECTED", "Key", "json_schema", "keys_of", "table"]

# What a value of each kind is, for who has written another.
EXPECTED: Final = {
    "text": "text",
    "texts": "a list such as ['$queue/orders/#']",
    "flag": "true or false",
    "count": "a whole number",
    "number": "a number",
    "ratio": "a number above 0 and up to 1",
    "duration": "a duration such as '30s', or seconds",
    "size": "a size such as '64MiB', or bytes",
    "retries": "a whole number, or 'unlimited'",
    "address": "an address such as '127.0.0.1:1883', with a port up to 65535",
    "hours": "always, disk_full, or hours such as '04;16'",
    "choice": "text",
    "names": "a list of names",
    "confs": "a list such as ['spark.sql.shuffle.partitions=4']",
    "above0": "a whole number above 0",
    "start": "first, next, an offset, or a time",
    "trigger": "a duration such as '10s', or once",
    "delimiter": "a character",
}
_SHORT: Final = {
    "texts": "list of texts",
    "count": "whole number",
    "number": "number",
    "ratio": "above 0, up to 1",
    "duration": "duration",
    "size": "size",
    "retries": "whole number or `unlimited`",
    "address": "address for each name",
    "hours": "text; hours such as `04;16`",
    "confs": "list of texts",
    "trigger": "duration or `once`",
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a mapping. `section` is the class of the mapping that is its value; with `is_list`
    its value is a list of them; with `is_map` it is values of its kind by free names. With
    `is_short` a value of its kind may stand for the mapping."""

    name: str
    kind: str
    type: Any
    section: Any = None
    is_list: bool = False
    is_map: bool = False
    is_short: bool = False
    default: Any = None
    is_required: bool = False
    meaning: str = ""
    default_words: str | None = None
    inherits: str | None = None
    choices: tuple[str, ...] = ()


@cache
def keys_of(section: Any) -> dict[str, Key]:
    return {field.encode_name: _key(field) for field in msgspec.structs.fields(section)}


def _key(field: msgspec.structs.FieldInfo) -> Key:
    base, metas = _unwrap(field.type)
    arguments = get_args(base)
    name, default = field.encode_name, field.default
    is_required = default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    if get_origin(base) is list and _is_section(arguments[0]):
        return Key(name, "section", field.type, arguments[0], is_list=True)
    if _is_section(base):
        return Key(name, "section", field.type, base)
    is_map = get_origin(base) is dict
    kind, section = field.type, None
    if is_map:
        kind = arguments[1]
        base, inner = _unwrap(kind)
        metas = inner + metas
    others = get_args(base)
    if any(map(_is_section, others)):
        section = next(filter(_is_section, others))
        kind = next(each for each in others if each is not section)
        metas = _unwrap(kind)[1] + metas
    extra: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for meta in metas:
        extra |= meta.extra or {}
        shown |= meta.extra_json_schema or {}
    return Key(
        name,
        extra["kind"],
        kind,
        section,
        is_map=is_map,
        is_short=section is not None,
        default=None if default is msgspec.NODEFAULT else default,
        is_required=is_required,
        meaning=next(meta.description for meta in metas if meta.description),
        default_words=extra["default"],
        inherits=extra["inherits"],
        choices=tuple(shown.get("enum", ())),
    )


def _unwrap(annotation: Any) -> tuple[Any, list[msgspec.Meta]]:
    """A type without what is annotated, and without `None`."""
    metas: list[msgspec.Meta] = []
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metas = [*more, *metas]
        elif get_origin(annotation) in (Union, types.UnionType):
            others = [each for each in get_args(annotation) if each is not type(None)]
            if len(others) > 1:
                return annotation, metas
            annotation = others[0]
        else:
            return annotation, metas


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


# --- for people -----------------------------------------------------------------------------


def table() -> Iterator[tuple[str, str, str, str]]:
    """Each key: its path, what its value is, its default, what it means."""
    yield from _rows(File, "")


def _rows(section: Any, above: str) -> Iterator[tuple[str, str, str, str]]:
    for key in keys_of(section).values():
        path = f"{above}{key.name}"
        if key.section is not None and not key.is_short:
            yield from _rows(key.section, f"{path}[]." if key.is_list else f"{path}.")
            continue
        if key.inherits:
            default = f"`{key.inherits}`"
        elif key.default_words is not None:
            default = key.default_words
        else:
            default = f"`{json.dumps(key.default)}`"
        yield path, _type_of(key), default, key.meaning
        if key.is_short:
            yield from _rows(key.section, f"{path}.<name>." if key.is_map else f"{path}.")


def _type_of(key: Key) -> str:
    if key.choices:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    said = _SHORT.get(key.kind, EXPECTED[key.kind])
    if key.is_short:
        said += ", or a mapping"
    return f"{said}, for each name" if key.is_map and key.is_short else said


# --- for editors ----------------------------------------------------------------------------


def json_schema() -> dict[str, Any]:
    """The JSON schema of a file. It takes whatever is good, and refuses what can be told without
    knowing what one key says of another."""
    schema = msgspec.json.schema(File)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "tailrace"
    schema["$defs"]["File"]["patternProperties"] = {"^x-": {}}
    schema["$defs"]["Cluster"]["required"] = ["enabled"]
    schema["$defs"]["Pipeline"]["anyOf"] = [{"required": ["sql"]}, {"required": ["sql_file"]}]
    return schema
