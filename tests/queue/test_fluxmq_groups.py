"""FluxMQ's files of groups: what they say of a group, and what we leave for it.

`FluxMQ` below writes them as FluxMQ does, from a history of operations, at any moment of it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace
from tailrace.kernel import crc32c
from tailrace.log.fs import OsFileSystem
from tailrace.queue.fluxmq_groups import FluxGroup, Mode, find_groups
from tailrace.queue.group import Group
from tailrace.queue.group_files import GroupFiles
from tailrace.queue.lease import CLAIMED, DYING, FREE, LEASED, PARKED, WAITING
from tailrace.queue.ledger import Ledger
from tailrace.queue.snapshots import Snapshot, Snapshots
from tailrace.queue.stream_ledger import StreamLedger
from tailrace.testing import SimulatedDisk
from tests.project import ROOT

FIXTURES = ROOT.parent / "shared" / "fixtures" / "fluxmq"
NOW_MS = 1_794_770_309_770
SHARDS = 8


class Clock:
    def boot_ms(self) -> int:
        return 1000

    def wall_ms(self) -> int:
        return NOW_MS


def group_of(
    disk: Any, queue: str = "orders", group_id: str = "w", *, mode: Mode = "queue", root: str = "/s"
) -> FluxGroup:
    return FluxGroup(disk, root, queue, group_id, mode=mode, pattern="", clock=Clock())


def load(disk: SimulatedDisk, *names: str, mode: Mode = "queue") -> Snapshot:
    found = group_of(disk, *names, mode=mode).load(None)
    assert found is not None
    return found


def put(disk: SimulatedDisk, path: str, data: bytes | str) -> None:
    disk.make_dirs(f"/s/{path}".rpartition("/")[0])
    disk.put(f"/s/{path}", data if isinstance(data, bytes) else data.encode())


def put_ops(disk: SimulatedDisk, *lines: str, group_id: str = "w") -> None:
    text = "".join(f"{line}\n" for line in lines)
    put(disk, f"queues/orders/consumers/{group_id}/ops.log", text)


def saved(
    queue: str = "orders",
    group_id: str = "w",
    *,
    cursor: int = 0,
    committed: int = 0,
    pending: dict[int, int] | None = None,
    **more: Any,
) -> str:
    """`groups/<queue>/<group>.json` as FluxMQ writes it, with the counts of what is pending."""
    entries = [
        {
            "Offset": o,
            "ConsumerID": "c1",
            "ClaimedAt": "2026-11-15T19:18:29.77Z",
            "DeliveryCount": n,
        }
        for o, n in (pending or {}).items()
    ]
    state = {
        "ID": group_id,
        "QueueName": queue,
        "Pattern": "",
        "Mode": "queue",
        "AutoCommit": True,
        "Cursor": {"Cursor": cursor, "Committed": committed},
        "PEL": {"c1": entries} if entries else {},
        "Consumers": {},
        "CreatedAt": "2026-11-15T19:18:29.768055613Z",
        "UpdatedAt": "2026-11-15T19:18:29.776463287Z",
        **more,
    }
    return json.dumps({"version": 2, "state": state, "saved_at": 1794770309776}, indent=2)


def state_json(cursor: int, floor: int = 0, version: int = 1, group_id: str = "w") -> str:
    state = {
        "AckFloor": floor,
        "Cursor": cursor,
        "Delivered": 0,
        "CreatedAt": 1794770309768,
        "UpdatedAt": 1794770309776,
    }
    document = {"version": version, "group_id": group_id, "state": state, "saved_at": 1794770309778}
    return json.dumps(document, indent=2)


def pel_json(shard: int, counts: dict[int, int], version: int = 1) -> str:
    entries = {
        str(o): {"o": o, "c": "c1", "d": 1794770309774, "n": n, "l": 1794770309774}
        for o, n in counts.items()
        if o % SHARDS == shard
    }
    document = {
        "version": version,
        "shard_id": shard,
        "entries": entries,
        "saved_at": 1794770309778,
    }
    return json.dumps(document, indent=2)


def put_snapshot(disk: SimulatedDisk, cursor: int, counts: dict[int, int], floor: int = 0) -> None:
    put(disk, "queues/orders/consumers/w/state.json", state_json(cursor, floor))
    for shard in range(SHARDS):
        put(disk, f"queues/orders/consumers/w/pel_{shard}.json", pel_json(shard, counts))


def counts_of(snapshot: Snapshot) -> dict[int, int]:
    return {offset: entry["n"] for offset, entry in snapshot.entries.items()}


# --- one record -----------------------------------------------------------------------------


def test_where_there_is_nothing_there_is_nothing() -> None:
    assert group_of(SimulatedDisk()).load(None) is None
    assert find_groups(SimulatedDisk(), "/s", "orders") == {}


def test_the_operations_of_the_log() -> None:
    disk = SimulatedDisk()
    put_ops(
        disk,
        '{"t":1,"c":"c1","ts":1794770309812}',  # deliver 0
        '{"t":8,"o":1,"ts":1794770309813}',
        *(f'{{"t":1,"o":{o},"c":"c1","ts":1}}' for o in range(1, 9)),
        '{"t":2,"ts":1}',  # ack 0
        '{"t":3,"os":[1,2,77],"ts":1}',
        '{"t":4,"o":3,"ts":1}',  # nack
        '{"t":4,"o":0,"ts":1}',  # of what is settled: nothing
        '{"t":5,"o":4,"c":"c2","ts":1}',  # claim
        '{"t":6,"os":[5,6,77],"c":"c3","ts":1}',
        '{"t":7,"o":8,"ts":1}',  # the floor, in which nobody believes
        '{"t":5,"o":5,"c":"c2","ts":1}',
    )
    found = load(disk)
    assert found.state == {"cursor": 9, "committed": 3, "delivered": 9}
    assert found.entries == {
        3: {"c": "c1", "n": 2, "s": FREE},
        4: {"c": "c2", "n": 2, "s": FREE},
        5: {"c": "c2", "n": 3, "s": FREE},
        6: {"c": "c3", "n": 2, "s": FREE},
        7: {"c": "c1", "n": 1, "s": FREE},
        8: {"c": "c1", "n": 1, "s": FREE},
    }
    assert list(found.entries) == sorted(found.entries)


def test_the_cursor_may_go_back() -> None:
    disk = SimulatedDisk()
    put_ops(disk, *(f'{{"t":1,"o":{o},"c":"c1","ts":1}}' for o in range(6)), '{"t":8,"o":4,"ts":1}')
    found = load(disk)
    assert found.state["cursor"] == 4
    assert counts_of(found) == {0: 1, 1: 1, 2: 1, 3: 1}  # the others come as new ones do


def test_a_snapshot_with_operations_behind_it() -> None:
    disk = SimulatedDisk()
    put_snapshot(disk, 12, {3: 4, 10: 1}, floor=2)
    found = load(disk)
    assert found.state["cursor"] == 12
    assert found.state["committed"] == 3
    assert found.state["created_ms"] == 1794770309768
    assert counts_of(found) == {3: 4, 10: 1}
    put_ops(disk, '{"t":2,"o":3,"ts":1}', '{"t":1,"o":12,"c":"c2","ts":1}')
    found = load(disk)
    assert found.state["cursor"] == 13
    assert counts_of(found) == {10: 1, 12: 1}


def test_the_file_in_groups_alone() -> None:
    disk = SimulatedDisk()
    put(disk, "groups/orders/w.json", saved(cursor=9, committed=8, pending={3: 2, 7: 1}))
    found = load(disk)
    assert found.state["cursor"] == 9
    assert found.state["committed"] == 3  # not what the file says
    assert counts_of(found) == {3: 2, 7: 1}


def test_the_least_that_fluxmq_takes() -> None:
    disk = SimulatedDisk()
    text = (
        '{"version":2,"state":{"ID":"w","QueueName":"orders","Cursor":{"Cursor":2,"Committed":0}}}'
    )
    put(disk, "groups/orders/w.json", text)
    assert load(disk) == Snapshot({"cursor": 2, "committed": 2, "delivered": 0}, {})
    put(disk, "groups/orders/w.json", text.replace('"Cursor":{', '"PEL":null,"Mode":"","Cursor":{'))
    assert load(disk) == Snapshot({"cursor": 2, "committed": 2, "delivered": 0}, {})


def test_imported_messages_are_free_at_once_without_a_strike() -> None:
    disk = SimulatedDisk()
    put(disk, "groups/orders/w.json", saved(cursor=9, pending={3: 2, 7: 1}))
    ledger = Ledger.load(*load(disk)[:2])
    assert ledger.committed == 3
    assert ledger.take_ready(0, 10, None) == ([3, 7], [], False)
    assert [(o, lease.count, lease.strikes) for o, lease in ledger.pending.items()] == [
        (3, 2, 0),
        (7, 1, 0),
    ]


# --- two records ----------------------------------------------------------------------------


def test_pending_is_what_either_record_says() -> None:
    disk = SimulatedDisk()
    put_snapshot(disk, 12, {3: 4, 10: 1})
    put(disk, "groups/orders/w.json", saved(cursor=11, committed=11, pending={2: 1, 3: 2, 10: 9}))
    found = load(disk)
    assert found.state["cursor"] == 12
    assert found.state["committed"] == 2
    assert counts_of(found) == {2: 1, 3: 4, 10: 9}
    put(disk, "groups/orders/w.json", saved(cursor=15, committed=15, pending={}))
    assert load(disk).state["cursor"] == 15
    assert counts_of(load(disk)) == {3: 4, 10: 1}


def test_a_stream_goes_on_from_what_was_committed() -> None:
    disk = SimulatedDisk()
    put(disk, "groups/orders/w.json", saved(cursor=90, committed=70, Mode="stream"))
    put_ops(disk, '{"t":8,"o":90,"ts":1}', '{"t":2,"o":85,"ts":1}')
    found = load(disk, mode="stream")
    assert found.entries == {}
    ledger = StreamLedger.load(found.state)
    assert (ledger.cursor, ledger.committed) == (70, 70)


def test_without_the_file_in_groups_nothing_is_known_of_a_stream() -> None:
    disk = SimulatedDisk()
    put_ops(disk, '{"t":8,"o":90,"ts":1}')
    assert group_of(disk, mode="stream").load(None) is None


def test_a_group_whose_mode_is_another_now() -> None:
    disk = SimulatedDisk()
    put(disk, "groups/orders/w.json", saved(cursor=90, committed=9, pending={70: 1}))
    assert load(disk, mode="stream").state["cursor"] == 70
    assert load(disk, mode="stream").entries == {}
    put(disk, "groups/orders/w.json", saved(cursor=90, committed=80, Mode="stream"))
    assert load(disk, mode="queue").state["cursor"] == 80


# --- damage ---------------------------------------------------------------------------------

OPS = b"""\
{"t":1,"c":"c1","ts":1794770309812}
{"t":8,"o":1,"ts":1794770309813}
{"t":1,"o":1,"c":"c1","ts":1794770309813}
{"t":8,"o":2,"ts":1794770309814}
{"t":2,"ts":1794770309820}
{"t":1,"o":2,"c":"c1","ts":1794770309814}
{"t":2,"o":1,"ts":1794770309820}
"""
# Cursor and pending, after each line.
AFTER = [(0, set()), (1, {0}), (1, {0}), (2, {0, 1}), (2, {0, 1}), (2, {1}), (3, {1, 2}), (3, {2})]


def ops_that_count(data: bytes) -> int:
    """A line counts as soon as its last brace is there."""
    return data.count(b"}")


def test_a_log_of_operations_that_was_cut_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    for end in range(1, len(OPS) + 1):
        disk = SimulatedDisk()
        put(disk, "queues/orders/consumers/w/ops.log", OPS[:end])
        caplog.clear()
        found = load(disk)
        cursor, pending = AFTER[ops_that_count(OPS[:end])]
        assert (found.state["cursor"], set(found.entries)) == (cursor, pending)
        torn = OPS[:end].rpartition(b"\n")[2]
        assert len(caplog.records) == (torn != b"" and not torn.endswith(b"}"))
        if caplog.records:
            assert f"the line at {end - len(torn)} cannot be read" in caplog.text


def test_fluxmq_goes_on_behind_a_line_whose_end_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    first, rest = OPS.split(b"\n", 1)
    disk = SimulatedDisk()
    put(disk, "queues/orders/consumers/w/ops.log", first + rest)
    assert load(disk).state["cursor"] == 3
    assert not caplog.records
    put(disk, "queues/orders/consumers/w/ops.log", first[:-1] + rest)  # here it cannot
    assert load(disk).state["cursor"] == 0
    assert "the line at 0 cannot be read" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"t":0}',
        '{"t":9}',
        '{"t":true}',
        '{"t":"begin"}',
        '{"t":1.0}',
        '{"t":1,"o":-1}',
        '{"t":1,"o":9223372036854775808}',
        '{"t":1,"o":"1"}',
        '{"t":1,"c":7}',
        '{"t":3,"os":7}',
        '{"t":3,"os":[null,-1]}',
        "[]",
        "null",
        "\0\0\0\0",
        "\udcff",
        '{"t":' + "[" * 100_000,
        '{"t":' + "9" * 5_000 + "}",
    ],
)
def test_nothing_counts_from_a_damaged_line_on(line: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    damaged = line.encode(errors="surrogateescape") + b"\n"
    good = b'{"t":1,"c":"c","ts":1}\n'
    put(
        disk,
        "queues/orders/consumers/w/ops.log",
        good + damaged + good.replace(b'"t"', b'"o":7,"t"'),
    )
    found = load(disk)
    assert (found.state["cursor"], list(found.entries)) == (1, [0])
    assert f"the line at {len(good)} cannot be read" in caplog.text


@pytest.mark.parametrize("damaged", ["", "{", '{"entries":{"x":{}}}', '{"entries":{"4":{}}}', "[]"])
def test_a_damaged_file_of_pending_messages(damaged: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    put_snapshot(disk, 20, {3: 1, 10: 2, 11: 3}, floor=2)
    put(disk, "queues/orders/consumers/w/pel_3.json", damaged)
    # Nobody knows which of them were pending.
    assert counts_of(load(disk)) == {3: 0, 10: 2, 11: 0, 19: 0}
    assert load(disk).state["cursor"] == 20
    assert "pel_3.json: damaged" in caplog.text
    # The other record does.
    put(disk, "groups/orders/w.json", saved(cursor=19, pending={3: 1, 10: 2, 11: 3}))
    assert counts_of(load(disk)) == {3: 1, 10: 2, 11: 3, 19: 0}


def test_without_its_state_a_cursor_counts_only_if_all_that_was_pending_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedDisk()
    put_snapshot(disk, 20, {3: 1, 10: 2})
    put(disk, "queues/orders/consumers/w/state.json", "")
    put_ops(disk, '{"t":1,"o":20,"c":"c1","ts":1}')
    assert load(disk).state["cursor"] == 21
    assert counts_of(load(disk)) == {3: 1, 10: 2, 20: 1}
    put(disk, "queues/orders/consumers/w/pel_3.json", "")
    assert load(disk).state["cursor"] == 0
    disk.unlink("/s/queues/orders/consumers/w/state.json")
    assert load(disk).state["cursor"] == 0
    assert "state.json: damaged" in caplog.text


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[]",
        '{"version":2}',
        '{"version":3,"state":{}}',
        saved(cursor=-1),
        saved(Mode="other"),
        saved(PEL=[]),
        saved(PEL={"c": [7]}),
        saved(PEL={"c": [{"Offset": 1.5}]}),
        saved(ID=7),
        saved(cursor=1 << 63),
        saved()[:-2] + ',\n  "tailrace": {}\n}',
    ],
)
def test_a_damaged_file_in_groups(damaged: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    put(disk, "groups/orders/w.json", damaged)
    assert group_of(disk).load(None) is None
    assert "w.json: damaged" in caplog.text
    put(disk, "groups/orders/v.json", saved(group_id="v"))
    assert find_groups(disk, "/s", "orders") == {"v": "queue"}
    put_ops(disk, '{"t":1,"c":"c","ts":1}')
    assert load(disk).state["cursor"] == 1


class _Moment(NamedTuple):
    cursor: int
    floor: int
    counts: dict[int, int]


class FluxMQ:
    """A history of a group. Nothing in it is dropped by mistake."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.moments = [_Moment(0, 0, {})]  # one more than lines

    def step(self) -> None:
        cursor, floor, counts = self.moments[-1]
        counts = dict(counts)
        what = self.random.randrange(10)
        if what < 4 or not counts:
            cursor += self.random.choice((0, 0, 0, 2))  # what does not match is passed by
            counts[cursor] = 1
            self._write(t=1, o=cursor, c="c1")
            cursor += 1
        elif what < 5:
            self._write(t=8, o=cursor)
        else:
            offset = self.random.choice(list(counts))
            if what < 8:
                del counts[offset]
                self._write(t=2, o=offset)
            elif what < 9:
                counts[offset] += 1
                self._write(t=4, o=offset)
            else:
                counts[offset] += 1
                self._write(t=6, os=[offset], c="c1")
        while floor + 1 < cursor and floor + 1 not in counts and counts.get(0) is None:
            floor += 1
        self.moments.append(_Moment(cursor, floor, counts))

    def _write(self, **op: Any) -> None:
        if not op.get("o"):
            op.pop("o", None)
        self.lines.append(json.dumps({**op, "ts": 1}, separators=(",", ":")) + "\n")


@given(st.integers(0, 2**32), st.integers(0, 60), st.booleans())
def test_whatever_was_lost_no_message_is(seed: int, steps: int, has_lost_files: bool) -> None:
    """The two records are of different moments, a compaction was not finished, the log of
    operations is torn, and files are damaged: what FluxMQ had not settled is delivered."""
    flux = FluxMQ(seed)
    for _ in range(steps):
        flux.step()
    choose = flux.random
    disk = SimulatedDisk()
    folder = "queues/orders/consumers/w"
    files: dict[str, str] = {}
    # Of the second snapshot, or the first, not all files are there; and the log still begins where
    # the one before it ended.
    compacted = choose.randrange(steps + 1)
    old, new = flux.moments[compacted], flux.moments[choose.randrange(compacted, steps + 1)]
    version = 2 if compacted else 1
    if compacted or choose.random() < 0.5:
        files[f"{folder}/state.json"] = state_json(new.cursor, new.floor, version)
        done = choose.randrange(SHARDS + 1)
        for shard in range(SHARDS if compacted else done):
            moment = new if shard < done else old
            files[f"{folder}/pel_{shard}.json"] = pel_json(
                shard, moment.counts, version if shard < done else 1
            )
    if choose.random() < 0.7:
        moment = flux.moments[choose.randrange(steps + 1)]
        files["groups/orders/w.json"] = saved(
            cursor=moment.cursor, committed=moment.floor, pending=moment.counts
        )
    log = "".join(flux.lines[compacted:])
    is_torn = choose.random() < 0.5
    files[f"{folder}/ops.log"] = log[: choose.randrange(len(log) + 1)] if is_torn else log
    damaged = [
        path
        for path in sorted(files)
        if has_lost_files and not path.endswith(".log") and choose.random() < 0.3
    ]
    for path, text in files.items():
        put(disk, path, text[: choose.randrange(len(text))] if path in damaged else text)

    found = group_of(disk).load(None)
    cursor, _, counts = flux.moments[-1]
    if found is None:
        return  # a new group, which begins at 0
    assert found.state["cursor"] <= cursor
    for offset, times in counts.items():
        entry = found.entries.get(offset)
        assert entry is not None or offset >= found.state["cursor"]
        if not damaged and not is_torn and entry is not None:
            assert entry["n"] >= times
    assert all(offset < found.state["cursor"] for offset in found.entries)
    assert found.state["committed"] == min(found.entries, default=found.state["cursor"])
    is_whole = not damaged and not is_torn and list(files) == [f"{folder}/ops.log"]
    if is_whole and steps:
        assert (found.state["cursor"], counts_of(found)) == (cursor, counts)


# --- names ----------------------------------------------------------------------------------


def test_names_with_a_slash_are_folders_within_folders() -> None:
    disk = SimulatedDisk()
    put(disk, "queues/orders/consumers/w@images/#/ops.log", '{"t":1,"o":6,"c":"c","ts":1}\n')
    put(disk, "queues/orders/consumers/w@images/ops.log", "")  # FluxMQ takes it for a group
    put(
        disk,
        "groups/orders/w@images/#.json",
        saved(group_id="w@images/#", cursor=3, pending={2: 1}),
    )
    found = load(disk, "orders", "w@images/#")
    assert (found.state["cursor"], list(found.entries)) == (7, [2, 6])
    assert group_of(disk, "orders", "w@images").load(None) is None
    put(disk, "groups/$dlq/orders/w.json", saved("$dlq/orders", cursor=3))
    put(disk, "queues/$dlq/orders/consumers/w/ops.log", '{"t":1,"o":6,"c":"c","ts":1}\n')
    assert load(disk, "$dlq/orders", "w").state["cursor"] == 7


def test_groups_are_known_by_what_is_in_their_files(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    put(disk, "groups/a/w.json", saved("a", "w"))
    put(disk, "groups/a/w@images/#.json", saved("a", "w@images/#", Mode="stream"))
    put(disk, "groups/a/b/w.json", saved("a/b", "w"))  # or the group b/w of the queue a
    put(disk, "groups/a/v.json.tmp", saved("a", "v"))
    put(disk, "groups/a/.tailrace/v.json", saved("a", "v"))
    assert find_groups(disk, "/s", "a") == {"w": "queue", "w@images/#": "stream"}
    assert find_groups(disk, "/s", "a/b") == {"w": "queue"}
    assert group_of(disk, "a", "b/w").load(None) is None
    assert group_of(disk, "a/b", "w").load(None) is not None
    assert not caplog.records
    put(disk, "groups/a/elsewhere.json", saved("a", "w2"))
    put(disk, "groups/a/dots.json", saved("a", "../../x"))
    put(disk, "groups/a/bell.json", saved("a", "\a"))
    put(disk, "groups/a/torn.json", saved("a", "torn")[:-5])
    assert find_groups(disk, "/s", "a") == {"w": "queue", "w@images/#": "stream"}
    assert len(caplog.records) == 4


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "../w",
        "a/../../../w",
        "a/..",
        "/etc/w",
        "a//w",
        "a/",
        ".tailrace",
        "a/.tailrace/w",
    ],
)
def test_names_never_lead_out_of_the_root(name: str, tmp_path: Path) -> None:
    root = tmp_path / "one" / "two" / "root"
    consumers = root / "queues" / "orders" / "consumers"
    for end in (consumers / "a" / ".tailrace", consumers / ".tailrace", root / "groups" / "orders"):
        (end / "a").mkdir(parents=True)
    for folder in (tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())):
        if folder not in (consumers, root / "groups" / "orders", consumers / "a"):
            (folder / "ops.log").write_text('{"t":1,"o":6,"c":"c","ts":1}\n')
        for file in ("w.json", "...json", ".tailrace.json"):
            (folder / file).write_text(saved(group_id=name))
    fs = OsFileSystem()
    files = sorted(tmp_path.rglob("*"))
    for queue, group_id in ((name, "w"), ("orders", name), (name, name)):
        group = group_of(fs, queue, group_id, root=str(root))
        assert group.load(None) is None
        group.export(Snapshot({"cursor": 1, "committed": 1}, {}))
        group.forget()
    assert find_groups(fs, str(root), name) == {}
    assert sorted(tmp_path.rglob("*")) == files


def test_a_file_in_the_place_of_a_folder_is_nothing(tmp_path: Path) -> None:
    fs = OsFileSystem()
    (tmp_path / "queues" / "orders" / "consumers").mkdir(parents=True)
    (tmp_path / "queues" / "orders" / "consumers" / "w").touch()
    (tmp_path / "groups" / "orders" / "v.json").mkdir(parents=True)
    for group_id in ("w", "w/x", "v"):
        assert group_of(fs, "orders", group_id, root=str(tmp_path)).load(None) is None
    assert find_groups(fs, str(tmp_path), "orders") == {}


def test_our_own_folder_of_an_escaped_name_is_not_another_group() -> None:
    disk = SimulatedDisk()
    folder = "/s/queues/orders/consumers/w@images%2F#"
    disk.make_dirs(folder)
    snapshots = Snapshots(disk, folder, "w@images/#")
    snapshots.write(0, Snapshot(*Ledger(7).dump()), NOW_MS, sync=True, all_shards=True)
    snapshots.install(0)
    assert group_of(disk, "orders", "w@images%2F#").load(None) is None


# --- what we leave --------------------------------------------------------------------------


def ledger_with(cursor: int, pending: dict[int, dict[str, Any]]) -> Snapshot:
    ledger = Ledger.load({"cursor": cursor, "epoch": 3, "delivered": 50, "acked": 40}, pending)
    return Snapshot(*ledger.dump())


def leave(disk: SimulatedDisk, snapshot: Snapshot, *, mode: Mode = "queue") -> Snapshot:
    """Close a group: what is left is what a later one finds."""
    folder = "/s/queues/orders/consumers/w"
    disk.make_dirs(folder)
    snapshots = Snapshots(disk, folder, "w")
    snapshots.write(4, snapshot, NOW_MS, sync=True, all_shards=True)
    snapshots.install(4)
    put(disk, "queues/orders/consumers/w/ops.log", "")
    group_of(disk, mode=mode).export(snapshot)
    return snapshots.load(4)


def test_the_bytes_of_what_we_leave() -> None:
    disk = SimulatedDisk()
    entries = {
        6: {"c": "c2", "n": 3, "s": WAITING, "u": 99},
        2: {"c": "<c&1>", "n": 1, "s": LEASED, "u": 5},
        4: {"c": "<c&1>", "n": 0},
    }
    group_of(disk).export(ledger_with(9, entries))
    body = rb"""{
  "version": 2,
  "state": {
    "ID": "w",
    "QueueName": "orders",
    "Pattern": "",
    "Mode": "queue",
    "AutoCommit": true,
    "Cursor": {
      "Cursor": 9,
      "Committed": 2
    },
    "PEL": {
      "\u003cc\u00261\u003e": [
        {
          "Offset": 2,
          "ConsumerID": "\u003cc\u00261\u003e",
          "ClaimedAt": "2026-11-15T19:18:29.77Z",
          "DeliveryCount": 1
        },
        {
          "Offset": 4,
          "ConsumerID": "\u003cc\u00261\u003e",
          "ClaimedAt": "2026-11-15T19:18:29.77Z",
          "DeliveryCount": 0
        }
      ],
      "c2": [
        {
          "Offset": 6,
          "ConsumerID": "c2",
          "ClaimedAt": "2026-11-15T19:18:29.77Z",
          "DeliveryCount": 3
        }
      ]
    },
    "Consumers": {},
    "CreatedAt": "2026-11-15T19:18:29.77Z",
    "UpdatedAt": "2026-11-15T19:18:29.77Z"
  },
  "saved_at": 1794770309770
}"""
    seal = f',\n  "tailrace": {{\n    "crc32c": {crc32c(body)}\n  }}\n}}'
    assert disk.read("/s/groups/orders/w.json") == body[:-2] + seal.encode()
    assert disk.unsynced() == []


def test_what_we_leave_says_the_same_as_what_we_have() -> None:
    disk = SimulatedDisk()
    entries = {
        2: {"c": "a", "n": 1, "s": LEASED, "u": 5},
        6: {"c": "b", "n": 3, "s": DYING, "u": 9},
    }
    exported = leave(disk, ledger_with(9, entries))
    assert group_of(disk).load(exported) is None
    for lost in ("groups/orders/w.json", "queues/orders/consumers/w/state.json"):
        path = f"/s/{lost}"
        kept = disk.read(path)
        disk.unlink(path)
        found = load(disk)
        assert found.state["cursor"] == 9
        assert found.state["committed"] == 2
        assert counts_of(found) == {2: 1, 6: 3}
        disk.put(path, kept)


def test_of_a_stream_fluxmq_gets_what_was_committed() -> None:
    disk = SimulatedDisk()
    ledger = StreamLedger(5)
    ledger.apply({"t": "take", "c": "c1", "f": 5, "x": 9, "n": 4})
    put(disk, "groups/orders/w.json", saved(Mode="stream", AutoCommit=False))
    exported = leave(disk, Snapshot(*ledger.dump()), mode="stream")
    state = json.loads(disk.read("/s/groups/orders/w.json"))["state"]
    assert state["Mode"] == "stream"
    assert state["AutoCommit"] is False  # as it was found
    assert state["CreatedAt"] == "2026-11-15T19:18:29.768055613Z"
    assert state["Cursor"] == {"Cursor": 5, "Committed": 5}
    assert group_of(disk, mode="stream").load(exported) is None
    put(disk, "groups/orders/w.json", saved(cursor=8, committed=6, Mode="stream"))
    found = group_of(disk, mode="stream").load(exported)
    assert found is not None
    ledger = StreamLedger.load(found.state)
    assert (ledger.cursor, ledger.committed, ledger.taken) == (6, 6, {})
    assert (ledger.delivered, ledger.epoch) == (4, 1)


@pytest.mark.parametrize(
    ("queue", "group_id"), [("a/b", "w"), ("a", "w@x/#"), (".a", "w"), ("a", "%")]
)
def test_names_that_need_an_escape_are_not_left_for_fluxmq(queue: str, group_id: str) -> None:
    disk = SimulatedDisk()
    group_of(disk, queue, group_id).export(ledger_with(9, {}))
    assert disk.files() == []


def test_a_group_whose_name_needs_an_escape_is_taken_over_once() -> None:
    disk = SimulatedDisk()
    put(disk, "groups/orders/w@a/#.json", saved(group_id="w@a/#", cursor=900))
    group = group_of(disk, "orders", "w@a/#")
    assert group.load(None) is not None
    assert group.load(ledger_with(2, {})) is None


def test_of_a_queue_that_is_used_where_fluxmq_had_it_the_operations_still_count() -> None:
    disk = SimulatedDisk()
    put(disk, "queues/$dlq/orders/segments/00000000000000000000.seg", b"")
    put(disk, "groups/$dlq/orders/w.json", saved("$dlq/orders", cursor=3, pending={1: 1}))
    group = group_of(disk, "$dlq/orders", "w")
    exported = ledger_with(5, {})
    put(disk, "queues/$dlq/orders/consumers/w/ops.log", "")
    assert group.load(exported) is None  # the file in groups is as old as it was
    put(disk, "queues/$dlq/orders/consumers/w/ops.log", '{"t":1,"o":5,"c":"c","ts":1}\n')
    found = group.load(exported)
    assert found is not None
    assert (found.state["cursor"], counts_of(found)) == (6, {5: 1})
    # Of a stream the operations do not say enough.
    assert group_of(disk, "$dlq/orders", "w", mode="stream").load(exported) is None


# --- FluxMQ was there since -----------------------------------------------------------------


def flux_rewrites(disk: SimulatedDisk, change: Callable[[dict[str, Any]], None]) -> None:
    """It reads the file in `groups`, keeps what it knows, and writes that."""
    document = json.loads(disk.read("/s/groups/orders/w.json"))
    document.pop("tailrace", None)
    change(document["state"])
    put(disk, "groups/orders/w.json", json.dumps(document, indent=2))


def test_a_heartbeat_of_fluxmq_changes_nothing() -> None:
    disk = SimulatedDisk()
    entries = {
        2: {"c": "a", "n": 1, "s": LEASED, "u": 5, "a": 4, "k": 1},
        3: {"c": "a", "n": 0, "s": CLAIMED, "u": 5, "key": 77},
        5: {"c": "b", "n": 2, "s": PARKED, "key": 77},
        6: {"c": "b", "n": 3, "s": DYING, "u": 9, "e": "why"},
        7: {"c": "b", "n": 3, "s": WAITING, "u": 9, "e": "why"},
    }
    exported = leave(disk, ledger_with(9, entries))
    flux_rewrites(disk, lambda state: None)
    found = group_of(disk).load(exported)
    assert found is not None
    ledger = Ledger.load(found.state, found.entries)
    assert (ledger.cursor, ledger.epoch, ledger.delivered, ledger.acked) == (9, 4, 50, 40)
    leases = {
        o: (x.state, x.until, x.attempt, x.count, x.strikes) for o, x in ledger.pending.items()
    }
    assert leases == {
        2: (FREE, 0, 4, 1, 1),  # whoever had it is gone
        3: (FREE, 0, 1, 0, 0),
        5: (PARKED, 0, 1, 2, 0),
        6: (DYING, 9, 1, 3, 0),
        7: (WAITING, 9, 1, 3, 0),
    }
    assert ledger.pending[6].error == "why"
    assert ledger.has_line(77)


def test_what_fluxmq_did_since_is_taken_over() -> None:
    disk = SimulatedDisk()
    exported = leave(disk, ledger_with(9, {2: {"c": "a", "n": 1}, 6: {"c": "b", "n": 3}}))
    put_ops(
        disk,
        '{"t":5,"o":6,"c":"c9","ts":1}',
        '{"t":1,"o":9,"c":"c9","ts":1}',
        '{"t":1,"o":10,"c":"c9","ts":1}',
        '{"t":2,"o":9,"ts":1}',
        '{"t":2,"o":2,"ts":1}',  # perhaps nobody meant this one
    )
    for _ in range(2):
        found = group_of(disk).load(exported)
        assert found is not None
        assert found.state["cursor"] == 11
        assert counts_of(found) == {2: 1, 6: 4, 10: 1}
        assert found.entries[6]["c"] == "c9"
        flux_rewrites(disk, lambda state: state["Cursor"].update(Cursor=11, Committed=10))


def test_what_fluxmq_compacted_since_is_taken_over() -> None:
    disk = SimulatedDisk()
    leave(disk, ledger_with(9, {2: {"c": "a", "n": 1}, 6: {"c": "b", "n": 3}}))
    put_snapshot(disk, 12, {6: 3, 11: 1}, floor=5)
    flux_rewrites(disk, lambda state: state.update(PEL={}))
    assert Snapshots(disk, "/s/queues/orders/consumers/w", "w").exported() is None
    assert load(disk).state["cursor"] == 12
    assert counts_of(load(disk)) == {6: 3, 11: 1}


def test_damage_to_what_we_left_is_found(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    exported = leave(disk, ledger_with(9, {2: {"c": "a", "n": 1}}))
    path = "/s/groups/orders/w.json"
    whole = disk.read(path)
    for position in range(len(whole)):
        disk.put(path, whole[:position])
        assert group_of(disk).load(exported) is None
    assert len(caplog.records) == len(whole)
    for position in range(len(whole)):
        disk.put(path, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        found = group_of(disk).load(exported)
        if found is not None:  # as if FluxMQ had been there: what it says is as it was
            assert position >= whole.index(b"tailrace")
            assert (found.state["cursor"], counts_of(found)) == (9, {2: 1})
    disk.put(path, whole)
    state = "/s/queues/orders/consumers/w/state.json"
    disk.put(state, disk.read(state).replace(b'"Cursor":9', b'"Cursor":90'))
    assert load(disk).state["cursor"] == 9


def test_a_damaged_part_of_what_we_left_is_still_reported_as_such() -> None:
    disk = SimulatedDisk()
    leave(disk, ledger_with(20, {2: {"c": "a", "n": 1}, 11: {"c": "a", "n": 1}}))
    put(disk, "queues/orders/consumers/w/pel_2.json", "{}")
    exported = Snapshots(disk, "/s/queues/orders/consumers/w", "w").load(4)
    flux_rewrites(disk, lambda state: state["PEL"].clear())
    found = group_of(disk).load(exported)
    assert found is not None
    assert found.damaged == (2,)
    assert found.state["committed"] == 2
    assert list(found.entries) == [11]


def test_a_group_that_was_removed_is_not_found_again() -> None:
    disk = SimulatedDisk()
    put(disk, "groups/orders/w@a/#.json", saved(group_id="w@a/#", cursor=900))
    put(disk, "queues/orders/consumers/w@a/#/ops.log", '{"t":1,"o":6,"c":"c","ts":1}\n')
    put(disk, "groups/orders/w.json", saved(group_id="w"))
    group_of(disk, "orders", "w@a/#").forget()
    group_of(disk, "orders", "w").forget()
    group_of(disk, "orders", "w").forget()
    assert group_of(disk, "orders", "w@a/#").load(None) is None
    assert disk.files() == []


# --- with a group, and FluxMQ's own files ---------------------------------------------------


class ClassicState(Group[Ledger]):
    """As much of a group as has to do with its files."""

    def _make(self) -> Ledger:
        return Ledger()

    def _load(self, snapshot: Snapshot) -> Ledger:
        return Ledger.load(snapshot.state, snapshot.entries)

    def do(self, *ops: dict[str, Any]) -> None:
        with self._turn:
            self.commit(*ops)


def open_group(root: Path) -> ClassicState:
    folder = root / "queues" / "orders" / "consumers" / "workers"
    foreign = group_of(OsFileSystem(), "orders", "workers", root=str(root))
    return ClassicState(
        GroupFiles(
            OsFileSystem(),
            str(folder),
            "workers",
            Clock(),
            is_sync=True,
            is_durable=True,
            compact_after=1000,
            foreign=foreign,
        )
    )


def copy_of_fixture(kind: str, tmp_path: Path) -> Path:
    root = tmp_path / "queue"
    shutil.copytree(FIXTURES / kind, root)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root


PENDING = [2, 3, 4, 6, 7, 8, 9, 10, 11]  # 2 was dropped by mistake in one of the records

needs_fixtures = pytest.mark.skipif(not FIXTURES.exists(), reason="FluxMQ's files are not here")


@needs_fixtures
@pytest.mark.parametrize("kind", ["none", "s2"])
def test_groups_that_fluxmq_wrote(kind: str, tmp_path: Path, caplog: Any) -> None:
    root = copy_of_fixture(kind, tmp_path)
    fs = OsFileSystem()
    assert find_groups(fs, str(root), "orders") == {"workers": "queue"}
    assert find_groups(fs, str(root), "events") == {"readers": "stream"}
    found = group_of(fs, "orders", "workers", root=str(root)).load(None)
    assert found is not None
    assert (found.state["cursor"], found.state["committed"]) == (12, 2)
    assert list(found.entries) == PENDING
    assert all(entry == {"c": "c1", "n": 1, "s": FREE} for entry in found.entries.values())
    found = group_of(fs, "events", "readers", mode="stream", root=str(root)).load(None)
    assert found is not None
    assert found.state["cursor"] == 0
    assert not caplog.records


@needs_fixtures
@pytest.mark.parametrize("kind", ["none", "s2"])
def test_a_group_goes_from_fluxmq_to_us_and_back(kind: str, tmp_path: Path) -> None:
    root = copy_of_fixture(kind, tmp_path)
    folder = root / "queues" / "orders" / "consumers" / "workers"
    group = open_group(root)
    assert list(group.state.pending) == PENDING
    group.do({"t": "ack", "r": [2, 3]})
    group.close()

    # What FluxMQ finds.
    assert (folder / "ops.log").read_bytes() == b""
    state = json.loads((folder / "state.json").read_bytes())["state"]
    assert (state["AckFloor"], state["Cursor"]) == (5, 12)
    shards = [json.loads((folder / f"pel_{n}.json").read_bytes()) for n in range(SHARDS)]
    assert sorted(int(o) for shard in shards for o in shard["entries"]) == PENDING[3:]
    file = root / "groups" / "orders" / "workers.json"
    document = json.loads(file.read_bytes())
    assert document["state"]["Cursor"] == {"Cursor": 12, "Committed": 6}
    assert document["state"]["CreatedAt"].startswith("2026-11-15T19:18:29.")

    # Nothing has happened; then FluxMQ delivers and settles, and is killed.
    for _ in range(2):
        group = open_group(root)
        assert list(group.state.pending) == PENDING[3:]
        group.close()
    with (folder / "ops.log").open("a") as log:
        log.write('{"t":1,"o":12,"c":"c1","ts":1}\n{"t":8,"o":13,"ts":1}\n{"t":1,"o":1')
    group = open_group(root)
    assert (group.state.cursor, list(group.state.pending)) == (13, [*PENDING[3:], 12])
    group.do({"t": "ack", "r": [6, 7]})
    group.close()
    assert json.loads(file.read_bytes())["state"]["Cursor"] == {"Cursor": 13, "Committed": 13}
    group = open_group(root)
    assert (group.state.cursor, group.state.pending) == (13, {})
    group.close()


@needs_fixtures
@pytest.mark.parametrize("kind", ["none", "s2"])
def test_a_store_of_fluxmqs_is_opened_and_settled_on(kind: str, tmp_path: Path) -> None:
    root = copy_of_fixture(kind, tmp_path)
    # A group with a filter, which FluxMQ keeps in a folder in a folder.
    nested = root / "queues" / "orders" / "consumers" / "w@eu" / "#"
    nested.mkdir(parents=True)
    (nested / "ops.log").write_text('{"t":1,"o":1,"c":"c1","ts":1}\n{"t":2,"o":1,"ts":1}\n')
    (root / "groups" / "orders" / "w@eu").mkdir()
    file = root / "groups" / "orders" / "w@eu" / "#.json"
    file.write_text(saved("orders", "w@eu/#", cursor=1, Pattern="eu/#"))
    with tailrace.open(tmp_path, clock=Clock(), upkeep=False) as store:
        orders = store.queue("orders")
        with orders.consumer("workers") as consumer:
            messages = consumer.receive(100)
            offsets = [message.offset for message in messages]
            assert offsets[: len(PENDING)] == PENDING
            assert offsets[len(PENDING) :] == list(range(12, orders.log.end_offset))
            assert [message.delivery_count for message in messages[:10]] == [2] * 9 + [1]
            for message in messages[1:]:
                message.ack()
        assert orders.group("w", "eu/#").progress() == (2, 2)
        events = store.stream("events")
        with events.consumer("readers", auto_commit=False) as reader:
            received = reader.receive(2)
            reader.commit()
    with tailrace.open(tmp_path, clock=Clock(), upkeep=False) as store:
        assert [pending.offset for pending in store.queue("orders").pending("workers")] == [2]
        assert store.stream("events").group("readers").progress()[1] == len(received)
    document = json.loads((root / "groups" / "orders" / "workers.json").read_bytes())
    assert document["state"]["Cursor"]["Committed"] == 2
    assert list(map(len, document["state"]["PEL"].values())) == [1]
