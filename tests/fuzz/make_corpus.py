"""Writes the fuzzer's seeds: small batches that between them reach every branch of the readers.

    python -m tests.fuzz.make_corpus

The files are text (hex), so that a change of the format shows in a diff.
"""

from __future__ import annotations

from typing import Any

from tailrace.kernel.layout import S2, ZSTD
from tests.fuzz.decoder import CORPUS
from tests.kernel.twins import GOLDEN, NOW, batch, load


def seeds() -> dict[str, bytes]:
    kernel: Any = load("pure")

    def encoded(records: list[Any], codec: int = 0, base: int = 0, now: int = NOW) -> bytes:
        return bytes(kernel.encode(records, now, codec).place(base))

    record = kernel.Record
    words = b"the quick brown fox jumps over the lazy dog. " * 9
    # A record as a literal, and behind it copies: plain, repeated offsets of three lengths, wide.
    repeats = bytes.fromhex("b502 18 00000102760078 0103 0d00 150005 19001000 020300 0303000000")
    return {
        "golden": GOLDEN,
        "one-value": encoded([b"value"]),
        "nulls-and-empties": encoded([None, b"", (b"", None), (None, b""), (b"", b"")]),
        "keys-and-headers": encoded([(b"k", b"v", {"a": b"1", "b": b""}), (b"kk", b"vv", {})]),
        "odd-names": encoded([(None, b"", [("\udcff\udc80", b"x"), ("é", b"y"), ("", b"")])]),
        "timestamps": encoded(
            [record(timestamp=t) for t in (0, -1, NOW + 64, (1 << 63) - 1, -(1 << 63))]
        ),
        "many": encoded([None] * 200),
        "long-value": encoded([bytes(9000)]),
        "s2": encoded([words, words], S2),
        "s2-repeats": batch(repeats, flags=0x0F, codec=S2),
        "zstd": encoded([words, words], ZSTD),
        "three-batches": encoded([b"a"]) + encoded([b"b", b"c"], 0, 1) + encoded([words], S2, 9),
        "far-offset": encoded([b"x"], 0, (1 << 63) - 2),
    }


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for name, data in seeds().items():
        lines = [data[start : start + 48].hex() for start in range(0, len(data), 48)]
        (CORPUS / f"{name}.hex").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
