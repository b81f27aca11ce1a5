"""The hot loops: batches to bytes and back. No policy, and no I/O but for the lock that each append
takes and gives back.

There are two implementations of the same functions: `compiled` (Cython) and `pure` (plain Python).
This module is the one place that chooses. `TAILRACE_KERNEL=pure` forces the plain one,
`TAILRACE_KERNEL=compiled` makes a missing build an error instead of a silent slow path.

Thread-safety: every function may be called from any thread, and large inputs release the GIL. A
buffer that is passed in must not be changed until the call returns; if it is, the result is
undefined, but memory is never read or written out of bounds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace.kernel.compiled import is_built
from tailrace.kernel.headers import Headers
from tailrace.kernel.layout import (
    BAD,
    CODEC_NAMES,
    COMPLETE,
    COMPRESSED,
    HAS_HEADERS,
    HAS_KEYS,
    HAS_TIMESTAMP,
    HEADER_SIZE,
    MAX_COUNT,
    MAX_OFFSET,
    MAX_SECTION,
    NONE,
    PARTIAL,
    S2,
    TRANSACTIONAL,
    ZSTD,
    BatchInfo,
    Malformed,
    Status,
    Tally,
    TooLarge,
)

__all__ = [
    "BAD",
    "CODEC_NAMES",
    "COMPLETE",
    "COMPRESSED",
    "CRC_BACKEND",
    "HAS_HEADERS",
    "HAS_KEYS",
    "HAS_TIMESTAMP",
    "HEADER_SIZE",
    "IMPLEMENTATION",
    "MAX_COUNT",
    "MAX_OFFSET",
    "MAX_SECTION",
    "NONE",
    "PARTIAL",
    "S2",
    "TRANSACTIONAL",
    "ZSTD",
    "BatchInfo",
    "Draft",
    "Headers",
    "Malformed",
    "Notes",
    "Record",
    "Status",
    "Tally",
    "TooLarge",
    "batches",
    "check",
    "columns",
    "count_right",
    "crc32c",
    "crc32c_combine",
    "decode",
    "encode",
    "encode_headers",
    "encode_one",
    "encode_placed",
    "find_header",
    "find_record_at_time",
    "first_headers",
    "inflate",
    "is_plain",
    "lock_now",
    "numbered",
    "read_header",
    "read_line",
    "s2_decompress",
    "stamped",
    "tally",
    "unlock",
    "write_line",
]


def _choose(wanted: str, built: bool) -> str:
    if wanted not in ("", "pure", "compiled"):
        raise ImportError(f"TAILRACE_KERNEL is {wanted!r}; it may be 'pure', 'compiled' or unset")
    if wanted == "compiled" and not built:
        raise ImportError(
            "TAILRACE_KERNEL=compiled, but the extension modules are not built for this Python; "
            "install a wheel, build them (pip install -e .), or unset the variable"
        )
    return "compiled" if built and wanted != "pure" else "pure"


IMPLEMENTATION = _choose(os.environ.get("TAILRACE_KERNEL", ""), is_built())

if TYPE_CHECKING or IMPLEMENTATION == "pure":
    from tailrace.kernel.pure import columns
    from tailrace.kernel.pure.codec import (
        Draft,
        batches,
        check,
        decode,
        encode,
        encode_one,
        encode_placed,
        find_record_at_time,
        first_headers,
        inflate,
        read_header,
    )
    from tailrace.kernel.pure.crc import CRC_BACKEND, crc32c, crc32c_combine
    from tailrace.kernel.pure.flock import lock_now, unlock
    from tailrace.kernel.pure.lines import read_line, write_line
    from tailrace.kernel.pure.notes import Notes
    from tailrace.kernel.pure.outline import count_right, is_plain
    from tailrace.kernel.pure.records import Record, encode_headers, find_header, numbered, stamped
    from tailrace.kernel.pure.s2 import s2_decompress
    from tailrace.kernel.pure.tally import tally
else:
    from tailrace.kernel.compiled import columns
    from tailrace.kernel.compiled.codec import (
        Draft,
        batches,
        check,
        decode,
        encode,
        encode_one,
        encode_placed,
        find_record_at_time,
        first_headers,
        inflate,
        read_header,
    )
    from tailrace.kernel.compiled.crc import CRC_BACKEND, crc32c, crc32c_combine
    from tailrace.kernel.compiled.flock import lock_now, unlock
    from tailrace.kernel.compiled.lines import read_line, write_line
    from tailrace.kernel.compiled.notes import Notes
    from tailrace.kernel.compiled.outline import count_right, is_plain
    from tailrace.kernel.compiled.records import (
        Record,
        encode_headers,
        find_header,
        numbered,
        stamped,
    )
    from tailrace.kernel.compiled.s2 import s2_decompress
    from tailrace.kernel.compiled.tally import tally
