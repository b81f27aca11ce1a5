"""A master that nobody can reach is refused before Spark starts."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tailrace.errors import TailraceError
from tailrace.spark.masters import check_reachable


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def silent() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_one_that_answers_is_enough(listening: int, silent: int) -> None:
    check_reachable(f"spark://127.0.0.1:{listening}")
    check_reachable(f"spark://127.0.0.1:{silent},127.0.0.1:{listening}")


def test_none_answers(silent: int) -> None:
    began = time.monotonic()
    with pytest.raises(TailraceError) as raised:
        check_reachable(f"spark://127.0.0.1:{silent},nowhere.invalid:7077")
    assert time.monotonic() - began < 10
    said = str(raised.value)
    assert said.startswith(
        f"no Spark master can be reached (127.0.0.1:{silent}: Connection refused"
    )
    assert "; nowhere.invalid:7077: " in said
    assert said.endswith("; start it, or name another one")


@pytest.mark.parametrize(
    "master",
    ["local[*]", "local", "yarn", "k8s://https://127.0.0.1:1", "spark://host", "spark://a:99999"],
)
def test_what_is_for_spark_to_tell(master: str) -> None:
    check_reachable(master)


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_name_that_cannot_be_one(host: str) -> None:
    with pytest.raises(TailraceError, match=r"no Spark master can be reached \(a.*7077: .*label"):
        check_reachable(f"spark://{host}:7077")
