"""The codecs: round trips, limits, and frames that are not what we write."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel import compression
from tailrace.kernel.compression import compress, decompress
from tailrace.kernel.layout import NONE, S2, ZSTD, Malformed

zstd: Any = vars(compression)["zstd"]  # the standard library's, or its backport


@given(data=st.binary(max_size=3000), codec=st.sampled_from([S2, ZSTD]))
def test_round_trip(data: bytes, codec: int) -> None:
    for given_data in (data, bytearray(data), memoryview(data)):
        packed = compress(codec, given_data)
        assert type(packed) is bytes
        assert decompress(codec, packed, len(data)) == data
        assert decompress(codec, memoryview(packed), len(data)) == data


@pytest.mark.parametrize("codec", [S2, ZSTD])
def test_more_than_the_limit_is_refused(codec: int) -> None:
    packed = compress(codec, bytes(1000))
    with pytest.raises(Malformed, match="declares 1000 bytes and the limit is 999"):
        decompress(codec, packed, 999)


def test_zstd_frames_are_self_describing() -> None:
    packed = compress(ZSTD, bytes(1000))
    assert packed.startswith(bytes.fromhex("28b52ffd"))
    assert zstd.get_frame_info(packed).decompressed_size == 1000
    assert packed[4] & 0x04, "the checksum flag"


def test_zstd_without_a_content_size_is_refused() -> None:
    compressor = zstd.ZstdCompressor()
    packed = compressor.compress(bytes(100)) + compressor.flush()
    assert zstd.get_frame_info(packed).decompressed_size is None
    with pytest.raises(Malformed, match="content size"):
        decompress(ZSTD, packed, 1 << 20)


def test_zstd_with_a_wrong_content_size() -> None:
    packed = bytearray(compress(ZSTD, bytes(100)))
    assert packed[5] == 100, "the content size, one byte"
    for size in (99, 101):
        packed[5] = size
        with pytest.raises(Malformed, match="zstd frame"):
            decompress(ZSTD, packed, 1 << 20)


def test_zstd_is_exactly_one_frame() -> None:
    packed = compress(ZSTD, bytes(100))
    for data in (packed + packed, packed + b"x", packed[:-1], packed[:7]):
        with pytest.raises(Malformed, match="zstd frame"):
            decompress(ZSTD, data, 1 << 20)


def test_zstd_checksum_is_verified() -> None:
    packed = bytearray(compress(ZSTD, b"some content that is not compressible: 0123456789"))
    packed[-1] ^= 1
    with pytest.raises(Malformed, match="zstd frame"):
        decompress(ZSTD, packed, 1 << 20)


@pytest.mark.parametrize("data", [b"", b"\x28", b"\x28\xb5\x2f\xfd", b"not a frame at all"])
def test_no_zstd(data: bytes) -> None:
    with pytest.raises(Malformed, match="zstd frame"):
        decompress(ZSTD, data, 1 << 20)


def test_codecs_that_do_not_compress() -> None:
    with pytest.raises(ValueError, match="cannot compress"):
        compress(NONE, b"")
    with pytest.raises(Malformed, match=r"0 \(none\)"):
        decompress(NONE, b"", 10)
    with pytest.raises(Malformed, match=r"77 \(unknown\)"):
        decompress(77, b"", 10)


def test_each_thread_has_its_compressor() -> None:
    seen = [compression._local.zstd]
    thread = threading.Thread(target=lambda: seen.append(compression._local.zstd))
    thread.start()
    thread.join()
    assert seen[0] is compression._local.zstd
    assert seen[0] is not seen[1]
