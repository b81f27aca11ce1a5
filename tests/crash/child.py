"""A process that appends until it is killed, and says what was acknowledged.

    python child.py FOLDER FLUSH LIFE [COUNT]

A line per answer, written at once, so that what the parent has read was true when it was killed:

    open START END      the log is open
    ack OFFSET COUNT    these records are acknowledged
    start OFFSET        the log starts there now
    not-written, unknown, error NAME    an append failed

Each value names the life and the offset that its record was meant for.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from tailrace import Log, NotWritten, OutcomeUnknown


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(folder: str, flush: str, life: str, count: str = "1000000") -> None:
    rng = random.Random(f"{flush} {life}")
    log = Log(folder, flush=flush, segment_bytes="8KiB", flush_interval="20ms")
    say("open", log.start_offset, log.end_offset)
    for n in range(int(count)):
        end = log.end_offset
        batch = [value(life, end + k, rng) for k in range(rng.choice((1, 1, 3, 20)))]
        once: dict[str, Any] = {"producer": f"life {life}", "sequence": n} if n % 5 == 0 else {}
        try:
            receipt = log.append(batch, **once).wait()
        except NotWritten:
            say("not-written")
        except OutcomeUnknown:
            say("unknown")
            break
        else:
            say("ack", receipt.offset, receipt.count)
        if n % 40 == 39:
            keep = max(log.start_offset, log.end_offset - 400)
            log.truncate_before(keep)
            say("start", keep)
            log.vacuum()
    log.close()
    say("closed")


def value(life: str, offset: int, rng: random.Random) -> bytes:
    return f"{life} {offset} ".encode().ljust(rng.choice((20, 100, 900)), b".")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        say("error", type(error).__name__, error)
        raise SystemExit(3) from error
