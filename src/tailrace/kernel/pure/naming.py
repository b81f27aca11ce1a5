"""Names that end in a number, as a column: such as the message ids of a queue's offsets."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from tailrace.kernel.shapes import LONGEST_NUMBER, buffers_too_small

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["write_names"]

_MOST = (1 << 31) - 1  # bytes that 32-bit offsets can address


def write_names(prefix: bytes, numbers: Buffer, offsets: Buffer, data: Buffer) -> int:
    """Writes the prefix and the number for each of the int64 `numbers`; how many bytes of `data` it
    took."""
    given = memoryview(numbers).cast("B")
    ends, out = memoryview(offsets).cast("B"), memoryview(data).cast("B")
    rows = len(given) // 8
    room = rows * (len(prefix) + LONGEST_NUMBER)
    if len(ends) < 4 * (rows + 1) or len(out) < room or room > _MOST:
        raise buffers_too_small()
    names = [b"%b%d" % (prefix, number) for number in given[: 8 * rows].cast("q")]
    stops = ends[: 4 * (rows + 1)].cast("i")
    for index, stop in enumerate(accumulate(map(len, names), initial=0)):
        stops[index] = stop
    used = stops[rows]
    out[:used] = b"".join(names)
    return used
