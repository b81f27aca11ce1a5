"""A stream is read, not emptied: groups go their own ways, go back, and replay by time.

python examples/stream_replay.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable

import tailrace


def rest(consumer: tailrace.StreamConsumer) -> list[tailrace.Message]:
    """Everything that the stream has for a consumer now."""
    messages: list[tailrace.Message] = []
    while batch := consumer.receive(100):
        messages += batch
    return messages


def shown(messages: Iterable[tailrace.Message]) -> str:
    return ", ".join((message.value or b"").decode() for message in messages)


def run(folder: str) -> None:
    with tailrace.open(folder) as store:
        prices = store.stream("prices", retention={"max_age": "7d"})

        # A group is made by its first consumer, and begins with the first message that the stream
        # has; "next" is for those who want to hear only of what comes from now on.
        alarms = prices.consumer(group="alarms", start="next")

        monday = prices.publish_many(["gold 100", "silver 20", "gold 101"])
        time.sleep(0.01)
        midnight = int(time.time() * 1000)  # milliseconds since 1970, like every timestamp
        prices.publish_many(["gold 99", "silver 21"])

        print("alarms:", shown(rest(alarms)))

        # Each group has its own position. Without auto_commit it moves when you say so.
        with prices.consumer(group="report", start=monday.offset, auto_commit=False) as report:
            print("report:", shown(report.receive(2)))
            report.commit()
            print("report, and not committed:", shown(report.receive(1)))

        # Whoever comes next goes on behind what was committed: nothing is left out.
        with prices.consumer(group="report", auto_commit=False) as report:
            print("report, after a restart:", shown(rest(report)))
            report.commit()

            # The report of Tuesday was wrong: the group goes back, to a moment or an offset.
            report.seek("first", timestamp=midnight)
            print("report, since midnight:", shown(rest(report)))
            report.seek(f"offset={monday.offset}")
            print("report, from the beginning:", shown(rest(report)))
            report.commit()

        # To look something up no group is needed, and nobody's position moves.
        print("read, since midnight:", shown(prices.read(timestamp=midnight)))
        print("read, two offsets:", shown(prices.read(monday.offset, monday.offset + 2)))
        alarms.close()


def main() -> None:
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(folder)


if __name__ == "__main__":
    main()
