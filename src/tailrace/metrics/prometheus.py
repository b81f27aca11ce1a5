"""The text format of Prometheus (version 0.0.4), and the figures of a store in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from tailrace.queue.disk_stats import DiskStats
    from tailrace.queue.stats import GroupStats, QueueStats

__all__ = ["CONTENT_TYPE", "Family", "families_of", "prometheus_text", "render"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Sorted(Protocol):
    """A histogram, as `registry.py` has it."""

    @property
    def bounds(self) -> tuple[float, ...]: ...

    @property
    def counts(self) -> tuple[int, ...]: ...

    @property
    def sum(self) -> float: ...


class Family:
    """All figures of one name. Labels that are empty are left out: to Prometheus that is the
    same."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self._kind = kind
        self._text = text
        self._lines: list[str] = []

    def add(self, value: float, **labels: str) -> None:
        self._lines.append(_line(self.name, labels, value))

    def add_histogram(self, found: _Sorted, **labels: str) -> None:
        below = 0
        for bound, count in zip((*found.bounds, float("inf")), found.counts, strict=True):
            below += count
            self._lines.append(
                _line(f"{self.name}_bucket", {**labels, "le": _number(bound)}, below)
            )
        self._lines.append(_line(f"{self.name}_sum", labels, found.sum))
        self._lines.append(_line(f"{self.name}_count", labels, below))

    def lines(self) -> list[str]:
        """With a head; none at all if there are no figures."""
        if not self._lines:
            return []
        text = self._text.replace("\\", "\\\\").replace("\n", "\\n")
        return [f"# HELP {self.name} {text}", f"# TYPE {self.name} {self._kind}", *self._lines]


def render(families: Iterable[Family]) -> str:
    lines = [line for family in families for line in family.lines()]
    return "".join(f"{line}\n" for line in lines)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items() if text)
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # halves of characters
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(value)


# --- a store --------------------------------------------------------------------------------


def prometheus_text(stats: Mapping[str, QueueStats]) -> str:
    """The figures of a store (`store.stats()`), in the text format of Prometheus."""
    return render(families_of(stats))


def families_of(stats: Mapping[str, QueueStats]) -> list[Family]:
    """Of each queue, of each of its groups, and of the disk if it is known."""
    queues = sorted(stats.values(), key=lambda each: each.name)
    disk: DiskStats | None = getattr(stats, "disk", None)
    families = [*_families_of_queues(queues), *_families_of_groups(queues)]
    return families if disk is None else [*families, *_families_of_the_disk(disk)]


def _families_of_the_disk(disk: DiskStats) -> list[Family]:
    used = Family(
        "tailrace_disk_used_ratio", "gauge", "How full the disk of the store is, up to 1."
    )
    refusing = Family(
        "tailrace_disk_refusing", "gauge", "1 if the disk is too full for anything to be published."
    )
    reserve = Family(
        "tailrace_reserve_present", "gauge", "0 if the space kept for a full disk was given up."
    )
    used.add(disk.used_ratio)
    refusing.add(int(disk.level == "refusing"))
    reserve.add(int(disk.reserve))
    return [used, refusing, reserve]


def _families_of_queues(queues: Sequence[QueueStats]) -> list[Family]:
    families = []

    def family(name: str, text: str, kind: str = "gauge") -> Family:
        families.append(Family(f"tailrace_queue_{name}", kind, text))
        return families[-1]

    messages = family("messages", "Offsets that the queue holds, settled or not.")
    start = family("start_offset", "The first offset that the queue holds.")
    end = family("end_offset", "The offset that the next message gets.")
    size = family("bytes", "What the queue's log takes on the disk.")
    segments = family("segments", "Files of the queue's log.")
    ready = family("ready", "Deliveries that could be made now, of all groups together.")
    lag = family("lag", "Offsets that the group which is furthest behind, or the first, has ahead.")
    age = family("oldest_age_seconds", "The age of the oldest message that a group, or none, has.")
    delayed = family("delayed", "Messages that are to be delivered later.")
    dead = family("dead_letters", "Dead letters of the queue that nobody has dealt with.")
    pinned = family("pinned_bytes", "What the group that is furthest behind keeps from deletion.")
    dropped = family(
        "dropped_total", "Messages that were dropped to make room, and were no group's.", "counter"
    )
    estimated = family("estimated", "1 if figures of the queue are estimates, never too low.")
    damaged = family("damaged", "1 if what is delayed cannot be read.")
    for each in queues:
        name = each.name
        messages.add(each.messages, queue=name)
        start.add(each.start_offset, queue=name)
        end.add(each.end_offset, queue=name)
        size.add(each.bytes, queue=name)
        segments.add(each.segments, queue=name)
        ready.add(each.ready, queue=name)
        lag.add(each.lag, queue=name)
        age.add((each.oldest_age_ms or 0) / 1000, queue=name)
        if not each.error:  # else nothing is known of it
            delayed.add(each.delayed, queue=name)
        dead.add(each.dead, queue=name)
        pinned.add(each.pinned_bytes, queue=name)
        dropped.add(each.dropped, queue=name)
        estimated.add(int(each.estimated), queue=name)
        damaged.add(int(bool(each.error)), queue=name)
    return families


def _families_of_groups(queues: Sequence[QueueStats]) -> list[Family]:
    families = []

    def family(name: str, text: str, kind: str = "gauge") -> Family:
        families.append(Family(f"tailrace_group_{name}", kind, text))
        return families[-1]

    ready = family("ready", "Messages that could be delivered now.")
    leased = family("leased", "Messages that consumers have.")
    waiting = family("waiting", "Messages that wait for a retry, or behind another of their key.")
    dying = family("dying", "Messages on their way to the dead letters.")
    lag = family("lag", "Offsets from what is settled to the end of the queue.")
    age = family("oldest_age_seconds", "The age of the oldest message that is not settled.")
    members = family("members", "Consumers that are alive.")
    settled = family("settled_total", "Messages that are done with, by whomever.", "counter")
    dropped = family("dropped_total", "Messages that were dropped to make room.", "counter")
    damaged = family("damaged", "1 if the group's files cannot be read.")

    def add(group: GroupStats, queue: str) -> None:
        labels = {"queue": queue, "group": group.id}
        damaged.add(int(bool(group.error)), **labels)
        if group.error:  # nothing is known of it
            return
        ready.add(group.ready, **labels)
        leased.add(group.leased, **labels)
        waiting.add(group.waiting, **labels)
        dying.add(group.dying, **labels)
        lag.add(group.lag, **labels)
        age.add((group.oldest_age_ms or 0) / 1000, **labels)
        members.add(group.members, **labels)
        settled.add(group.settled, **labels)
        dropped.add(group.dropped, **labels)

    for each in queues:
        for group in each.groups:
            add(group, each.name)
    return families
