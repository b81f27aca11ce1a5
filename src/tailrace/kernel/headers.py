"""Headers: the ordered multi-mapping of str to bytes that a record carries.

Plain Python, shared by both twins. Names on disk are bytes; those that are not UTF-8 are decoded
with `surrogateescape`, so that every name can be written back as it was.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Final

from tailrace.kernel.coerce import CONTENTS, as_bytes

if TYPE_CHECKING:
    from typing import TypeAlias

    HeaderValue: TypeAlias = bytes | bytearray | memoryview | str
    HeadersLike: TypeAlias = (
        "Headers | Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]] | None"
    )

Pairs = tuple[tuple[str, bytes], ...]


class Headers(Mapping[str, bytes]):
    """An immutable sequence of (name, value) pairs that reads like a mapping.

    A name may occur more than once: `headers[name]` is its first value, `getall(name)` are all of
    them, and `len()`, iteration and `items()` count every pair, in order. Two `Headers` are equal
    if their pairs are, in the same order; a dict is equal if it has the same pairs in any order.
    """

    __slots__ = ("_pairs",)
    _pairs: Pairs

    def __init__(self, headers: HeadersLike = None) -> None:
        self._pairs = as_pairs(headers)

    @classmethod
    def of(cls, headers: HeadersLike) -> Headers:
        """`headers` as Headers, without a copy where possible."""
        if headers is None:
            return EMPTY
        return headers if type(headers) is Headers else cls(headers)

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> Headers:
        """Headers of pairs that are known to be str and bytes."""
        self = cls.__new__(cls)
        self._pairs = pairs
        return self

    @property
    def pairs(self) -> Pairs:
        """Every (name, value), in order."""
        return self._pairs

    def getall(self, name: str) -> list[bytes]:
        """Every value of `name`, in order; empty if there is none."""
        return [value for known, value in self._pairs if known == name]

    def __getitem__(self, name: str) -> bytes:
        for known, value in self._pairs:
            if known == name:
                return value
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(known == name for known, _ in self._pairs)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def items(self) -> ItemsView[str, bytes]:
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        return _Values(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self._pairs == other._pairs
        if isinstance(other, Mapping):
            return len(other) == len(self._pairs) and dict(self._pairs) == dict(other)
        if isinstance(other, (list, tuple)):
            return self._pairs == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        return f"Headers({list(self._pairs)!r})"

    def __reduce__(self) -> tuple[type[Headers], tuple[Pairs]]:
        return type(self), (self._pairs,)


class _Items(ItemsView[str, bytes]):
    """All pairs: the inherited view would look up each name, and so repeat the first value."""

    __slots__ = ()
    _mapping: Headers

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter(self._mapping.pairs)

    def __contains__(self, item: object) -> bool:
        return item in self._mapping.pairs


class _Values(ValuesView[bytes]):
    """All values, for the same reason."""

    __slots__ = ()
    _mapping: Headers

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.pairs)

    def __contains__(self, value: object) -> bool:
        return any(known == value for _, known in self._mapping.pairs)


def as_pairs(headers: HeadersLike) -> Pairs:
    """The pairs of a mapping or of an iterable of pairs; text values become UTF-8."""
    if headers is None:
        return ()
    if isinstance(headers, Headers):
        return headers.pairs
    items: object = headers
    if isinstance(headers, Mapping):
        items = headers.items()
    if isinstance(items, CONTENTS) or not isinstance(items, Iterable):
        raise TypeError(
            f"headers must be a mapping or (name, value) pairs, not {type(headers).__name__}"
        )
    return tuple(_as_pair(item) for item in items)


def encode_name(name: str) -> bytes:
    """A header's name as it is on disk."""
    return name.encode("utf-8", "surrogateescape")


def decode_name(name: bytes) -> str:
    """A header's name as callers see it."""
    return name.decode("utf-8", "surrogateescape")


def _as_pair(item: object) -> tuple[str, bytes]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"a header must be a (name, value) pair, not {item!r:.60}")
    name, value = item
    if not isinstance(name, str):
        raise TypeError(f"a header's name must be a str, not {type(name).__name__}")
    encode_name(name)  # fails here, where the caller can see it, and not when it is written
    return str(name), as_bytes(value, f"the value of header {name!r}")


EMPTY: Final = Headers()
