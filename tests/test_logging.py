"""What is logged says what it is about, and JSON is made of it, a line each."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.jsonlog import JsonFormatter
from tests.queue.support import numbers, on_machine, one, send_letters


def line_of(formatter: logging.Formatter, **attributes: Any) -> dict[str, Any]:
    record = logging.makeLogRecord(
        {"name": "tailrace", "levelname": "WARNING", "msg": "%s: %d", "args": ("a", 7)}
    )
    record.created = 1_700_000_000.25
    vars(record).update(attributes)
    text = formatter.format(record)
    assert text.isascii()
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return found


def test_a_line() -> None:
    assert line_of(JsonFormatter()) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "tailrace",
        "message": "a: 7",
    }


def test_fields_of_a_record_and_of_all() -> None:
    found = line_of(JsonFormatter(service="shop", queue="none"), queue="orders", offset=7)
    assert (found["service"], found["queue"], found["offset"]) == ("shop", "orders", 7)


def test_a_field_never_takes_the_place_of_ours() -> None:
    found = line_of(JsonFormatter(), level="high", time="now", exception="no")
    assert (found["level"], found["level_"], found["time_"]) == ("WARNING", "high", "now")
    assert found["exception"] == "no"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\xff", "b'\\xff'"),
        (float("nan"), "nan"),
        ([float("inf")], "[inf]"),
        ({1, 2}, "{1, 2}"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ("line\nü\udc80", "line\nü\udc80"),
        (Path("a") / "b", "a/b"),
        ([1, {"a": None}], [1, {"a": None}]),
    ],
)
def test_any_value_can_be_written(value: Any, expected: Any) -> None:
    assert line_of(JsonFormatter(), value=value)["value"] == expected


def test_errors_are_written() -> None:
    try:
        raise RuntimeError("broken\nin two")
    except RuntimeError:
        found = line_of(JsonFormatter(), exc_info=sys.exc_info(), stack_info="Stack:\n  here")
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert found["exception"].endswith("RuntimeError: broken\nin two")
    assert found["stack"] == "Stack:\n  here"
    assert line_of(JsonFormatter(), exc_text="as text")["exception"] == "as text"


def test_a_handler_writes_a_line_for_each_record(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "lines")
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tailrace.tests")
    logger.addHandler(handler)
    try:
        for number in range(3):
            logger.error("several\nlines", extra={"number": number})
    finally:
        logger.removeHandler(handler)
        handler.close()
    lines = (tmp_path / "lines").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 2]


# --- what tailrace logs -----------------------------------------------------------------------


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Its own fields, as the formatter writes them."""
    found = json.loads(JsonFormatter().format(record))
    return {name: found[name] for name in found.keys() - {"time", "level", "logger", "message"}}


def test_dropped_messages(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrace")
    limits = {"max_depth": 2, "on_full": "drop_oldest"}
    with on_machine(limits=limits) as (_, _, queue):
        queue.publish_many(numbers(2))
        queue.publish_many(numbers(2))
    [record] = caplog.records
    assert record.levelname == "INFO"
    assert fields_of(record) == {"queue": "q", "count": 2}


def test_a_damaged_journal(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with tailrace.open(tmp_path, upkeep=False) as store:
        queue = store.queue("q")
        queue.publish_many(numbers(3))
        with queue.consumer("w") as consumer:
            for _ in range(3):
                one(consumer).ack()
            journal = tmp_path / "queue/queues/q/consumers/w/ops.log"
            lines = journal.read_bytes().split(b"\n")
            damaged = lines[2].replace(b'"t"', b'"T"')
            assert damaged != lines[2]
            journal.write_bytes(b"\n".join([*lines[:2], damaged, *lines[3:]]))
            code = "import sys, tailrace; tailrace.open(sys.argv[1]).queue('q').consumer('w')"
            script = (
                "import logging, tailrace.jsonlog as j; h = logging.StreamHandler();"
                "h.setFormatter(j.JsonFormatter()); logging.getLogger('tailrace').addHandler(h);"
            )
            command = [sys.executable, "-c", script + code, str(tmp_path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = [json.loads(line) for line in done.stderr.splitlines()]
    [line] = [line for line in found if "is damaged" in line["message"]]
    assert line["level"] == "ERROR"
    assert line["path"] == str(journal)


def test_a_dead_letter_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    with on_machine() as (machine, store, queue):
        store.stream("letters")  # which takes none
        send_letters(store, "q", "letters")
        queue.publish(b"x")
        with queue.consumer("w") as consumer:
            for _ in range(3):
                one(consumer)
                machine.clock.advance(2)
            assert consumer.receive(1) == []
    [record] = [each for each in caplog.records if "dead letter" in each.getMessage()]
    assert fields_of(record) == {"queue": "q", "group": "w", "offset": 0}


def test_a_watermark_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("no space")

    with on_machine() as (_, store, queue):
        queue.publish(b"x")
        writer = queue.log._writer
        assert writer is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer.committer._watermark_file, "store", fail)
            queue.publish(b"y")
        [record] = caplog.records
        assert fields_of(record) == {"queue": "q", "path": store.layout.segments("q")}


def test_nobody_installs_a_handler() -> None:
    code = "import logging, tailrace; assert not logging.getLogger('tailrace').handlers"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
