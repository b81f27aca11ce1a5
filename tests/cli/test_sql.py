"""`tailrace sql`. Spark takes seconds to start, so most of it is asked for in one process."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

import tailrace
from tests.cli.conftest import Shell
from tests.project import NEEDS_JAVA
from tests.spark.lake.making import make_archive

T0 = 1_700_000_000_000


# Times in milliseconds that Spark has, and Python has only the last of.
FAR = {
    -62_135_596_800_001: "0000-12-31T23:59:59.999Z",
    -(2**63 // 1000): "-290308-12-21T19:59:05.225Z",
    (2**63 - 1) // 1000: "+294247-01-10T04:00:54.775Z",
    253_402_300_800_000: "+10000-01-01T00:00:00.000Z",
    10**15 - 1: "+33658-09-27T01:46:39.999Z",
    -1: "1969-12-31T23:59:59.999Z",
}


class Done(NamedTuple):
    code: int
    out: str
    err: str


# Runs command lines in one process, with one Spark, and says what each came to.
RUNNER = """
import json, sys
from click.testing import CliRunner
from tailrace.cli import main

done = {}
for name, line in json.load(sys.stdin).items():
    result = CliRunner().invoke(main, line)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    done[name] = result.exit_code, result.stdout, result.stderr
json.dump(done, sys.stdout)
"""

LINES = {
    "table": ["SELECT offset, key, value FROM orders ORDER BY offset"],
    "limited": ["SELECT offset FROM orders ORDER BY offset", "--limit", "2"],
    "json": ["SELECT * FROM orders ORDER BY offset", "--json"],
    "csv": ["SELECT value, offset, headers FROM orders ORDER BY offset", "--output", "csv"],
    "parquet": ["SELECT offset, value FROM orders", "--output", "parquet:new"],
    "again": ["SELECT 1", "--output", "parquet:new"],
    "failed": ["SELECT 1 / (offset - 1) FROM orders", "--output", "parquet:failed"],
    "count": ["SELECT count(*) AS n FROM ORDERS", "--json"],
    "archived": [
        "SELECT count(*) AS n, min(offset) AS first FROM old",
        *("--json", "--include-archive", "--archive", "old=../sql-archived"),
    ],
    "nothing archived": ["SELECT 1", "--archive", "orders=nope"],
    "archived of another": ["SELECT 1", "--archive", "orders=../sql-archived"],
    "no archive": ["SELECT 1", "--include-archive"],
    "another archive": ["SELECT 1", "--archive", "none=x"],
    "no pair": ["SELECT 1", "--archive", "archived"],
    "join": [
        (
            "WITH big AS (SELECT * FROM orders WHERE offset > 0)\n"
            "SELECT d.value, (SELECT max(offset) FROM orders) AS last, "
            "expires_at IS NULL AS lasts\n"
            "FROM `$dlq/orders` d WHERE EXISTS (SELECT 1 FROM big WHERE big.value = d.value)"
        ),
        "--json",
    ],
    "elsewhere": ["SELECT string(value) AS v FROM orders", "--json", "--store", "../sql-other"],
    "nowhere": ["SELECT 1", "--store", "nowhere"],
    "far": ["SELECT timestamp, expires_at FROM far ORDER BY offset", "--store", "../sql-other"],
    "far in csv": [
        "SELECT timestamp FROM far ORDER BY offset",
        *("--output", "csv", "--store", "../sql-other"),
    ],
    "far in json": [
        (
            "SELECT array(timestamp, null) a, map(date(timestamp), 1) m, "
            "named_struct('t', timestamp) s, timestamp + interval 1 microsecond AS t, "
            "if(offset < 9, null, named_struct('t', timestamp)) z FROM far ORDER BY offset"
        ),
        *("--json", "--store", "../sql-other", "--conf", "spark.sql.session.timeZone=UTC"),
    ],
    "inserted": ["INSERT INTO orders SELECT 'x' AS value"],
    "dropped": ["DROP TABLE orders"],
    "dropped if there": ["DROP VIEW IF EXISTS `events.eu`"],
    "renamed": ["ALTER TABLE Orders RENAME TO others"],
    "deleted": ["DELETE FROM orders o WHERE o.offset = 1"],
    "merged": [
        "MERGE INTO orders USING unused ON orders.key = unused.key WHEN MATCHED THEN DELETE"
    ],
    "dropped another": ["DROP TABLE IF EXISTS nothing"],
    "natural": ["SELECT count(*) AS n FROM orders NATURAL JOIN orders o", "--json"],
    "unused": ["SELECT * FROM unused", "--json"],
    "dotted": ["SELECT string(value) AS v FROM `events.eu`", "--json"],
    "undotted": ["SELECT * FROM events.eu"],
    "syntax": ["SELECT * FORM orders"],
    "column": ["SELECT offset,\n  nothing FROM orders"],
    "unknown": ["SELECT *\nFROM nothing"],
    "alike": ["SELECT * FROM twin"],
    "told apart": ["SELECT * FROM Twin", "--json", "--conf", "spark.sql.caseSensitive=true"],
    "twice": ["SELECT offset, offset FROM orders", "--json"],
    "values": [
        (
            "SELECT timestamp'2026-01-31 09:00:00' t, timestamp_ntz'2026-01-31 09:00:00' n, "
            "date'2026-01-31' d, double('NaN') f, 1.50 AS c, map(1, x'ff') m, null AS z"
        ),
        "--json",
    ],
    "describe": ["DESCRIBE orders"],
    "explained": ["EXPLAIN FORMATTED SELECT key FROM orders WHERE offset > 1"],
    "explained wrongly": ["EXPLAIN SELECT nothing FROM orders"],
    "explained nothing": ["EXPLAIN SELECT 1 FROM nothing"],
    "listed": ["SHOW TABLES", "--json"],
    "listed in part": ["SHOW TABLES LIKE 'o*'", "--json"],
    "made": ["CREATE TABLE made AS SELECT offset FROM orders"],
    "viewed": ["CREATE TEMPORARY VIEW seen AS SELECT offset FROM orders"],
    "viewed for others": ["CREATE OR REPLACE VIEW seen AS SELECT offset FROM orders"],
    "viewed files": ["CREATE TEMP VIEW seen USING parquet OPTIONS (path 'new')"],
    "view elsewhere": ["CREATE VIEW there.are.none AS SELECT 1"],
    "viewed on the way": [
        "BEGIN CREATE TEMP VIEW seen AS SELECT 7 n; SELECT n FROM seen; END",
        *("--conf", "spark.sql.scripting.enabled=true"),
    ],
    "header": [
        (
            "SELECT offset, get(filter(headers, h -> h.key = 'a'), 0).value AS a "
            "FROM orders ORDER BY offset"
        ),
        "--json",
    ],
    "damaged": ["SELECT sum(length(value)) FROM damaged"],
    "option": ["SELECT 1", "--output", "xml"],
    "conf": ["SELECT 1", "--conf", "x"],
    "both": ["SELECT 1", "--json", "--output", "csv"],
}

# Statements that name columns which have no say in what comes of them, and what that is.
DROPPED: dict[str, list[dict[str, object]]] = {
    "SELECT count(*) AS n FROM (SELECT key, value FROM orders)": [{"n": 3}],
    "SELECT count(*) AS n FROM orders WHERE value IS NOT NULL OR true": [{"n": 3}],
    "SELECT count(*) AS n FROM (SELECT * FROM orders ORDER BY value)": [{"n": 3}],
    "SELECT offset FROM orders WHERE 1 = 0 AND value = 'x'": [],
    "SELECT n FROM (SELECT count(*) AS n, max(value) AS m FROM orders)": [{"n": 3}],
    "SELECT o.offset FROM orders o WHERE EXISTS "
    "(SELECT headers FROM `$dlq/orders` d WHERE d.value = o.value)": [{"offset": 2}],
    "WITH t AS (SELECT key, value, headers FROM orders) SELECT count(*) AS n FROM t": [{"n": 3}],
    "SELECT count(*) AS n FROM orders o JOIN (SELECT key, value v FROM `$dlq/orders`) d "
    "ON o.key = d.key": [{"n": 2}],
    "SELECT typeof(value) AS t, typeof(headers) AS h FROM orders LIMIT 1": [
        {"t": "binary", "h": "array<struct<key:string,value:binary>>"}
    ],
    "SELECT count(*) AS n FROM orders GROUP BY key, 1 = 1 OR value = 'x' ORDER BY n": [
        {"n": 1},
        {"n": 2},
    ],
    "SELECT key, row FROM (SELECT *, row_number() OVER (ORDER BY offset) AS row, "
    "row_number() OVER (PARTITION BY key ORDER BY value) AS unused FROM orders) WHERE row = 3": [
        {"key": "k1", "row": 3}
    ],
    "SELECT key, count(*) AS n FROM orders GROUP BY ALL ORDER BY 1;": [
        {"key": None, "n": 1},
        {"key": "k1", "n": 2},
    ],
    "SELECT h.key AS h FROM orders LATERAL VIEW explode(headers) AS h": [{"h": "a"}],
    "FROM orders |> SELECT key, value |> AGGREGATE count(*) AS n": [{"n": 3}],
    "SELECT * EXCEPT (value, headers, timestamp, partition, timestampType, routing_key) "
    "FROM orders WHERE offset = 1": [
        {
            "key": None,
            "topic": "$queue/orders",
            "offset": 1,
            "queue": "orders",
            "message_id": "orders:1",
            "expires_at": None,
        }
    ],
    "SELECT count(value) AS n, count(*) AS m, count(key) AS k FROM orders": [
        {"n": 3, "m": 3, "k": 2}
    ],
    "SELECT a, b, i FROM (SELECT * FROM VALUES (x'61', x'62', 't', 1, 9L, now(), 1, null, 'q', '', "
    "'m', now()) AS v(a, b, c, d, e, f, g, h, i, j, k, l) UNION ALL SELECT * FROM orders) "
    "WHERE e IN (0, 9) AND c || d || f || g || j || k <> '' ORDER BY a": [
        {"a": "a", "b": "b", "i": "q"},
        {"a": "k1", "b": "two cups", "i": "orders"},
    ],
    "SELECT * FROM VALUES (x'61', x'62', 't', 1, 9L, now(), 1, null, 'q', '', 'm', now()) "
    "AS v(a, b, c, d, e, f, g, h, i, j, k, l) WHERE d = 2 UNION ALL SELECT * FROM orders LIMIT 1": [
        {
            "a": "k1",
            "b": "two cups",
            "c": "$queue/orders",
            "d": 0,
            "e": 0,
            "f": "2023-11-14T22:13:20.000Z",
            "g": 0,
            "h": [{"key": "a", "value": "b"}],
            "i": "orders",
            "j": "",
            "k": "orders:0",
            "l": None,
        }
    ],
}
LINES |= {statement: [statement, "--json"] for statement in DROPPED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql")
    with tailrace.open(folder / "data", upkeep=False) as store:
        orders = store.queue("orders")
        orders.publish(b"two cups", key="k1", headers={"a": "b"}, timestamp=T0)
        orders.publish(b"\xff\x00", timestamp=T0 + 1)
        orders.publish(b"one\nplate", key="k1", timestamp=T0 + 2)
        [*_, message] = orders.consumer("w").receive(3)
        message.reject("broken")
        store.stream("events.eu").publish(b"e")
        store.stream("unused")
        for name in ("Twin", "twin"):
            store.stream(name).publish(name.encode())
        old = store.stream("old")
        old.publish_many([b"1", b"2", b"3"])
        kept = folder.parent / "sql-archived"
        incarnation = old.settings.incarnation
        make_archive(kept, old.log, [(0, 2)], queue="old", incarnation=incarnation)
        old.log.truncate_before(2)
        store.stream("damaged").publish_many([b"x" * 1000] * 10)
    with tailrace.open(folder.parent / "sql-other", upkeep=False) as store:
        store.stream("orders").publish(b"another")
        for time in FAR:
            store.stream("far").publish(b"", timestamp=time)
    [segment] = (folder / "data/queue/queues/damaged/segments").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[200] ^= 0xFF
    segment.write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path, request: pytest.FixtureRequest) -> dict[str, Done]:
    """All of them in one process, but for those of a sample that nobody asks for."""
    before = {path: path.stat().st_mtime_ns for path in (folder / "data").rglob("*")}
    cases = [each.callspec for each in request.session.items if hasattr(each, "callspec")]
    unasked = DROPPED.keys() - {case.params.get("statement") for case in cases}
    lines = {name: ["sql", *line] for name, line in LINES.items() if name not in unasked}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        cwd=folder,
        env={**os.environ, "TZ": "America/New_York", "COLUMNS": "60"},
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert {path.name for path in folder.iterdir()} == {"data", "new"}  # nothing of Spark's
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "data").rglob("*")}
    return {name: Done(*each) for name, each in json.loads(done.stdout).items()}


def rows(done: Done) -> list[dict[str, object]]:
    assert done.code == 0, done.err
    assert done.err == ""
    return [json.loads(line) for line in done.out.splitlines()]


def refused(done: Done) -> str:
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("tailrace: ")
    assert done.err.count("\n") == 1
    return done.err.removeprefix("tailrace: ").rstrip()


pytestmark = NEEDS_JAVA


def test_what_was_archived(ran: dict[str, Done]) -> None:
    assert rows(ran["archived"]) == [{"n": 3, "first": 0}]
    assert "name its folder: --archive" in ran["no archive"].err
    assert "there is no queue 'none'" in ran["another archive"].err
    nothing = refused(ran["nothing archived"])  # although it would not be read
    assert nothing.startswith("--archive orders=nope: there is no archive in /")
    assert "is the archive of the queue 'old', not of" in refused(ran["archived of another"])
    assert "'archived' is not QUEUE=DIR" in ran["no pair"].err
    assert [ran[name].code for name in ("no archive", "another archive", "no pair")] == [2, 2, 2]


def test_tables(ran: dict[str, Done]) -> None:
    done = ran["table"]
    assert [line.split(maxsplit=2) for line in done.out.splitlines()] == [
        ["offset", "key", "value"],
        ["0", "k1", "two cups"],
        ["1", "0xff00"],
        ["2", "k1", "one\\nplate"],
    ]
    assert done.err == ""
    limited = ran["limited"]
    assert limited.out.split() == ["offset", "0", "1"]
    assert limited.err == (
        "showing the first 2 rows; --limit N shows more, --output csv or json shows all\n"
    )
    assert "bigint" in ran["describe"].out


def test_json(ran: dict[str, Done]) -> None:
    first, second, third = rows(ran["json"])
    assert first == {
        "key": "k1",
        "value": "two cups",
        "topic": "$queue/orders",
        "partition": 0,
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20.000Z",
        "timestampType": 0,
        "headers": [{"key": "a", "value": "b"}],
        "queue": "orders",
        "routing_key": "",
        "message_id": "orders:0",
        "expires_at": None,
    }
    assert second["value"] == {"base64": "/wA="}
    assert second["key"] is None
    assert third["value"] == "one\nplate"
    assert rows(ran["values"]) == [
        {
            "t": "2026-01-31T09:00:00.000Z",
            "n": "2026-01-31 09:00:00",
            "d": "2026-01-31",
            "f": "nan",
            "c": "1.50",
            "m": {"1": {"base64": "/w=="}},
            "z": None,
        }
    ]
    assert "'offset' is there twice" in refused(ran["twice"])


def test_a_header_by_its_name(ran: dict[str, Done]) -> None:
    assert [row["a"] for row in rows(ran["header"])] == ["b", None, None]


def test_times_that_python_does_not_have(ran: dict[str, Done]) -> None:
    told = list(FAR.values())
    assert ran["far"].out.split() == ["timestamp", "expires_at", *told]
    assert ran["far in csv"].out.split() == ["timestamp", *told]
    found = rows(ran["far in json"])
    assert [row["a"] for row in found] == [[each, None] for each in told]
    assert [row["m"] for row in found] == [{each.partition("T")[0]: 1} for each in told]
    assert [row["s"] for row in found] == [{"t": each} for each in told]
    assert [row["t"] for row in found] == [each.replace("Z", "001Z") for each in told]
    assert {row["z"] for row in found} == {None}


def test_another_store(ran: dict[str, Done]) -> None:
    assert rows(ran["elsewhere"]) == [{"v": "another"}]
    assert "there is no store in nowhere" in refused(ran["nowhere"])


def test_csv(ran: dict[str, Done]) -> None:
    assert ran["csv"].err == ""
    assert list(csv.reader(io.StringIO(ran["csv"].out))) == [
        ["value", "offset", "headers"],
        ["two cups", "0", '[{"key": "a", "value": "b"}]'],
        ["0xff00", "1", "[]"],
        ["one\nplate", "2", "[]"],
    ]


def test_parquet(ran: dict[str, Done], folder: Path) -> None:
    from pyarrow import parquet

    assert ran["parquet"].out == "wrote 3 rows to new\n"
    written = parquet.read_table(str(folder / "new")).to_pylist()
    assert sorted(row["offset"] for row in written) == [0, 1, 2]
    assert "new is there already" in refused(ran["again"])
    assert "Division by zero" in refused(ran["failed"])  # and it left nothing


def test_queues_are_found_by_the_names_in_the_statement(ran: dict[str, Done]) -> None:
    assert rows(ran["count"]) == [{"n": 3}]
    assert rows(ran["join"]) == [{"value": "one\nplate", "last": 2, "lasts": True}]
    assert rows(ran["natural"]) == [{"n": 0}]  # in each row something is null
    assert rows(ran["unused"]) == []
    assert rows(ran["dotted"]) == [{"v": "e"}]
    assert [row["value"] for row in rows(ran["told apart"])] == ["Twin"]


@pytest.mark.sample(6)
@pytest.mark.parametrize("statement", DROPPED)
def test_columns_may_be_named_that_are_not_needed(ran: dict[str, Done], statement: str) -> None:
    assert rows(ran[statement]) == DROPPED[statement]


def test_what_is_wrong_is_one_line(ran: dict[str, Done]) -> None:
    assert refused(ran["syntax"]).startswith("line 1, column 15: Syntax error at or near 'orders'")
    assert refused(ran["column"]).startswith("line 2, column 3: ")
    assert "`nothing`" in refused(ran["column"])
    known = "$dlq/orders, Twin, damaged, events.eu, old, orders, twin, unused"
    expected = f"line 2, column 6: there is no queue 'nothing'; there are: {known}"
    assert refused(ran["unknown"]) == expected
    assert "`events.eu`" in refused(ran["undotted"])
    assert "spark.sql.caseSensitive=true" in refused(ran["alike"])
    for name in ("inserted", "dropped", "dropped if there", "renamed", "deleted", "merged"):
        assert refused(ran[name]).startswith("SQL only reads queues: ")
    assert ran["dropped another"] == Done(0, "", "")
    damaged = refused(ran["damaged"])
    assert damaged.startswith("rows are lost, which cannot be read: ")
    assert "00000000000000000000.seg" in damaged
    for name, word in {"option": "'xml'", "conf": "NAME=VALUE", "both": "--output"}.items():
        assert ran[name].code == 2
        assert word in ran[name].err.splitlines()[-1]


def test_commands_know_the_queues(ran: dict[str, Done]) -> None:
    explained = ran["explained"]
    assert (explained.code, explained.err) == (0, "")
    assert "Physical Plan" in explained.out
    assert "Error" not in explained.out
    assert "== Physical Plan ==" in explained.out.splitlines()  # which are lines, and not a cell
    assert "value#" not in explained.out  # which is not read then, either
    assert refused(ran["explained wrongly"]).startswith("line 1, column 16: ")
    assert "there is no queue 'nothing'" in refused(ran["explained nothing"])
    names = {str(row["tableName"]).lower() for row in rows(ran["listed"])}  # as Spark compares them
    assert names == {"$dlq/orders", "damaged", "events.eu", "old", "orders", "twin", "unused"}
    assert [row["tableName"] for row in rows(ran["listed in part"])] == ["old", "orders"]
    assert refused(ran["made"]).endswith("--output parquet:PATH")
    for name in ("viewed", "viewed for others", "viewed files"):
        assert refused(ran[name]).startswith("a view is gone when the command ends; ")
    assert "a view is gone" not in refused(ran["view elsewhere"])
    assert ran["viewed on the way"].out.split() == ["n", "7"]


def test_it_is_interrupted(shell: Shell) -> None:
    """While it writes rows; and in the middle of a long job, of which nothing is left then."""
    with tailrace.open(shell.store) as store:
        store.queue("orders").publish(b"1")
    rows = "SELECT id FROM range(0, 100000000, 1, 1000)"
    job = "SELECT id FROM range(0, 1000000000000, 1, 2) WHERE id % 7 > 6"
    with (
        shell.started("sql", rows, "--json") as writing,
        shell.started("sql", job, "--output", "parquet:new") as working,
    ):
        assert writing.stdout is not None
        assert json.loads(writing.stdout.readline()) == {"id": 0}
        until = time.monotonic() + 60
        while not list(shell.folder.glob("new.*.tmp/_temporary")):
            assert time.monotonic() < until
            time.sleep(0.05)
        for process in (writing, working):
            process.send_signal(signal.SIGINT)
        for process in (writing, working):
            _, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (130, "tailrace: interrupted\n")
    assert [path.name for path in shell.folder.iterdir()] == ["data"]


def test_it_is_terminated(shell: Shell) -> None:
    """Nothing stays behind, of what it writes nor of Spark's own."""
    with tailrace.open(shell.store) as store:
        store.queue("orders")
    temporary = shell.folder / "tmp"
    temporary.mkdir()
    shell.environment["TMPDIR"] = str(temporary)
    job = "SELECT id FROM range(0, 1000000000000, 1, 2) WHERE id % 7 > 6"
    with shell.started("sql", job, "--output", "parquet:new") as working:
        until = time.monotonic() + 60
        while not list(shell.folder.glob("new.*.tmp/_temporary")):
            assert time.monotonic() < until
            time.sleep(0.05)
        working.send_signal(signal.SIGTERM)
        _, err = working.communicate(timeout=60)
        assert (working.returncode, err) == (143, "tailrace: terminated\n")
    assert {path.name for path in shell.folder.iterdir()} == {"data", "tmp"}
    assert not list(temporary.glob("tailrace-*"))


def test_it_is_interrupted_while_spark_starts(shell: Shell) -> None:
    """No JVM stays behind."""
    with tailrace.open(shell.store) as store:
        store.queue("orders")
    with shell.started("sql", "SELECT 1") as process:
        jvms: list[int] = []
        until = time.monotonic() + 60
        while not jvms and time.monotonic() < until:
            time.sleep(0.01)
            jvms = children(process.pid, "java")
        assert jvms
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "tailrace: interrupted\n")
    assert not any(Path(f"/proc/{jvm}").exists() for jvm in jvms)


def children(parent: int, name: str) -> list[int]:
    """Processes of this name that another one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            what, _, fields = path.read_text().partition("(")[2].rpartition(") ")
            if what == name and int(fields.split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_first_run_archives_classes_and_the_next_uses_them(shell: Shell) -> None:
    """The JVM that makes the archive does so when the command has ended."""
    with tailrace.open(shell.store) as store:
        store.queue("orders").publish(b"1")
    cache = shell.folder / "cache"
    shell.environment["XDG_CACHE_HOME"] = str(cache)
    line = ["sql", "SELECT count(*) AS n FROM orders", "--json"]
    assert shell.items(*line) == [{"n": 1}]
    until = time.monotonic() + 120
    begin = bytes.fromhex("a8ab0bf0")  # the header comes last
    while not any(file.read_bytes()[:4] == begin for file in cache.glob("tailrace/*.new")):
        assert time.monotonic() < until
        time.sleep(1)
    mapped = ""
    with shell.started(*line) as process:
        while process.poll() is None:
            for jvm in children(process.pid, "java"):
                with contextlib.suppress(OSError):  # it has ended
                    mapped += Path(f"/proc/{jvm}/maps").read_text()
            time.sleep(0.2)
        out, err = process.communicate(timeout=60)
    assert (json.loads(out), err) == ({"n": 1}, "")
    [archive] = cache.glob("tailrace/*")  # and it was not refused, or it would be gone
    assert archive.suffix == ".jsa"
    assert archive.stat().st_size > 1 << 20
    assert str(archive) in mapped


def test_without_java(shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        store.queue("orders")
    done = shell("sql", "SELECT 1", PATH=str(shell.folder), JAVA_HOME="")
    assert done.returncode == 2
    assert done.stderr.startswith("tailrace: Java is missing, which Spark needs: install Java 17")
    done = shell("sql", "SELECT 1", JAVA_HOME=str(shell.folder))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_a_master_that_cannot_be_reached(shell: Shell) -> None:
    """It is told before Spark starts, which would try for a minute."""
    with tailrace.open(shell.store) as store:
        store.queue("orders")
    for given in (["--master", "spark://127.0.0.1:1"], ["--conf", "spark.master=spark://[::1]:1"]):
        said = shell.refused("sql", "SELECT 1", *given)
        assert said.startswith("no Spark master can be reached (")
        assert ":1: " in said


def test_where_no_folder_can_be_made(shell: Shell) -> None:
    """It is told before Spark starts, which cannot start here."""
    with tailrace.open(shell.store) as store:
        store.queue("orders")
    (shell.folder / "file").touch()
    before = sorted(shell.folder.iterdir())

    def said(place: str) -> str:
        query = ("sql", "SELECT * FROM orders", "--output", f"parquet:{place}")
        done = shell(*query, PATH=str(shell.folder), JAVA_HOME="")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        return done.stderr

    for place in (
        "file/new",
        "file/a/b",
        "n" * 255,
        *(["/proc/new"] if Path("/proc").is_dir() else []),
    ):
        assert said(place).startswith(f"tailrace: {place} cannot be made: ")
    assert said("a/b").startswith("tailrace: Java is missing")
    assert sorted(shell.folder.iterdir()) == before


def test_the_help_fits_a_terminal(shell: Shell) -> None:
    lines = shell("sql", "--help", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80


def test_no_store(shell: Shell) -> None:
    assert "there is no store in data" in shell.refused("sql", "SELECT 1")
