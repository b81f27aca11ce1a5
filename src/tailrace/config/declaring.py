"""The queues that a file declares, and what a store has against it.

What a file gets wrong by itself is `checking`'s. Here the rest of it is compared with a store, so
that a person sees all that is in the way at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailrace.config.checking import Findings, queue_options
from tailrace.config.nodes import Problem
from tailrace.errors import ConfigError, InvalidName
from tailrace.queue.dead_letters import wrong_routes
from tailrace.queue.names import refuse_reserved
from tailrace.queue.settings import QueueSettings

__all__ = ["QueueConfig", "options_for_all", "problems_in", "queues_of"]


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A queue in the file: `store.queue(name, **options)`, or `store.stream` by its `type`."""

    name: str
    type: str
    options: Mapping[str, Any]
    path: str  # of its key in the file: `queues[0]`


def queues_of(plain: Mapping[str, Any]) -> list[QueueConfig]:
    """Those that have a name."""
    return [
        QueueConfig(
            entry["name"], entry.get("type", "classic"), queue_options(entry), f"queues[{number}]"
        )
        for number, entry in enumerate(plain.get("queues", []))
        if "name" in entry
    ]


def options_for_all(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What is said for all queues, and of the disk."""
    storage = dict(plain.get("storage", {}))
    for key in ("path", "badger_dir"):
        storage.pop(key, None)
    return {**storage, **plain.get("queue_manager", {})}


def problems_in(findings: Findings, queues: Mapping[str, QueueSettings]) -> list[Problem]:
    """Why a store with these queues could not be opened with a file, in the order of its lines,
    besides what is wrong with the file itself."""
    sound, wrong = findings.sound(), {problem.key for problem in findings.problems}
    declared = [each for each in queues_of(sound) if f"{each.path}.type" not in wrong]
    defaults = options_for_all(sound)
    defaults.pop("disk", None)
    found: list[tuple[str, str]] = []
    after = dict(queues)
    for queue in declared:
        settings = queues.get(queue.name)
        try:
            after[queue.name] = _declared(queue, settings, defaults, queue.options)
        except InvalidName as error:
            found.append((f"{queue.path}.name", str(error)))
        except ConfigError as error:
            singly = list(_singly(queue, settings, defaults))
            found += singly or [(queue.path, str(error))]
    places = {queue.name: queue.path for queue in declared if queue.name in after}
    for name, key, said in wrong_routes(after, queues, places):
        found.append((f"{places[name]}.{key}", said))
    problems = [Problem(findings.file, findings.line_of(key), key, said) for key, said in found]
    return sorted(problems, key=lambda problem: problem.line)


def _declared(
    queue: QueueConfig,
    settings: QueueSettings | None,
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
) -> QueueSettings:
    """What a queue becomes that has these settings, or is not there yet."""
    if settings is not None:
        return settings.declared(queue.type, defaults, options)
    refuse_reserved(queue.name)
    return QueueSettings.create(queue.name, queue.type, defaults, **options)


def _singly(
    queue: QueueConfig, settings: QueueSettings | None, defaults: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """What of a queue is refused, where it is an option by itself: its type, and then each of the
    others, as if it had that type."""
    try:
        _declared(queue, settings, defaults, {})
    except ConfigError as error:
        yield f"{queue.path}.type", str(error).removeprefix("type: ")
    if settings is not None:
        settings = replace(settings, type=queue.type)
    for key, value in queue.options.items():
        try:
            _declared(queue, settings, defaults, {key: value})
        except ConfigError as error:
            yield f"{queue.path}.{key}", str(error).removeprefix(f"{key}: ")
