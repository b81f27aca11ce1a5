"""Pictures of a queue: HTML that stands by itself, and PNG where there is matplotlib."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

import tailrace
from tailrace.cli.stores import StorePlace, look_at_store
from tailrace.errors import TailraceError
from tailrace.spark.jobs.plots import _round_up, check_plot, draw
from tailrace.spark.jobs.running import Means
from tailrace.spark.jobs.stats import QueueFigures, count_queue

T0 = 1_700_000_000_000
NAME = "a <b> & 'c'"


def figures(path: Path, count: int = 50, *, latest: int | None = None) -> QueueFigures:
    with tailrace.open(path, upkeep=False, flush="none") as store:
        stream = store.stream(NAME)
        for number in range(count):
            key = ("<i>", b"\xff\x00")[number % 2]
            stream.publish(b"x" * number, key=key, timestamp=T0 + number * 777)
        if latest is not None:
            stream.publish(b"x", timestamp=latest)
        for group in ("readers & writers", "others"):
            stream.group(group).seek(count // 2)
    with look_at_store(StorePlace(str(path))) as look:
        return count_queue(look, str(path), NAME, Means(spark=False))[0]


def test_html_stands_by_itself(tmp_path: Path) -> None:
    target = tmp_path / "plot.html"
    draw(figures(tmp_path / "data"), str(target))
    text = target.read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.search(r"(src|href|url)\s*[=(]", text)
    assert "http" not in text
    assert "a &lt;b&gt; &amp; &#x27;c&#x27;" in text
    assert "<td>&lt;i&gt;</td>" in text
    assert "<td>0xff00</td>" in text
    charts = [ElementTree.fromstring(each) for each in re.findall(r"(?s)<svg.*?</svg>", text)]
    titles = [chart.get("aria-label") for chart in charts]
    assert titles[:2] == ["messages per second", "bytes per second"]
    assert len(charts) == 3
    for chart in charts:
        _, _, width, height = map(float, str(chart.get("viewBox")).split())
        for path in chart.iter("path"):
            numbers = [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", str(path.get("d")))]
            assert all(0 <= number <= max(width, height) for number in numbers)
    groups = [element.text for element in charts[2].iter("text")]
    assert {"readers & writers", "others"} <= set(groups)


@pytest.mark.parametrize("count", [0, 1])
def test_little_is_drawn_as_well(tmp_path: Path, count: int) -> None:
    target = tmp_path / "plot.html"
    draw(figures(tmp_path / "data", count), str(target))
    assert f"<p>{count} messages" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize("count", [0, 50])
# numpy may be newer than what was built with it
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:numpy:RuntimeWarning")
def test_png(tmp_path: Path, count: int) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: tailrace[plot]")
    target = tmp_path / "plot.png"
    draw(figures(tmp_path / "data", count), str(target))
    assert target.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("latest", [253_402_300_799_999, T0 * 1000, (1 << 62)])
@pytest.mark.parametrize("kind", ["png", "html"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:numpy:RuntimeWarning")
def test_times_that_no_calendar_has(tmp_path: Path, kind: str, latest: int) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: tailrace[plot]")
    target = tmp_path / f"plot.{kind}"
    draw(figures(tmp_path / "data", latest=latest), str(target))
    assert target.stat().st_size > 1000


def test_png_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(TailraceError, match=r"tailrace\[plot\]"):
        check_plot("a.png")
    assert check_plot("a.HTML") == "html"
    with pytest.raises(TailraceError, match=r"a\.svg: a plot is a \.png or a \.html"):
        check_plot("a.svg")


def test_axes_end_at_round_numbers() -> None:
    for amount, top in ((0, 1), (1, 1), (0.03, 0.05), (7, 10), (1_001, 2_000), (499, 500)):
        assert _round_up(amount) == pytest.approx(top)
