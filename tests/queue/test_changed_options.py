"""What is open goes on by the options that somebody else has set, in whichever process."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace import ConfigError, Queue, Store
from tailrace.kernel import NONE, S2
from tailrace.queue.handles import _LIVE
from tailrace.queue.settings import LOG_OPTIONS, QueueSettings, Retry
from tests.log.helpers import WAIT, eventually
from tests.queue.conftest import OpenStore
from tests.queue.support import FAST, another_process, drain, numbers, one, values

BIG = b"a" * 100_000


def change(path: Path, name: str, options: str) -> None:
    """Another process sets something."""
    with another_process(path / "data") as other:
        assert other.ask(f"store.configure({name!r}, {options})") == "None"


def test_auto_commit_interval(store: Store, tmp_path: Path) -> None:
    stream = store.stream("s", auto_commit_interval="1h")
    stream.publish_many(numbers(50))
    own = stream.consumer("own", auto_commit_interval="1h")
    consumer = stream.consumer("w")
    for each in (own, consumer):
        assert len(each.receive(5)) == 5
        assert len(each.receive(5)) == 5
    assert consumer.committed == 0
    change(tmp_path, "s", "auto_commit_interval='1ms'")
    for each in (own, consumer):
        assert len(each.receive(5)) == 5
    assert consumer.committed == 10
    assert own.committed == 0  # it was given one


def test_auto_commit_interval_of_one_who_waits(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.queue.consumer.LOOK_AFTER_S", 0.02)
    stream = store.stream("s", auto_commit_interval="1h")
    stream.publish(b"x")
    consumer = stream.consumer("w")
    got: list[bytes | None] = []

    def receive() -> None:
        got.extend(values(consumer.receive()))
        consumer.receive(wait=None)

    thread = threading.Thread(target=receive)
    thread.start()
    try:
        eventually(lambda: got == [b"x"])
        change(tmp_path, "s", "auto_commit_interval='1ms'")
        deadline = threading.Event()
        for _ in range(int(WAIT / 0.02)):
            if consumer.committed:
                break
            deadline.wait(0.02)
        assert consumer.committed == 1
    finally:
        consumer.close()
        thread.join()


def test_compact_after(store: Store, tmp_path: Path) -> None:
    queue = store.queue("q")
    queue.publish_many(numbers(40))
    consumer = queue.consumer("w")
    one(consumer).ack()
    journal = queue.group("w")._journal
    assert journal.ops > 1
    change(tmp_path, "q", "compact_after=5")
    before = journal.generation
    for _ in range(10):
        one(consumer).ack()
    assert journal.generation >= before + 2
    change(tmp_path, "q", "compact_after=10_000")
    one(consumer).ack()
    before = journal.generation
    for _ in range(10):
        one(consumer).ack()
    assert journal.generation == before
    assert len(drain(consumer)) == 40 - 22


def size_of(queue: Queue) -> int:
    return sum(path.stat().st_size for path in Path(queue.log.path).glob("*.seg"))


def test_compression(store: Store, tmp_path: Path) -> None:
    queue = store.queue("q", flush="async")
    queue.publish(BIG)
    assert size_of(queue) < 10_000
    change(tmp_path, "q", "compression='none'")
    queue.publish(BIG)
    queue.publish_many([BIG])
    queue.publish(BIG, headers={"a": "b"})
    assert size_of(queue) > 300_000
    assert queue.log.options.codec == NONE
    change(tmp_path, "q", "compression='s2'")
    before = size_of(queue)
    queue.publish_many([BIG])
    assert size_of(queue) < before + 10_000
    assert queue.log.options.codec == S2


def test_segment_bytes(store: Store, tmp_path: Path) -> None:
    queue = store.queue("q", flush="async", compression="none")
    queue.publish_many([BIG] * 3)
    change(tmp_path, "q", "segment_bytes='64KiB'")
    for _ in range(3):
        queue.publish(BIG)
    assert len(list(Path(queue.log.path).glob("*.seg"))) == 4
    change(tmp_path, "q", "segment_bytes='64MiB'")
    for _ in range(3):
        queue.publish(BIG)
    assert len(list(Path(queue.log.path).glob("*.seg"))) == 4
    assert len(list(queue.read())) == 9


def test_max_batch_bytes(store: Store, tmp_path: Path) -> None:
    queue = store.queue("q", flush="async", compression="none")
    queue.publish_many([BIG] * 4)
    assert len(list(queue.log.read_batches())) == 1
    change(tmp_path, "q", "max_batch_bytes='150KB'")
    queue.publish_many([BIG] * 4)
    assert len(list(queue.log.read_batches())) == 5


def test_options_that_count_from_the_next_open(open_store: OpenStore) -> None:
    """All others of the log; what is documented is these."""
    later: dict[str, Any] = {
        "flush_interval": "2s",
        "index_interval": 1024,
        "time_index_interval": "2s",
        "open_files": 8,
        "producer_expiry": "1h",
        "retention_check_interval": "1h",
    }
    assert {*later, *(name.removesuffix("_ms") for name in _LIVE)} == {*LOG_OPTIONS, "codec"}
    with open_store() as store:
        queue = store.queue("q")
        before = queue.log.options
        queue.configure(**later)
        queue.publish(b"x")
        assert queue.log.options == before
    options = open_store().queue("q").log.options
    assert (options.index_interval, options.open_files, options.flush_interval_ms) == (
        1024,
        8,
        2000,
    )


def test_a_log_that_is_opened_while_somebody_changes_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("q", compression="none")
    open_log = store.open_log

    def slowly(settings: Any, *args: Any, **options: Any) -> Any:
        log = open_log(settings, *args, **options)
        store.configure("q", compression="s2")
        assert queue.settings.compression == "s2"  # another thread notices
        return log

    monkeypatch.setattr(store, "open_log", slowly)
    assert queue.log.options.codec == S2


def test_visibility_timeout_of_a_consumer_of_another_process(store: Store, tmp_path: Path) -> None:
    queue = store.queue("q")
    queue.publish_many(numbers(2))
    with another_process(tmp_path / "data") as other:
        other.ask("(c := store.queue('q').consumer('w'))")
        assert other.ask("c.receive()[0].value") == "b'0'"
        left = float(other.ask("store.queue('q').pending('w')[0].left"))
        assert 20 < left <= 31
        queue.configure(visibility_timeout="1h")
        assert other.ask("c.receive()[0].value") == "b'1'"
        left = float(other.ask("store.queue('q').pending('w')[1].left"))
        assert 3000 < left <= 3601


def test_retry_of_a_consumer_of_another_process(store: Store, tmp_path: Path) -> None:
    queue = store.queue("q", **FAST)
    queue.publish(b"x")
    with another_process(tmp_path / "data") as other:
        other.ask("(c := store.queue('q').consumer('w'))")
        assert other.ask("(m := c.receive()[0]).delivery_count") == "1"
        queue.configure(retry={"max_retries": 0})
        assert other.ask("m.nack(error='no')") == "None"
        assert other.ask("c.receive()") == "[]"
    [letter] = store.dead("q")
    assert letter.headers["_dlq_reason"] == b"delivered 1 times: no"


def test_a_forked_childs_handles_notice_too(store: Store) -> None:
    queue = store.queue("q")
    queue.publish(b"x")
    queue.disown()
    queue.configure(compression="none")
    queue.publish(b"y")
    assert queue.log.options.codec == NONE


def test_values_that_would_be_refused_now_are_no_reason_to_refuse_a_store(tmp_path: Path) -> None:
    """Whoever wrote them, FluxMQ or we, could: they are refused when somebody sets them."""
    with Store(tmp_path) as store:
        store.queue("q")

        def edit(queues: dict[str, QueueSettings]) -> None:
            wrong = Retry(initial_backoff_ms=5_000, max_backoff_ms=1_000)
            queues["q"] = replace(queues["q"], retry=wrong, primary_group="w")

        store.registry.change(edit)
    with Store(tmp_path) as store:
        queue = store.queue("q", visibility_timeout="1m", retry={"max_retries": 3})
        assert queue.settings.retry == Retry(3, 5_000, 1_000)
        assert queue.settings.primary_group == "w"
        for key in ("max_backoff", "initial_backoff"):
            with pytest.raises(ConfigError, match=r"^retry\.max_backoff: "):
                queue.configure(retry={key: "2s"})
        queue.configure(primary_group="")
        with pytest.raises(ConfigError, match=r"^primary_group: q is a classic queue"):
            queue.configure(primary_group="w")
