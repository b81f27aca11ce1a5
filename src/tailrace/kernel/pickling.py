"""How records are pickled: by the kernel's name, so that either twin can load them."""

from __future__ import annotations

from typing import Any


def record(*fields: Any) -> Any:
    """The chosen twin's Record of (offset, timestamp, key, value, headers)."""
    from tailrace.kernel import Record  # noqa: PLC0415 (the kernel imports this module)

    return Record(*fields)
