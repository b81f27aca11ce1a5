"""What becomes of messages that fail: retries, dead letters with the reason, and a way back.

python examples/dead_letters.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
import tempfile

import tailrace


class MailServer:
    """Somebody else's machine, which is down at first."""

    is_up = False

    def send(self, to: str) -> None:
        if not self.is_up:
            raise ConnectionError("the mail server does not answer")
        print(f"  sent to {to}")


def work(consumer: tailrace.Consumer, server: MailServer) -> None:
    """Deal with all there is. Whoever runs for ever writes `for message in consumer:` instead."""
    while messages := consumer.receive(10, wait=1.0):
        for message in messages:
            try:
                mail = json.loads(message.value or b"")
            except json.JSONDecodeError as error:
                # No retry can help: it goes to the dead letters at once.
                message.reject(f"not JSON: {error.msg}")
                print("  rejected, it cannot be read")
                continue
            try:
                with message:  # acks; if the block raises, the message comes back after a while
                    server.send(mail["to"])
            except ConnectionError as error:
                print(f"  try {message.delivery_count} for {mail['to']}: {error}")


def show_dead(store: tailrace.Store) -> None:
    letters = store.dead("mails")
    print(f"dead letters: {len(letters)}")
    for letter in letters:
        reason = letter.headers["_dlq_reason"].decode()
        tries = letter.headers["_dlq_delivery_count"].decode()
        print(f"  {letter.value!r} after {tries} tries: {reason}")


def run(folder: str) -> None:
    server = MailServer()
    with tailrace.open(folder) as store:
        # One try, and two more: after 50 and after 100 milliseconds. The defaults are patient: ten
        # retries, from five seconds to five minutes apart.
        retry = {"max_retries": 2, "initial_backoff": "50ms", "max_backoff": "1s"}
        mails = store.queue("mails", retry=retry)
        consumer = mails.consumer(group="senders")

        mails.publish(json.dumps({"to": "ada@example.org"}))
        mails.publish(b"{to: nobody")
        work(consumer, server)
        show_dead(store)

        print("the mail server is up again; redrive what it refused")
        server.is_up = True
        store.redrive("mails", offsets=[m.offset for m in store.dead("mails") if is_mail(m)])
        work(consumer, server)

        # The other one stays, until somebody has seen to it.
        show_dead(store)


def is_mail(letter: tailrace.Message) -> bool:
    return not letter.headers["_dlq_reason"].startswith(b"not JSON")


def main() -> None:
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(folder)


if __name__ == "__main__":
    main()
