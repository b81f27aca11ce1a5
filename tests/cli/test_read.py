"""`tailrace read`: records for people, for pipes and for programs, and those to come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import Log, Record
from tests.cli.conftest import Run, command, lines, tailrace

T0 = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Log(tmp_path / "log", upkeep=False) as log:
        records = [
            Record(timestamp=T0, value=b"plain"),
            Record(timestamp=T0 + 1000, key="k", value=b"\xff\x00", headers={"a": b"b"}),
            Record(timestamp=T0 + 2000, value=None),
        ]
        log.append(records).wait()
    return tmp_path / "log"


def test_for_people(run: Run, path: Path) -> None:
    result = run("read", path)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "0  2023-11-14T22:13:20.000Z  value 'plain'",
        "1  2023-11-14T22:13:21.000Z  key 'k'  value b'\\xff\\x00'  headers 'a'='b'",
        "2  2023-11-14T22:13:22.000Z  value null",
    ]


def test_for_programs(run: Run, path: Path) -> None:
    assert lines(run("read", "--json", path))[1] == {
        "type": "record",
        "offset": 1,
        "timestamp": T0 + 1000,
        "key": "k",
        "value": {"base64": "/wA="},
        "headers": [["a", "b"]],
    }


def test_values_alone(path: Path) -> None:
    done = subprocess.run(
        command("read", "--values", path), capture_output=True, timeout=60, check=True
    )
    assert done.stdout == b"plain\n\xff\x00\n\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--start", "1"], [1, 2]),
        (["--start", "first"], [0, 1, 2]),
        (["--start", "last"], [2]),
        (["--start", "next"], []),
        (["--end", "2"], [0, 1]),
        (["--limit", "1"], [0]),
        (["--limit", "0"], []),
        (["--timestamp", str(T0 + 500)], [1, 2]),
        (["--start", f"timestamp={T0 + 500}"], [1, 2]),
        (["--start", f"timestamp={T0 + 500}", "--follow", "--end", "2"], [1]),
        (["--start", "1", "--end", "2", "--limit", "9"], [1]),
        (["--follow", "--timeout", "0"], [0, 1, 2]),
        (["-f", "--end", "2"], [0, 1]),
    ],
)
def test_a_part(run: Run, path: Path, options: list[str], expected: list[int]) -> None:
    result = run("read", "--json", *options, path)
    assert result.exit_code == 0
    assert [item["offset"] for item in lines(result)] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start", "x"], "'x' is not an offset, nor first, last or next"),
        (["--start", "-1"], "'-1' is not an offset"),
        (["--start", "timestamp"], "nor a time such as timestamp=2026-01-31T09:00Z"),
        (["--start", "time=5"], "'time=5' is not an offset"),
        (["--start", "timestamp="], "'--start': '' is neither a time such as"),
        (["--start", "timestamp=soon"], "'--start': 'soon' is neither a time such as"),
        (["--start", "timestamp=1", "--timestamp", "1"], "exclude each other"),
        (["--timeout", "1"], "--timeout goes with --follow"),
        (["--json", "--values"], "exclude each other"),
        (["--start", "1", "--timestamp", "1"], "exclude each other"),
    ],
)
def test_options_that_make_no_sense(run: Run, path: Path, options: list[str], message: str) -> None:
    result = run("read", *options, path)
    assert result.exit_code == 2
    assert message in result.stderr


def test_outside_of_the_log(path: Path, tmp_path: Path) -> None:
    done = tailrace("read", "--start", "9", path)
    assert done.returncode == 2
    assert done.stderr == (f"tailrace: {path}: offset 9 is not in the log; it has offsets 0 to 2\n")
    done = tailrace("read", tmp_path / "nothing")
    assert done.returncode == 2
    assert done.stderr.startswith("tailrace: ")


def test_damage_says_where_to_go_on(path: Path) -> None:
    with Log(path, upkeep=False) as log:
        log.append([b"more"]).wait()
    segment = min(path.glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[50] ^= 1
    segment.write_bytes(data)
    done = tailrace("read", path)
    assert done.returncode == 2
    assert "offsets 0 to 2 cannot be read. Go on reading at 3" in done.stderr
    assert "value 'more'" in tailrace("read", "--start", "3", path).stdout


class Following:
    """A `tailrace read --follow` in a process of its own."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            command("read", "--follow", "--json", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next_value(self) -> str:
        assert self.process.stdout is not None
        value: str = json.loads(self.process.stdout.readline())["value"]
        return value

    def end(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr


@pytest.fixture
def following(path: Path) -> Iterator[Following]:
    found = Following("--start", "2", path)
    assert found.next_value() is None
    yield found
    found.process.kill()
    found.process.communicate()


def test_following(following: Following, path: Path) -> None:
    with Log(path, upkeep=False) as log:
        for i in range(20):
            log.append_one(b"%d" % i).wait()
            assert following.next_value() == str(i)
    with Log(path, upkeep=False) as log:
        log.append_one(b"by another writer").wait()
        assert following.next_value() == "by another writer"


def test_following_ends_with_ctrl_c(following: Following) -> None:
    following.process.send_signal(signal.SIGINT)
    status, stderr = following.end()
    assert status == 130
    assert "Traceback" not in stderr


def test_following_ends_when_the_reader_goes_away(following: Following, path: Path) -> None:
    assert following.process.stdout is not None
    following.process.stdout.close()
    with Log(path, upkeep=False) as log:
        for _ in range(3):
            log.append_one(b"x").wait()
    assert following.process.wait(60) == 141


def test_following_ends_when_nothing_comes(path: Path) -> None:
    done = tailrace("read", "-f", "--timeout", "0.1", path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3


def test_nothing_is_written_to_the_log(run: Run, path: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    os.chmod(path, 0o555)
    assert run("read", path).exit_code == 0
    os.chmod(path, 0o755)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
