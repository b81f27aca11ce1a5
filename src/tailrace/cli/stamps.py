"""Records that carry the time of their append, and those who follow them in another process.

The clock is one for all processes of a machine, so what a follower reads off it when it has a
record, less what is in the record, is how long it took from before the append to there. Whoever
writes puts up to three kinds of stamp into the log: some zeros first, which are not measured and
find everything as warm as the later ones, then the times, and one that ends it.

Run as `python -m tailrace.cli.stamps DIRECTORY FOLLOWERS` it is the process that follows. It says
"ready" when everybody does, and what they saw, as JSON, after it has read a line; if its input ends
without that, whoever started it is gone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from time import perf_counter_ns

from tailrace import Log, Record

__all__ = ["END", "STAMP", "FollowingThreads", "note_stamps", "write_stamps"]

STAMP = struct.Struct("<q")
END = -1
_WARM_UP = 0

_PATIENCE_S = 30.0  # for records that are all there


def write_stamps(
    put: Callable[[bytes], object],
    count: int,
    *,
    pause_s: float,
    size: int = 256,
    warm_up: int = 20,
    seconds: float = float("inf"),
) -> array[int]:
    """Put `count` times, or for so many seconds, with a pause before each; how long each put took,
    in nanoseconds. The pauses differ, or one who looks every so often might keep step with them."""
    took = array("q")
    note, clock = took.append, perf_counter_ns
    filling = bytes(size - STAMP.size)
    pack = STAMP.pack

    def pause() -> None:
        time.sleep(pause_s * (0.5 + random.random()))

    for _ in range(warm_up):
        pause()
        put(pack(_WARM_UP) + filling)
    until = clock() + seconds * 1e9
    for _ in range(count):
        pause()
        began = clock()
        put(pack(began) + filling)
        now = clock()
        note(now - began)
        if now > until:
            break
    pause()
    put(pack(END) + filling)
    return took


def note_stamps(records: Iterable[Record], seen: array[int]) -> bool:
    """Follow to the end; put into `seen` how old each record was, in nanoseconds. False if there
    was no end."""
    note, clock, unpack = seen.append, perf_counter_ns, STAMP.unpack_from
    for record in records:
        now = clock()
        (stamp,) = unpack(record.value or b"")
        if stamp > 0:
            note(now - stamp)
        elif stamp == END:
            return True
    return False


class FollowingThreads:
    """Threads that each follow a log from its end on. All of them do when the constructor has
    returned."""

    def __init__(self, log: Log, followers: int) -> None:
        self.seen = [array("q") for _ in range(followers)]
        self._followers = [log.read("next", follow=True) for _ in range(followers)]
        self._failures: list[BaseException] = []
        pairs = zip(self._followers, self.seen, strict=True)
        self._threads = [
            threading.Thread(target=self._follow, args=pair, daemon=True) for pair in pairs
        ]
        for thread in self._threads:
            thread.start()

    def _follow(self, follower: Iterable[Record], seen: array[int]) -> None:
        try:
            note_stamps(follower, seen)
        except Exception as error:  # noqa: BLE001  told to whoever joins
            self._failures.append(error)

    def join(self, seconds: float = _PATIENCE_S) -> None:
        """Wait until everybody has seen the end."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        late = sum(thread.is_alive() for thread in self._threads)
        self.close()
        if self._failures:
            raise self._failures[0]
        if late:
            raise TimeoutError(f"{late} followers have not seen everything in {seconds:.0f} s")

    def close(self) -> None:
        for follower in self._followers:
            follower.close()
        for thread in self._threads:
            thread.join()


def main(path: str, followers: int) -> None:
    # Ctrl-C goes to every process of a terminal. The one that started us ends our input then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Log(path, read_only=True) as log:
        following = FollowingThreads(log, followers)
        try:
            print("ready", flush=True)
            if sys.stdin.readline():
                following.join()
                print(json.dumps([list(seen) for seen in following.seen]))
        finally:
            following.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
        sys.stdout.flush()
    except BrokenPipeError:  # nobody wants to know any more
        os._exit(1)
