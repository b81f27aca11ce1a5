"""Jobs for later: publish with a delay or for a time, take one back, restart, and receive on time.

python examples/delayed_jobs.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta

import tailrace


def text(value: bytes | None) -> str:
    return (value or b"").decode()


def run(folder: str) -> None:
    started = time.monotonic()
    with tailrace.open(folder) as store:
        reminders = store.queue("reminders")

        # A delay is a number of seconds, or a text like "90s", "2h" or "7d"; a time is a datetime
        # with its zone, or milliseconds since 1970. It is on the disk when publish returns.
        reminders.publish("water the plants", delay=1.5)
        reminders.publish("call Ada", deliver_at=datetime.now(UTC) + timedelta(seconds=0.75))
        invoice = reminders.publish("send the invoice", delay="2h")
        tea = reminders.publish("the tea is ready", delay="3h")
        print(f"{reminders.delayed_count()} reminders are scheduled")

        if reminders.cancel(invoice.delay_id):
            print("the invoice is taken back")

    # What is scheduled outlives the program. While nobody has the store open nothing is delivered;
    # what became due meanwhile comes when somebody opens it.
    with tailrace.open(folder) as store:
        reminders = store.queue("reminders")
        for job in reminders.delayed():
            at = datetime.fromtimestamp(job.deliver_at / 1000, UTC)
            print(f"at {at:%H:%M:%S}: {text(job.value)}")

        consumer = reminders.consumer(group="me")
        for _ in range(2):
            for message in consumer.receive(1, wait=60.0):
                with message:
                    elapsed = time.monotonic() - started
                    print(f"after {elapsed:.2f} s: {text(message.value)}")

        reminders.cancel(tea.delay_id)
        print(f"{reminders.delayed_count()} reminders are scheduled")


def main() -> None:
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(folder)


if __name__ == "__main__":
    main()
