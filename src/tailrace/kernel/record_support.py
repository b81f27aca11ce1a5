"""What both twins' Record has in common: how it is shown and how it is pickled."""

from __future__ import annotations

from typing import Any, Final

FIELDS: Final = ("offset", "timestamp", "key", "value", "headers")
_SHOWN: Final = 32  # bytes of a long key or value


def describe(record: Any) -> str:
    """A short repr: fields that are not set are left out, long ones are cut."""
    shown = []
    for name in FIELDS:
        field = getattr(record, name)
        if isinstance(field, bytes) and len(field) > _SHOWN:
            shown.append(f"{name}={field[:_SHOWN]!r}... ({len(field)} bytes)")
        elif field is not None and (name != "headers" or field):
            shown.append(f"{name}={field!r}")
    return f"{type(record).__name__}({', '.join(shown)})"


def restore(*fields: Any) -> Any:
    """The chosen twin's Record: pickles name this function, so that either twin can load them."""
    from tailrace.kernel import Record  # the kernel imports this module

    return Record(*fields)
