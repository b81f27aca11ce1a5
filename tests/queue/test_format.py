"""FORMAT.md is true of the files of a store: its examples are what is written, byte by byte, and
its tables have every key.

If one of these tests fails, the format has changed, and stores that exist have not.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tailrace import Queue, Store
from tailrace.queue.journal import encode_line, parse_line
from tailrace.queue.names import from_component, to_component
from tailrace.queue.offline.documents import read_saved, read_snapshot
from tailrace.queue.offline.lines import FLUXMQ_OPS, read_journal
from tests.project import ROOT
from tests.queue.clocks import Machine

TEXT = (ROOT / "FORMAT.md").read_text()
EXAMPLES = re.findall(r"(?ms)^```\n(.*?)^```$", TEXT)
STORE = "data/queue"
CLASSIC = f"{STORE}/queues/orders/consumers/w"
STREAM = f"{STORE}/queues/events/consumers/r"


def example(beginning: str) -> str:
    """The block of FORMAT.md that begins like this, without spaces in front."""
    (found,) = [block for block in EXAMPLES if block.lstrip().startswith(beginning)]
    return str(found)


def table(heading: str) -> dict[str, str]:
    """What stands in backticks in the first column below a heading, and the rest of its row."""
    below = TEXT.partition(heading)[2].partition("|---|")[2].partition("\n\n")[0]
    rows = re.findall(r"(?m)^\| (`.+?) \| (.*) \|$", below)
    return {name: rest for first, rest in rows for name in re.findall(r"`(\w+)`", first)}


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One on which nothing is left to chance."""
    with contextlib.ExitStack() as stack, Machine() as machine:
        for name, value in {
            "os.getpid": lambda: 4242,
            "os.uname": lambda: SimpleNamespace(nodename="host"),
            "secrets.token_hex": lambda size: "0123456789abcdef" * (size // 8),
            "tailrace.queue.settings.new_incarnation": lambda: "0123456789abcdef" * 2,
        }.items():
            stack.enter_context(mock.patch(name, value))
        yield machine


def use(machine: Machine) -> Store:
    """What wrote the examples."""
    store = machine.open()
    orders = store.queue("orders", compact_after=1000)
    orders.publish_many([b"a", b"b", b"c"])
    first, second = orders.consumer("w", id="c1", visibility_timeout="16s").receive(2)
    first.ack()
    second.nack(delay="32s", error="no")
    events = store.stream("events")
    events.publish_many([b"x", b"y", b"z"])
    events.consumer("r", id="c2").receive(2)[0].ack()
    return store


def journal(machine: Machine, folder: str) -> str:
    return machine.disk.read(f"{folder}/ops.log").rstrip(b"\0").decode()


def test_the_examples_are_what_is_written(machine: Machine) -> None:
    store, disk = use(machine), machine.disk
    assert journal(machine, CLASSIC) == example('{"k":"573f8dd6","t":"begin"')
    assert journal(machine, STREAM).endswith(example('{"k":"5b47839a","t":"take"'))
    store.close()
    files = [f"{CLASSIC}/{name}" for name in ("state.json", "pel_1.json")]
    assert b"".join(map(disk.read, files)).decode() == example('{"version":1,"group_id"')
    saved = disk.read(f"{STORE}/groups/orders/w.json").decode()
    assert saved + "\n" == example('{\n  "version": 2')
    assert example('"Tailrace"') in disk.read(f"{STORE}/config/queues.json").decode()
    assert disk.read(f"{CLASSIC}/ops.log") == b""


def test_the_examples_are_whole() -> None:
    """By the checksums as FORMAT.md describes them, and as files they are read."""
    for line in (example('{"k":"573f8dd6"') + example('{"k":"5b47839a"')).encode().splitlines():
        assert parse_line(line) is not None
    read = read_journal(example('{"k":"573f8dd6"').encode())
    assert (read.is_ours, read.has_begin, len(read.lines), read.tail) == (True, True, 6, [])
    for line in example('{"version":1,"group_id"').encode().splitlines(keepends=True):
        assert read_snapshot(line).checksum == "ok"
    assert read_saved(example('{\n  "version": 2').encode()[:-1]).checksum == "ok"


def test_a_store_of_the_examples_is_opened(machine: Machine) -> None:
    disk = machine.disk
    use(machine).close()
    lines = example('{"version":1,"group_id"').encode().splitlines(keepends=True)
    for name, data in zip(("state.json", "pel_1.json"), lines, strict=True):
        disk.put(f"{CLASSIC}/{name}", data)
    machine.clock.advance(40)
    with machine.open() as store, store.queue("orders").consumer("w") as consumer:
        found = [(m.offset, m.delivery_count, m.last_error) for m in consumer.receive(9)]
    assert found == [(1, 2, "no"), (2, 1, "")]


# --- operations -----------------------------------------------------------------------------

COMMON = table("`t` is the operation.")
OF_QUEUES = table("In a group of a classic queue:")
OF_STREAMS = table("In a group of a stream:")


def ops_of(machine: Machine, folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal(machine, folder).splitlines()]


def test_every_operation_has_its_keys(machine: Machine) -> None:
    rare: list[dict[str, Any]] = [
        {"t": "moved"},
        {"t": "deleted"},
        {"t": "doubt"},
        {"t": "rewind", "x": 0},
        {"t": "return", "c": "c", "r": [0, 1]},
        {"t": "skip", "x": 0},
        {"t": "free", "r": [0, 1]},
        {"t": "drop", "r": [0, 1], "f": 2, "x": 3, "n": 2},
    ]
    ops: list[dict[str, Any]] = [*operations(machine), *rare]
    documented = {**COMMON, **OF_QUEUES, **OF_STREAMS}
    assert {op["t"] for op in ops} == set(documented)
    for op in ops:
        keys = re.findall(r"`(\w+)`", documented[op["t"]].partition(" | ")[0])
        assert op.keys() - {"k", "t"} <= set(keys), op


def operations(machine: Machine) -> list[dict[str, Any]]:
    """All that there are, as they are written."""
    store = machine.open(retry={"initial_backoff": 0})
    orders = store.queue("orders")
    orders.publish_many([(f"k{number % 3}", b"%d" % number) for number in range(20)])
    consumer = orders.consumer("w", key_order=True, prefetch=3)
    while (message := next(iter(consumer.receive(1)), None)) and message.offset < 9:
        match message.offset % 5:
            case 0:
                message.ack()
            case 1:
                message.nack(error="no")
            case 2:
                message.extend()
                message.reject()
            case 3:
                message.release()
                consumer.ack(consumer.receive(1))
            case 4:
                message.ack()
    ahead = orders.consumer("w", prefetch=3)
    assert next(iter(ahead)).delivery_count
    orders.log.truncate_before(15)
    machine.clock.advance(3600)
    consumer.receive(5)
    consumer.close()
    orders.group("w").reset(20)
    events = store.stream("events")
    events.publish_many([b"x", b"y", b"z"])
    reader = events.consumer("r")
    first, second = reader.receive(2)
    first.ack()
    second.reject()
    reader.seek(0)
    reader.close()
    machine.kill()
    ops = ops_of(machine, CLASSIC) + ops_of(machine, STREAM)
    with machine.open() as store, store.queue("orders").consumer("w") as consumer:
        ops += ops_of(machine, CLASSIC)  # it has buried the one that was killed
    return ops


def test_runs_and_their_checksum() -> None:
    op = {"t": "ack", "r": [0, 1]}
    assert parse_line(b'{"k":"a5fd9058","t":"ack","r":[0, 1]}') == op  # spaces don't matter
    assert encode_line(op) == b'{"k":"5f414101","t":"ack","r":[0,1]}\n'


def test_the_operations_of_fluxmq() -> None:
    (told,) = re.findall(r"`t` is (1 deliver.*?);", TEXT, re.DOTALL)
    numbers = {int(number) for number in re.findall(r"\b(\d) \w", told)}
    assert numbers == set(FLUXMQ_OPS)


# --- keys of the other files ----------------------------------------------------------------


def test_every_key_of_a_snapshot(machine: Machine) -> None:
    store = use(machine)
    orders = store.get("orders")
    assert isinstance(orders, Queue)
    consumer = orders.consumer("v", key_order=True)
    orders.publish(b"d", key="k")
    orders.publish(b"e", key="k")
    consumer.receive(9)
    machine.clock.advance(60)
    consumer.receive(1)
    store.queue("fleeting", flush="none").group("w")
    store.close()
    entries: set[str] = set()
    states: set[str] = set()
    for path in machine.disk.files():
        if path.rpartition("/")[2].startswith("pel_"):
            for entry in json.loads(machine.disk.read(path))["entries"].values():
                entries |= set(entry)
        elif path.endswith("/state.json"):
            states |= set(json.loads(machine.disk.read(path))["tailrace"])
    assert states == set(table("`tailrace` is ours:"))
    documented = table("of a stream: the ranges")
    assert {*entries, "count"} == set(documented)


def test_every_key_of_ours_in_the_registry(machine: Machine) -> None:
    theirs = {"version": 2, "configs": [{"Name": "theirs", "Durable": False}]}
    machine.disk.make_dirs(f"{STORE}/config")
    machine.disk.put(f"{STORE}/config/queues.json", json.dumps(theirs).encode())
    with machine.open() as store:
        store.queue(
            "all",
            flush="none",
            compression="zstd",
            compact_after=7,
            auto_commit_interval="3s",
            expire_groups="3d",
            limits={"on_full": "block", "max_depth": 5},
            dlq={"expired": True},
            segment_bytes="2MiB",
        )
        store.publish("$queue/nobody/x", b"x")
        entries = json.loads(machine.disk.read(f"{STORE}/config/queues.json"))["configs"]
    keys = {key for entry in entries for key in entry["Tailrace"]}
    assert keys == set(table("FluxMQ drops the object"))


def test_every_header(machine: Machine) -> None:
    with machine.open() as store:
        queue = store.queue("orders")
        queue.publish(b"x", ttl="1h", headers={"mine": b"1"})
        with queue.consumer("w") as consumer:
            consumer.receive(1)[0].reject("no")
        letters = store.get("$dlq/orders")
        names = {name for record in letters.log.read() for name in record.headers}
        store.redrive("orders")
        names |= {name for record in queue.log.read() for name in record.headers}
    of_pipelines = {"_dlq_pipeline", "_dlq_original_incarnation"}  # which need Spark
    assert names - {"mine"} == set(table("in any order; all are UTF-8.")) - of_pipelines


# --- names ----------------------------------------------------------------------------------


def test_names_are_escaped_as_described() -> None:
    for name, component in re.findall(r"`(\S+)` is `(\S*%\S+)`", TEXT):
        assert to_component(name) == component
        assert from_component(component) == name
    assert "`a/b` is `a%2Fb`" in TEXT


def test_every_file_is_named(machine: Machine) -> None:
    """By FORMAT.md, that of a log aside."""
    store = use(machine)
    store.publish("some/topic", b"x")  # makes an ephemeral queue
    store.consumer("some/topic", "w").receive(1)
    names = {path.rpartition("/")[2] for path in machine.disk.files() if "/segments/" not in path}
    store.close()
    names |= {path.rpartition("/")[2] for path in machine.disk.files() if "/segments/" not in path}
    tree = example("<base>/queue/")
    for name in names:
        known = re.sub(r"^(alive|damaged)-[0-9a-f]+$", r"\1-<", name)
        known = re.sub(r"^[rw]\.json$", "<group>.json", known)
        known = re.sub(r"^pel_[1-7]\.json$", "pel_7.json", known)
        assert known in tree, name
