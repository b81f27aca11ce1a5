"""The rows about pipelines run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.support.setting import TINY, Setting, SparkSizes
from tests.project import NEEDS_JAVA

pytest.importorskip("pyspark")


@NEEDS_JAVA
@pytest.mark.long
def test_rows(tmp_path: Path) -> None:
    from bench.rows.pipelines import starting, windows

    sizes = replace(TINY, rounds=1, spark=SparkSizes(20_000, 1_000))
    setting = Setting(tmp_path, sizes)
    for row in (windows(setting), starting(setting)):
        [line] = row.lines
        assert line.value(line.ours) > 0
        assert line.checks[0].value is not None
