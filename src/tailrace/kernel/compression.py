"""The codecs that a section of records may be stored with.

Writing S2 means writing Snappy raw blocks, which every S2 reader accepts; reading S2 needs our own
decoder, because its repeat offsets are not Snappy. Nothing is allocated for a declared size that
exceeds the limit.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Protocol

import cramjam

from tailrace.kernel.layout import CODEC_NAMES, S2, ZSTD, Malformed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer

    class S2Decompress(Protocol):
        def __call__(self, data: Buffer, limit: int) -> bytes: ...


ZSTD_LEVEL = 3


class _Local(threading.local):
    """One compressor per thread: making one costs more than compressing a small section."""

    def __init__(self) -> None:
        self.zstd = zstd.ZstdCompressor(
            options={
                zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
                zstd.CompressionParameter.checksum_flag: 1,
            }
        )


_local = _Local()


def compress(codec: int, data: Buffer) -> bytes:
    """`data` as one block of `codec` (S2 or ZSTD)."""
    if codec == S2:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == ZSTD:
        # The whole input in one call: so the frame carries its content size.
        return _local.zstd.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    raise ValueError(f"codec {codec} cannot compress; use {S2} (s2) or {ZSTD} (zstd)")


def decompress(
    codec: int, data: Buffer, limit: int, s2_decompress: S2Decompress | None = None
) -> bytes:
    """The bytes that `compress` was given; more than `limit` of them are refused.

    `s2_decompress` lets a twin use its own decoder; the default is the chosen twin's.
    """
    if codec == S2:
        return (s2_decompress or _chosen_s2_decompress())(data, limit)
    if codec == ZSTD:
        return _zstd_decompress(data, limit)
    name = CODEC_NAMES.get(codec, "unknown")
    raise Malformed(f"it is marked as compressed, but its codec is {codec} ({name})")


def _chosen_s2_decompress() -> S2Decompress:
    from tailrace.kernel import s2_decompress  # the kernel imports this module

    return s2_decompress


def _zstd_decompress(data: Buffer, limit: int) -> bytes:
    try:
        size = zstd.get_frame_info(data).decompressed_size
    except zstd.ZstdError as error:
        raise Malformed(f"zstd frame: {error}") from None
    if size is None:
        raise Malformed("zstd frame: it does not say its content size, so it cannot be bounded")
    if size > limit:
        raise Malformed(f"zstd frame: it declares {size} bytes and the limit is {limit}")
    decompressor = zstd.ZstdDecompressor()
    try:
        # One byte more than declared: so the frame's end and its checksum are reached.
        result = decompressor.decompress(data, size + 1)
    except zstd.ZstdError as error:
        raise Malformed(f"zstd frame: {error}") from None
    if len(result) != size or not decompressor.eof or decompressor.unused_data:
        raise Malformed(f"zstd frame: it is not exactly one frame of {size} bytes")
    return result
