"""When publishing one by one tries to compress, which takes as long as appending does."""

from __future__ import annotations

import random
from pathlib import Path

from tailrace import Queue, Store

PLAIN = b"the same again and again, " * 80
NOISE = random.Random(5).randbytes(2000)


def sizes(queue: Queue) -> list[int]:
    return [len(batch.data) for batch in queue.log.read_batches(0)]


def test_small_messages_do_not_keep_large_ones_from_being_compressed(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q")
        for _ in range(5):
            queue.publish(b"x")
            queue.publish(PLAIN)
        assert all(size < len(PLAIN) / 2 for size in sizes(queue))


def test_of_messages_that_do_not_shrink_few_are_tried(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q")
        queue.publish(NOISE)
        for _ in range(40):
            queue.publish(PLAIN)
        is_compressed = [size < len(PLAIN) / 2 for size in sizes(queue)[1:]]
        assert is_compressed == [False] * 31 + [True] * 9


def test_a_few_bytes_more_than_is_ever_compressed(tmp_path: Path) -> None:
    with Store(tmp_path, flush="none") as store:
        queue = store.queue("q")
        queue.publish(NOISE[:256])  # tried, because of the headers
        queue.publish(PLAIN)
        assert sizes(queue)[1] > len(PLAIN)
