"""What the tests of pipelines share: a folder with a configuration, and pipelines that run in the
session of the tests."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml

from tailrace import Message, Store
from tailrace.config import load
from tailrace.spark.pipelines.definition import Definition, definitions
from tailrace.spark.pipelines.running import Run, told_apart
from tests.spark.support import open_store

PATIENCE_S = 240
SMALL: dict[str, Any] = {"compression": "none"}


class Place:
    """A folder with `tailrace.yaml`, and the store `data`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "data"

    def open(self) -> Store:
        return open_store(self.store)

    def publish(self, queue: str, *values: Any, **options: Any) -> None:
        """Values are bytes, or JSON."""
        with self.open() as store:
            found = store.stream(queue, **SMALL)
            for value in values:
                found.publish(as_bytes(value), **options)

    def messages(self, queue: str) -> list[Message]:
        with self.open() as store:
            return list(store.get(queue).read())

    def values(self, queue: str) -> list[bytes]:
        return [message.value or b"" for message in self.messages(queue)]

    def documents(self, queue: str) -> list[Any]:
        return [json.loads(value) for value in self.values(queue)]

    def reasons(self, queue: str) -> dict[bytes, str]:
        """Of the dead letters of a queue, by their values."""
        with self.open() as store:
            letters = store.dead(queue)
            return {m.value or b"": m.headers["_dlq_reason"].decode() for m in letters}

    def define(self, **given: Any) -> Definition:
        """The pipeline `p`, from `events` to `out` unless it says otherwise."""
        entry = {"name": "p", "from": "events", "to": "out", **given}
        path = self.folder / "tailrace.yaml"
        path.write_text(yaml.safe_dump({"pipelines": [entry]}))
        return definitions(load(path))[entry["name"]]

    def run(self, spark: Any, definition: Definition, **options: Any) -> Run:
        """Once, to the end."""
        session = told_apart(spark, definition, {})
        run = Run(session, str(self.store), definition, once=True)
        with run.home.held():
            try:
                run.start(**options)
                until = time.monotonic() + PATIENCE_S
                while run.poll():
                    assert time.monotonic() < until
                    time.sleep(0.02)
                run.poll()
                run.stop()
            finally:
                if run.status.state == "running":
                    run.stop(now=True)
        return run


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def forget_last_commit(checkpoint: str) -> None:
    """As if the process had been killed when the last batch was written, and not yet noted."""
    commits = Path(checkpoint) / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
