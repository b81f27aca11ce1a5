"""`tailrace dump`, `verify` and `recover` on the files of a store, whole and damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.log.fs import OsFileSystem
from tailrace.queue.offline.export import export_groups
from tests.cli.conftest import Run, flip, lines
from tests.cli.conftest import tailrace as in_a_process
from tests.cli.test_dump import of_type
from tests.project import ROOT
from tests.queue.support import another_process

FIXTURES = ROOT.parent / "shared" / "fixtures" / "fluxmq"
PROGRAM = """
import os, sys, tailrace

store = tailrace.open(sys.argv[1], upkeep=False)
orders = store.queue("orders", compression="none")
orders.publish_many([(f"k{i}", f"value {i}") for i in range(12)])
consumer = orders.consumer("w")
first, second, third, *others = consumer.receive(9)
consumer.ack([first, *others[-2:]])
second.nack(delay=3600, error="why not")
third.release()
events = store.stream("events/all")
events.publish_many([f"event {i}" for i in range(5)])
events.consumer("r").receive(3)
if sys.argv[2:] == ["killed"]:
    os._exit(0)
store.close()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores: of one the process was killed."""
    folder = tmp_path_factory.mktemp("stores")
    for end in ("closed", "killed"):
        command = [sys.executable, "-c", PROGRAM, str(folder / end), end]
        subprocess.run(command, check=True, timeout=60)
    return folder


@pytest.fixture
def closed(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "closed", tmp_path / "closed")
    return tmp_path / "closed"


@pytest.fixture
def killed(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "killed", tmp_path / "killed")
    return tmp_path / "killed"


def group(store: Path) -> Path:
    return store / "queue/queues/orders/consumers/w"


def stream_group(store: Path) -> Path:
    return store / "queue/queues/events%2Fall/consumers/r"


# --- dump: groups ---------------------------------------------------------------------------


def test_a_journal(run: Run, killed: Path) -> None:
    path = group(killed) / "ops.log"
    file, *items, space, end = lines(run("dump", "--json", path))
    assert file == {"type": "file", "file": str(path), "size": path.stat().st_size}
    assert [item["op"] for item in items] == [
        "begin",
        "boot",
        "join",
        "claim",
        "ack",
        "nack",
        "release",
    ]
    assert {item["checksum"] for item in items} == {"ok"}
    position = 0
    for item, line in zip(items, path.read_bytes().split(b"\n"), strict=False):
        assert item["position"] == position
        assert item["contents"] == {
            key: value for key, value in json.loads(line).items() if key != "k"
        }
        position += len(line) + 1
    assert (space["type"], space["position"]) == ("space", position)
    assert end == {"type": "ops", "file": str(path), "ops": 7, "damages": 0}
    text = run("dump", path).stdout
    assert "  ok  begin  format 1  generation 0  id " in text
    assert "handed 1  from 0  cursor 9  of 0 to 8\n" in text
    assert "ok  ack  of 0, 7 to 8\n" in text
    assert 'error "why not"' in text
    assert text.endswith("room for what comes\n7 operations\n")


def test_a_journal_of_a_stream(run: Run, killed: Path) -> None:
    text = run("dump", stream_group(killed) / "ops.log").stdout
    assert "from 0  to 3  messages 3\n" in text


def test_every_byte_of_a_journal_is_shown(run: Run, killed: Path) -> None:
    """Damage is shown where it is, and never an error."""
    path = group(killed) / "ops.log"
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data)
    for position in range(0, len(data), 5):
        flip(path, position)
        result = run("dump", "--json", path)
        assert result.exit_code == 0
        bad = [item for item in of_type(lines(result), "op") if item["checksum"] == "bad"]
        assert len(bad) == 1, position
        assert bad[0]["position"] <= position
        flip(path, position)
    flip(path, 3)
    assert "!! damaged: " in run("dump", path).stdout
    assert run("dump", path).stdout.endswith("6 operations, 1 damaged line\n")


def test_a_journal_that_is_torn(run: Run, killed: Path) -> None:
    path = group(killed) / "ops.log"
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-4] + bytes(10))
    *_, torn, space, end = lines(run("dump", "--json", path))
    assert (torn["checksum"], torn["torn"]) == ("bad", True)
    assert torn["text"].startswith('{"k":"')
    assert (space["position"], space["end"]) == (len(data) - 4, len(data) + 6)
    assert end["damages"] == 1
    assert "!! not whole: " in run("dump", path).stdout
    last = data.rindex(b"\n", 0, -1) + 1
    path.write_bytes(data[:last] + bytes(20) + data[last:])
    *_, hole, op, end = lines(run("dump", "--json", path))
    assert (hole["type"], hole["position"], hole["end"]) == ("hole", last, last + 20)
    assert (op["position"], op["checksum"]) == (last + 20, "ok")
    assert "!! zeros up to byte" in run("dump", path).stdout


def test_a_part_of_a_journal(run: Run, killed: Path) -> None:
    items = lines(run("dump", "--json", "--limit", 2, group(killed) / "ops.log"))
    assert [item["op"] for item in of_type(items, "op")] == ["begin", "boot"]


def test_journals_under_other_names(run: Run, killed: Path) -> None:
    path = group(killed) / "ops.log"
    for name in ("ops.log.tmp", ".tailrace/damaged-3"):
        other = shutil.copy(path, group(killed) / name)
        assert of_type(lines(run("dump", "--json", other)), "ops")[0]["ops"] == 7


def test_an_empty_journal(run: Run, closed: Path) -> None:
    items = lines(run("dump", "--json", group(closed) / "ops.log"))
    assert [item["type"] for item in items] == ["file", "ops"]
    assert run("dump", group(closed) / "ops.log").stdout.endswith("0 operations\n")


def test_a_snapshot(run: Run, closed: Path) -> None:
    path = group(closed) / "state.json"
    _, document = lines(run("dump", "--json", path))
    assert document["checksum"] == "ok"
    assert document["contents"]["tailrace"]["cursor"] == 9
    assert "crc32c" not in document["contents"]
    assert "checksum ok" in run("dump", path).stdout
    path = group(closed) / "pel_1.json"
    _, document, entry = lines(run("dump", "--json", path))
    assert (document["checksum"], document["contents"]["shard_id"]) == ("ok", 1)
    assert (entry["type"], entry["offset"], entry["state"]) == ("pending", 1, "waiting")
    assert entry["contents"]["e"] == "why not"
    text = run("dump", path).stdout
    assert "  1  waiting  " in text
    assert "  delivered 1  attempt 1  until " in text
    assert len(lines(run("dump", "--json", "--start", 2, path))) == 2
    path.write_text('{"version":1,"entries":{"1":7,"9":{"s":99},"x":{}}}')
    items = of_type(lines(run("dump", "--json", "--limit", 2, path)), "pending")
    assert [item["offset"] for item in items] == [1, 9]
    assert "  1  !! 7\n  9  s 99\n" in run("dump", path).stdout


@pytest.mark.parametrize("name", ["state.json", "pel_1.json"])
def test_every_byte_of_a_snapshot_is_shown(name: str, run: Run, closed: Path) -> None:
    path = group(closed) / name
    for position in range(0, path.stat().st_size, 3):
        flip(path, position)
        result = run("dump", "--json", path)
        assert result.exit_code == 0
        (document,) = of_type(lines(result), "document")
        assert document["checksum"] == "bad" or "fault" in document, position
        assert "!! " in run("dump", path).stdout
        flip(path, position)


def test_a_file_in_groups(run: Run, closed: Path) -> None:
    path = closed / "queue/groups/orders/w.json"
    _, document = lines(run("dump", "--json", path))
    assert document["checksum"] == "ok"
    assert document["contents"]["state"]["Cursor"] == {"Cursor": 9, "Committed": 1}
    assert "tailrace" not in document["contents"]
    text = path.read_text().replace('"Cursor": 9', '"Cursor": 8')
    path.write_text(text)
    _, document = lines(run("dump", "--json", path))
    assert (document["checksum"], document["fault"]) == ("bad", "its checksum is wrong")
    contents = json.loads(text)
    del contents["tailrace"]
    # A group may have any name; where the file is counts.
    for name in ("state", "pel_0", "queues", "nested/x"):
        other = closed / f"queue/groups/orders/{name}.json"
        other.parent.mkdir(exist_ok=True)
        other.write_text(json.dumps(contents))
        _, document = lines(run("dump", "--json", other))
        assert (document["checksum"], document["contents"]) == ("none", contents)
    other.write_text("{")
    _, document = lines(run("dump", "--json", other))
    assert "it is not JSON" in document["fault"]
    assert document["text"] == "{"


# --- dump: the store ------------------------------------------------------------------------


def test_the_registry(run: Run, closed: Path) -> None:
    path = closed / "queue/config/queues.json"
    _, document, *queues = lines(run("dump", "--json", path))
    assert document["checksum"] == "none"
    assert "fault" not in document
    assert [queue["name"] for queue in queues] == ["orders", "events/all"]
    assert queues[1]["contents"]["Type"] == "stream"
    assert len(queues[0]["contents"]["Tailrace"]["incarnation"]) == 32
    text = run("dump", path).stdout
    assert '  orders\n    Topics: ["$queue/orders/#"]\n' in text
    assert len(of_type(lines(run("dump", "--json", "--limit", 1, path)), "queue")) == 1
    path.write_text('{"version": 2, "configs": [{"Name": 3}, 4]}')
    items = lines(run("dump", "--json", path))
    assert "a queue without a Name" in items[1]["fault"]
    assert [item["name"] for item in of_type(items, "queue")] == [3, None]
    assert "  None  !! 4" in run("dump", path).stdout
    path.write_text("{")
    assert "it is not JSON" in lines(run("dump", "--json", path))[1]["fault"]


def test_the_board(run: Run, closed: Path) -> None:
    path = closed / "queue/.tailrace/board"
    _, board = lines(run("dump", "--json", path))
    assert board["generation"] % 2 == 0
    assert board["changing"] is False
    path.write_bytes((9).to_bytes(8, "little"))
    assert lines(run("dump", "--json", path))[1]["changing"] is True
    assert "generation 9: the queues are being changed" in run("dump", path).stdout
    path.write_bytes(b"")
    assert "too short" in run("dump", path).stdout


def test_marks(run: Run, killed: Path) -> None:
    (alive,) = (group(killed) / ".tailrace").glob("alive-*")
    queue = killed / "queue/queues/orders/.tailrace"
    queue.mkdir()
    (queue / "attended").write_text("left\n")
    (queue / "deleted").write_text("0123")
    found = [
        alive,
        *(group(killed) / ".tailrace" / name for name in ("bell", "lock", "lock.next", "open")),
        *(killed / "queue/.tailrace" / name for name in ("lock", "members")),
        queue / "attended",
        queue / "deleted",
    ]
    for path in found:
        _, mark = lines(run("dump", "--json", path))
        assert mark["type"] == "mark"
        assert mark["what"]
        assert mark["text"] == path.read_text()
        text = run("dump", path).stdout
        assert "    modified: 2" in text
        assert ("text: '" in text) == bool(mark["text"])


def test_the_board_of_a_group_is_not_that_of_the_store(run: Run, killed: Path) -> None:
    _, mark = lines(run("dump", "--json", group(killed) / ".tailrace/board"))
    assert "turn" in mark["what"]
    _, board = lines(run("dump", "--json", killed / "queue/.tailrace/board"))
    assert board["type"] == "board"


def test_files_that_are_nobodys(run: Run, closed: Path, log: Path) -> None:
    for path in (closed / "notes.json", closed / "queue/.tailrace/what", closed / "lock"):
        path.touch()
        result = run("dump", path)
        assert result.exit_code == 2
        assert "not a file of a log or a store by its name" in result.stderr
    # A log's own have the same names, and are no marks of a store.
    assert lines(run("dump", "--json", log / ".tailrace/members"))[1]["type"] == "member"
    assert lines(run("dump", "--json", log / ".tailrace/board"))[1]["type"] == "page"


@pytest.mark.skipif(not FIXTURES.exists(), reason="FluxMQ's files are not here")
def test_files_of_fluxmq(run: Run) -> None:
    store = FIXTURES / "none"
    path = store / "queues/orders/consumers/workers/ops.log"
    items = of_type(lines(run("dump", "--json", path)), "op")
    assert {item["checksum"] for item in items} == {"none"}
    assert [item["op"] for item in items[:3]] == ["deliver", "cursor", "deliver"]
    assert '@0         deliver  offset 0  consumer "c1"  time 2026-' in run("dump", path).stdout
    document = lines(run("dump", "--json", store / "groups/orders/workers.json"))[1]
    assert document["checksum"] == "none"
    assert len(of_type(lines(run("dump", "--json", store / "config/queues.json")), "queue")) == 3
    result = run("verify", store)
    assert result.exit_code == 0
    assert "3 queues, 1 group, " in result.stdout


# --- verify ---------------------------------------------------------------------------------


def test_a_sound_store(run: Run, closed: Path) -> None:
    for path in (closed, closed / "queue"):
        result = run("verify", path)
        assert result.exit_code == 0
        events, orders, store, verdict = result.stdout.splitlines()
        assert events == "events/all: 5 records in 1 batch; offsets 0 to 4, 1 group"
        assert orders == "orders: 12 records in 1 batch; offsets 0 to 11, 1 group"
        assert store.startswith(f"{closed / 'queue'}: 2 queues, 2 groups, ")
        assert verdict == "no problems"
    *_, report = items = lines(run("verify", "--json", closed))
    assert [item["type"] for item in items] == ["queue", "group", "queue", "group", "report"]
    assert items[3] == {
        "type": "group",
        "queue": "orders",
        "id": "w",
        "cursor": 9,
        "committed": 1,
        "pending": 6,
    }
    assert (items[2]["name"], items[2]["kind"], items[2]["records"]) == ("orders", "classic", 12)
    assert report["ok"] is True
    assert (report["queues"], report["groups"], report["records"]) == (2, 2, 17)


def test_a_store_whose_process_was_killed(run: Run, killed: Path) -> None:
    result = run("verify", killed)
    assert result.exit_code == 0
    assert "is left of a process that was killed" in result.stdout
    assert "no problems, " in result.stdout


def test_problems_of_a_store(run: Run, closed: Path) -> None:
    flip(group(closed) / "state.json", 20)
    flip(next((closed / "queue/queues/orders/segments").glob("*.seg")), 60)
    result = run("verify", closed)
    assert result.exit_code == 1
    assert "queues/orders/consumers/w:\nproblem  state.json  is damaged" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(f"tailrace recover {closed / 'queue'}")
    assert max(map(len, result.stdout.splitlines()[:-4])) <= 100
    items = lines(run("verify", "--json", closed))
    paths = [item["path"] for item in of_type(items, "finding")]
    assert "queues/orders/segments/00000000000000000000.seg" in paths
    assert "queues/orders/consumers/w/state.json" in paths
    assert items[-1]["ok"] is False
    assert items[-1]["problems"] >= 2


def test_a_store_in_use(run: Run, closed: Path) -> None:
    with tailrace.open(closed) as store, store.queue("orders").consumer("w") as consumer:
        consumer.receive(1)
        done = in_a_process("verify", closed)
    assert done.returncode == 0, done.stdout
    assert "alive-" not in done.stdout
    assert done.stdout.splitlines()[-1] == (
        f"pid {os.getpid()} on {os.uname().nodename} is writing to it"
    )


def test_the_log_of_a_queue_alone(run: Run, closed: Path) -> None:
    flip(group(closed) / "state.json", 20)
    result = run("verify", closed / "queue/queues/orders")
    assert result.exit_code == 0
    assert "12 records" in result.stdout


def test_a_queue_without_a_log(run: Run, tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "store") as store:
        store.queue("orders")
    assert run("verify", tmp_path / "store").stdout.endswith(
        "0 queues, 0 groups, 0 B\nno problems\n"
    )
    (tmp_path / "store/queue/queues/orders/consumers").mkdir(parents=True)
    assert "orders: no log\n" in run("verify", tmp_path / "store").stdout
    result = run("recover", tmp_path / "store")
    assert result.exit_code == 0
    assert "none of its queues has a log" in result.stderr


# --- recover --------------------------------------------------------------------------------


def test_recovering_the_logs_of_a_store(run: Run, closed: Path) -> None:
    result = run("recover", closed)
    assert result.exit_code == 0
    assert result.stdout.count("nothing to do") == 2
    segment = next((closed / "queue/queues/orders/segments").glob("*.seg"))
    flip(segment, 60)
    result = run("recover", closed)
    assert result.exit_code == 1
    assert f"tailrace recover --apply {segment.parent}" in result.stdout
    reports = of_type(lines(run("recover", "--json", closed)), "report")
    assert [report["actions"] > 0 for report in reports] == [False, True]
    assert run("recover", "--apply", closed).exit_code == 0
    assert run("verify", closed).exit_code == 0


def test_recovering_the_groups_that_a_killed_process_had_open(run: Run, killed: Path) -> None:
    root = killed / "queue"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    result = run("recover", killed)
    assert result.exit_code == 1
    assert "export  queues/orders/consumers/w/ops.log" in result.stdout
    assert f"tailrace recover --apply {root}" in result.stdout
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    actions = of_type(lines(run("recover", "--json", killed)), "action")
    assert [action["kind"] for action in actions] == ["export", "export"]

    assert run("recover", "--apply", killed).exit_code == 0
    state = json.loads((root / "groups" / "orders" / "w.json").read_bytes())["state"]
    assert state["Cursor"] == {"Cursor": 9, "Committed": 1}
    [pending] = state["PEL"].values()
    assert [entry["Offset"] for entry in pending] == [1, 2, 3, 4, 5, 6]
    folder = root / "queues" / "orders" / "consumers" / "w"
    assert (folder / "ops.log").read_bytes() == b""
    assert json.loads((folder / "state.json").read_bytes())["state"]["Cursor"] == 9
    for shard in range(8):
        assert (folder / f"pel_{shard}.json").exists()
    events = root / "queues" / "events%2Fall" / "consumers" / "r"
    assert (events / "state.json").exists()
    assert (events / "ops.log").read_bytes() == b""

    result = run("recover", killed)
    assert (result.exit_code, result.stdout.count("nothing to do")) == (0, 2)
    assert run("verify", killed).exit_code == 0
    with tailrace.open(killed, upkeep=False) as store:
        found = [(each.offset, each.consumer != "") for each in store.queue("orders").pending("w")]
        assert found == [(offset, True) for offset in range(1, 7)]
        reader = store.stream("events/all").consumer("r")
        assert [message.offset for message in reader.receive(9)] == [0, 1, 2]


def test_recovering_deletes_no_ephemeral_queue(run: Run, killed: Path) -> None:
    code = """
import os, sys, tailrace

store = tailrace.open(sys.argv[1], upkeep=False)
store.publish("plain", b"kept")
store.consumer("plain", "w").receive()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code, str(killed)], check=True, timeout=60)
    assert run("recover", "--apply", killed).exit_code == 0
    root = killed / "queue"
    assert json.loads((root / "groups" / "plain" / "w.json").read_bytes())["state"]["PEL"]
    assert list((root / "queues" / "plain" / "segments").glob("*.seg"))


def test_recovering_leaves_groups_to_those_who_have_them_open(run: Run, killed: Path) -> None:
    with tailrace.open(killed, upkeep=False) as store, another_process(killed) as other:
        orders = store.queue("orders")
        other.ask("globals().update(q=store.get('orders'), c=store.get('orders').consumer('w'))")
        assert other.ask("globals().update(m=c.receive()[0])") == "None"
        report = export_groups(OsFileSystem(), str(killed / "queue"), apply=True)
        assert ([action.path for action in report.actions], report.applied) == (
            ["queues/events%2Fall/consumers/r/ops.log"],
            True,
        )
        assert run("recover", "--apply", killed).exit_code == 2
        assert not (killed / "queue" / "groups" / "orders").exists()
        assert other.ask("m.ack()") == "None"
        assert len(orders.pending("w")) == 5
        other.kill()
    assert (killed / "queue" / "groups" / "orders" / "w.json").exists()
