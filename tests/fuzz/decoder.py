"""Fuzzes everything that reads batches: no input may crash it, and the twins must agree.

    scripts/fuzz --seconds 60            with a seed that is printed
    scripts/fuzz --seed 7 --seconds 60   the same cases again
    scripts/fuzz --seed 7 --case 1234    only that one

A case is a seed file of the corpus (or several), mutated, most of the time with the CRC made right
again: a fuzzer that never passes the checksum never meets the parser. Case n of a seed depends on
nothing else, so that a failure is replayed by its two numbers. Cases run in a child process; if it
dies, its last case is known. Inputs that failed are kept in tests/fuzz/found.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.kernel import shapes
from tailrace.kernel.layout import (
    HEADER_SIZE,
    MAGIC_BYTES,
    MAX_OFFSET,
    MAX_SECTION,
)
from tailrace.kernel.pure.crc import crc32c
from tests.kernel.twins import TWINS, Twin, available, load, outcome

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
FOUND = HERE / "found"

# Sections may not inflate beyond this here: the point is to find wrong bounds, not to wait.
INFLATED = 1 << 22
NUMBERS = [0, 1, 2, 0x7E, 0x7F, 0x80, 0xFF, 0x3FFF, 0x4000, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF,
           MAX_SECTION, MAX_SECTION + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]  # fmt: skip


# Names that the corpus has, and one that it has not.
WANTED = shapes.Wanted(True, (b"_topic", b"a", b"none"), (b"_state", b"a"), True)


def corpus() -> list[bytes]:
    """The seeds, in an order that does not depend on the machine."""
    return [bytes.fromhex(path.read_text()) for path in sorted(CORPUS.glob("*.hex"))]


def twins() -> list[Twin]:
    return [load(name) for name in TWINS if available(name)]


# Making inputs


def make_case(seeds: Sequence[bytes], seed: int, case: int) -> bytes:
    """The input of a case."""
    rng = random.Random(f"{seed}:{case}")
    data = bytearray(b"".join(rng.choice(seeds) for _ in range(rng.choice([1, 1, 1, 2, 3]))))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 8])):
        mutate(rng, data)
    if rng.random() < 0.85:
        reseal(data)
    return bytes(data)


def mutate(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data) + 1)
    size = rng.choice([1, 1, 2, 4, 8, 40])
    kind = rng.randrange(8)
    if kind == 0 and data:
        data[place % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1 and data:
        data[place % len(data)] = rng.randrange(256)
    elif kind == 2:
        del data[place : place + size]
    elif kind == 3:
        data[place:place] = rng.randbytes(size)
    elif kind == 4:
        data[place:place] = data[place : place + size]
    elif kind == 5:
        data[place : place + 1] = varint(rng.choice(NUMBERS), rng.choice([0, 0, 0, 9, 10, 11]))
    elif kind == 6:
        # a field of the first header: its length, count, flags, codec or offset
        position, width = rng.choice([(8, 8), (16, 4), (20, 2), (22, 2), (24, 1), (25, 1)])
        number = rng.choice([*NUMBERS, len(data) - HEADER_SIZE, len(data)])
        data[position : position + width] = (number & (1 << 8 * width) - 1).to_bytes(
            width, "little"
        )
    else:
        del data[place:]


def varint(number: int, width: int) -> bytes:
    """A varint, of at least so many bytes."""
    groups = [number >> 7 * n & 0x7F for n in range(max(width, (number.bit_length() + 6) // 7, 1))]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def reseal(data: bytearray) -> None:
    """Make the CRC of each batch right, as far as they can be told apart."""
    position = 0
    while data[position : position + 4] == MAGIC_BYTES and position + HEADER_SIZE <= len(data):
        (length,) = struct.unpack_from("<I", data, position + 16)
        end = position + HEADER_SIZE + length
        if end > len(data):
            return
        struct.pack_into("<I", data, position + 4, crc32c(bytes(data[position + 8 : end])))
        position = end


# Trying them


def observe(twin: Twin, data: bytes) -> dict[str, Any]:
    """What every reader says about `data`; only ValueError (so Malformed) may be raised."""
    size = len(data)
    section = data[HEADER_SIZE:]

    def columns() -> Any:
        if sum(info.size for info in twin.batches(data, 0, size)) > INFLATED:
            return None
        flat = bytes(twin.inflate(data, 0, size))
        found = []
        for wanted in (shapes.EVERYTHING, WANTED):
            sizes = twin.measure_columns(flat, 0, len(flat), 1, MAX_OFFSET, wanted)
            buffers = [bytearray(length) for length in needed(sizes)]
            twin.fill_columns(flat, 0, len(flat), 1, MAX_OFFSET, outputs(buffers), wanted)
            found.append((sizes, buffers))
        return found

    end = twin.check(data, 0, size)[0]
    return {
        "check": twin.check(data, 0, size),
        "checked": outcome(lambda: records(twin, data, end)),
        "decode": outcome(lambda: records(twin, data, size)),
        "batches": outcome(lambda: twin.batches(data, 0, size)),
        "header": outcome(lambda: twin.read_header(data, 0)),
        "inflate": outcome(lambda: bytes(twin.inflate(data, 0, size))),
        "first_headers": outcome(lambda: twin.first_headers(data, 0, size)),
        "time": outcome(lambda: twin.find_record_at_time(data, 0, size, 5, 1)),
        "columns": outcome(columns),
        "s2": outcome(lambda: twin.s2_decompress(section, INFLATED)),
        "again": outcome(lambda: again(twin, data, end)),
    }


def records(twin: Twin, data: bytes, stop: int) -> list[tuple[Any, ...]]:
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers.pairs)
        for record in twin.decode(data, 0, stop)
    ]


def again(twin: Twin, data: bytes, stop: int) -> Any:
    """What was decoded can be encoded, and is the same then."""
    decoded = twin.decode(data, 0, stop)
    if not 0 < len(decoded) < 65_536:
        return None
    draft = twin.encode(decoded, 0)
    placed = bytes(draft.place(0))
    assert len(twin.decode(placed, 0, len(placed))) == len(decoded)
    assert twin.check(placed, 0, len(placed))[0] == len(placed)
    return placed


def needed(sizes: shapes.Sizes) -> list[int]:
    bitmap = sizes.rows + 7 >> 3
    offsets = 4 * (sizes.rows + 1)
    names = 4 * (sizes.headers + 1)
    lengths = [8 * sizes.rows, 8 * sizes.rows, bitmap, offsets, sizes.key_bytes, bitmap, offsets,
               sizes.value_bytes, offsets, names, sizes.name_bytes, names,
               sizes.header_bytes]  # fmt: skip
    for length in sizes.picked_bytes:
        lengths += [bitmap, offsets, length]
    return lengths


def outputs(buffers: list[bytearray]) -> shapes.Outputs:
    b = buffers
    return shapes.Outputs(
        b[0],
        b[1],
        shapes.BinaryOut(b[2], b[3], b[4]),
        shapes.BinaryOut(b[5], b[6], b[7]),
        shapes.HeadersOut(
            b[8], shapes.BinaryOut(None, b[9], b[10]), shapes.BinaryOut(None, b[11], b[12])
        ),
        tuple(shapes.BinaryOut(*b[n : n + 3]) for n in range(13, len(b), 3)),
    )


def try_input(kernels: Sequence[Twin], data: bytes) -> None:
    """Raises if a reader misbehaves, or if the twins differ."""
    seen = [observe(twin, data) for twin in kernels]
    for name, expected in seen[0].items():
        for other in seen[1:]:
            assert other[name] == expected, f"the twins differ in {name!r}"


# Running


def run(seed: int, seconds: float, progress: mmap.mmap) -> int:
    """Cases until the time is up; the number of the current one is in `progress`."""
    kernels, seeds = twins(), corpus()
    deadline = time.monotonic() + seconds
    case = 0
    while time.monotonic() < deadline:
        struct.pack_into("<Q", progress, 0, case)
        try_input(kernels, make_case(seeds, seed, case))
        case += 1
    return case


def keep(seed: int, case: int) -> Path:
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"{seed}-{case}.hex"
    path.write_text(make_case(corpus(), seed, case).hex() + "\n")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="fuzz the kernel's readers")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, help="where to start (default: a random number)")
    parser.add_argument("--case", type=int, help="only this case of the seed")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    if options.case is not None:
        data = make_case(corpus(), seed, options.case)
        print(f"seed {seed}, case {options.case}: {len(data)} bytes\n{data.hex()}")
        try_input(twins(), data)
        print("fine")
        return 0
    if options.child is not None:
        with options.child.open("r+b") as file, mmap.mmap(file.fileno(), 8) as progress:
            print(f"{run(seed, options.seconds, progress)} cases, all fine")
        return 0
    names = ", ".join(twin.name for twin in twins())
    print(f"seed {seed}, {options.seconds:g} s, kernels: {names}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        progress_file = Path(folder) / "case"
        progress_file.write_bytes(bytes(8))
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.decoder"]
        command += ["--seed", str(seed), "--seconds", str(options.seconds)]
        done = subprocess.run([*command, "--child", os.fspath(progress_file)], check=False)
        if done.returncode == 0:
            return 0
        (case,) = struct.unpack("<Q", progress_file.read_bytes())
    print(f"failed with status {done.returncode}; the input is in {keep(seed, case)}")
    print(f"again: scripts/fuzz --seed {seed} --case {case}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
