"""Figures of a queue as pictures: HTML that needs nothing else, drawn here, or PNG by matplotlib,
which comes with the extra `plot`."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tailrace.errors import TailraceError
from tailrace.spark.jobs.stats import QueueFigures
from tailrace.units import format_size

__all__ = ["KINDS", "check_plot", "draw", "write_html", "write_png"]

KINDS: Final = ("png", "html")
_COLOURS: Final = ("#1f6feb", "#d1662b", "#2a8c4a", "#8250df", "#bf3989", "#6e7781")
_MOST_GROUPS: Final = len(_COLOURS)
_WIDTH, _HEIGHT = 860, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 12, 28
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;"
    "color:#1f2328;background:#fff}h1{font-size:1.4em}h2{font-size:1.05em;margin:1.6em 0 .3em}"
    "table{border-collapse:collapse}td,th{padding:.15em 1.2em .15em 0;text-align:left}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}svg{width:100%;height:auto}"
    "small{color:#59636e}"
)


class Curve(NamedTuple):
    """A line of a chart: (time in ms, amount)."""

    name: str
    points: list[tuple[int, float]]


class Chart(NamedTuple):
    title: str
    curves: list[Curve]
    is_stepped: bool  # an amount holds until the next one
    in_bytes: bool = False


def check_plot(path: str) -> str:
    """The kind of a plot, by its name; `TailraceError` if it cannot be made."""
    kind = path.rpartition(".")[2].lower()
    if kind not in KINDS:
        raise TailraceError(f"{path}: a plot is a .png or a .html file")
    if kind == "png":
        _matplotlib()
    return kind


def draw(figures: QueueFigures, path: str) -> None:
    """Write a plot, of the kind that its name says."""
    (write_png if check_plot(path) == "png" else write_html)(figures, path)


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise TailraceError(
            "a PNG needs matplotlib: pip install 'tailrace[plot]'; an HTML plot needs nothing"
        ) from None
    return Figure, FigureCanvasAgg


def _charts(figures: QueueFigures) -> list[Chart]:
    end = figures.step_ms
    points = figures.points
    last = [(points[-1].at_ms + end, 0.0)] if points else []
    rates = [(point.at_ms, point.messages_per_second) for point in points] + last
    sizes = [(point.at_ms, point.bytes_per_second) for point in points] + last
    groups = sorted((g for g in figures.groups if g.points), key=lambda g: -g.messages)
    lags = [
        Curve(group.id, [(at, float(count)) for at, count in group.points])
        for group in groups[:_MOST_GROUPS]
    ]
    found = [
        Chart("messages per second", [Curve("messages/s", rates)], True),
        Chart("bytes per second", [Curve("bytes/s", sizes)], True, in_bytes=True),
    ]
    if lags:
        found.append(Chart("not processed now, by the time of publishing", lags, False))
    return found


def _marks(chart: Chart) -> tuple[int, int, int]:
    """Times to write at the axis."""
    times = [at for curve in chart.curves for at, _ in curve.points]
    first, last = min(times), max(times)
    return first, (first + last) // 2, last


# --- HTML -----------------------------------------------------------------------------------


def write_html(figures: QueueFigures, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(_page(figures)))


def _page(figures: QueueFigures) -> Iterator[str]:
    title = html.escape(f"Queue {figures.queue}")
    yield f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style>\n<h1>{title}</h1>\n"
    span = ""
    if figures.oldest_ms is not None and figures.newest_ms is not None:
        span = f", {_moment(figures.oldest_ms)} to {_moment(figures.newest_ms)} UTC"
    yield f"<p>{figures.messages:,} messages, {format_size(figures.bytes)}{span}</p>\n"
    if not figures.messages:
        return
    for chart in _charts(figures):
        yield f"<h2>{html.escape(chart.title)}</h2>\n{''.join(_svg(chart))}\n"
    sizes, gaps, own = figures.sizes, figures.gaps, figures.key_gaps
    assert sizes is not None
    assert gaps is not None
    assert own is not None
    yield from _table(
        "distributions",
        ("", "min", "median", "p95", "p99", "max"),
        [
            (name, q.min, q.median, q.p95, q.p99, q.max)
            for name, q in (
                ("size in bytes", sizes),
                ("ms since the message before", gaps),
                ("ms since the one before of its key", own),
            )
        ],
    )
    keys = [(_key(each.key), each.count) for each in figures.top_keys]
    yield from _table("most frequent keys", ("key", "messages"), keys)
    yield from _table(
        "groups",
        ("group", "committed", "messages behind", "ms behind"),
        [(g.id, g.committed, g.messages, g.behind_ms) for g in figures.groups],
    )


def _table(title: str, titles: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if not rows:
        return
    yield f"<h2>{html.escape(title)}</h2>\n<table><tr>"
    yield "".join(f"<th>{html.escape(each)}</th>" for each in titles)
    yield "</tr>"
    for row in rows:
        yield "<tr>"
        for cell in row:
            number = isinstance(cell, int)
            text = f"{cell:,}" if number else "" if cell is None else str(cell)
            yield f"<td{' class=n' if number else ''}>{html.escape(text)}</td>"
        yield "</tr>"
    yield "</table>\n"


def _svg(chart: Chart) -> Iterator[str]:
    """A chart with its axes. Every amount is at least 0."""
    first, middle, last = _marks(chart)
    highest = max((amount for curve in chart.curves for _, amount in curve.points), default=0.0)
    top = _round_up(highest)
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(at: int) -> str:
        return f"{_LEFT + inner_width * (at - first) / max(last - first, 1):.1f}"

    def y(amount: float) -> str:
        return f"{_TOP + inner_height * (1 - amount / top):.1f}"

    label = html.escape(chart.title)
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}" '
    yield 'font-size="11" fill="#59636e" font-family="system-ui,sans-serif">'
    for share in (0.0, 0.5, 1.0):
        height, shown = y(top * share), _amount(top * share, chart.in_bytes)
        yield f'<path d="M{_LEFT} {height}H{_WIDTH - _RIGHT}" stroke="#d1d9e0"/>'
        yield f'<text x="{_LEFT - 6}" y="{float(height) + 4:.1f}" text-anchor="end">{shown}</text>'
    for at, anchor in ((first, "start"), (middle, "middle"), (last, "end")):
        yield f'<text x="{x(at)}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{_moment(at)}</text>'
    for number, curve in enumerate(chart.curves):
        colour = _COLOURS[number % len(_COLOURS)]
        path: list[str] = []
        for at, value in curve.points:
            if path and chart.is_stepped:
                path.append(f"H{x(at)}V{y(value)}")
            else:
                path.append(f"{'L' if path else 'M'}{x(at)} {y(value)}")
        yield f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        if len(chart.curves) > 1 or not chart.is_stepped:
            place = f'x="{_LEFT + 10}" y="{_TOP + 14 + 14 * number}"'
            yield f'<text {place} fill="{colour}">{html.escape(curve.name)}</text>'
    yield "</svg>"


def _round_up(amount: float) -> float:
    """1, 2 or 5 times a power of ten, not below it."""
    if amount <= 0:
        return 1.0
    step = 1.0
    while step >= amount:
        step /= 10
    while step * 10 < amount:
        step *= 10
    return next(step * times for times in (1, 2, 5, 10) if step * times >= amount)


def _amount(amount: float, in_bytes: bool) -> str:
    if in_bytes and amount >= 1:
        return f"{format_size(int(amount))}/s"
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:g}"


def _moment(milliseconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _key(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"


# --- PNG ------------------------------------------------------------------------------------


def write_png(figures: QueueFigures, path: str) -> None:
    new_figure, canvas = _matplotlib()
    charts = _charts(figures) if figures.messages else []
    picture = new_figure(figsize=(10, 3 * max(len(charts), 1)), layout="constrained")
    canvas(picture)
    picture.suptitle(f"Queue {figures.queue}: {figures.messages:,} messages")
    for axes, chart in zip(
        picture.subplots(max(len(charts), 1), squeeze=False)[:, 0], charts, strict=False
    ):
        for number, curve in enumerate(chart.curves):
            axes.plot(
                [at for at, _ in curve.points],
                [amount for _, amount in curve.points],
                drawstyle="steps-post" if chart.is_stepped else "default",
                color=_COLOURS[number % len(_COLOURS)],
                label=curve.name,
            )
        marks = _marks(chart)  # matplotlib's own end with the year 9999
        axes.set_xticks(marks, labels=[_moment(at) for at in marks])
        axes.set_title(chart.title, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        if not chart.is_stepped:
            axes.legend(fontsize=8)
    picture.savefig(path, format="png")
