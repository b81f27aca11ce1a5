"""Whether a file is good: every problem, not only the first.

First the shape, key by key. What has it then goes to those who have the rules: the options of a
queue one at a time, so that each wrong one is named with its line; then the good ones together, and
the queues.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tailrace.config.keys import EXPECTED, Key, keys_of
from tailrace.config.nodes import Node, Problem
from tailrace.config.pipelines import circles, problems_of_pipeline
from tailrace.config.schema import NAME, ArchiveEntry, File
from tailrace.errors import ConfigError, InvalidName
from tailrace.log.fs import OsFileSystem
from tailrace.queue.archived import archive_folder, check_outside
from tailrace.queue.dead_letters import wrong_routes
from tailrace.queue.disk import DiskSettings
from tailrace.queue.layout import find_root
from tailrace.queue.settings import QueueSettings
from tailrace.units import parse_duration

__all__ = ["Findings", "check_nodes", "queue_options"]

_BAD: Final = object()  # what has been complained about
_OWN: Final = "x-"  # keys at the top that are not ours
_NOT_OPTIONS: Final = ("name", "type", "replication", "archive")
_LISTS: Final = ("texts", "names", "confs")  # kinds of key whose value is a list of texts
_PLACES: Final = ("path", "badger_dir")
_NO_RATIOS: Final = {"max_used_ratio": 1e-9, "refuse_ratio": 1.0}  # any other goes with one of them


@dataclass(slots=True)
class Findings:
    """What a file says: `plain` is what of it is good, without what is empty; `lines` has the line
    of each key in it, by its path."""

    file: str
    plain: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def complain(self, path: str, message: str) -> None:
        """At the line of the key, or of the one above that is there."""
        line = self.line_of(path)
        self.problems.append(Problem(self.file, line, path, message))

    def sound(self) -> dict[str, Any]:
        """What of it nobody has complained about. What is in a list of sections stays in its place,
        even if nothing is left of it."""
        found: dict[str, Any] = _without({each.key for each in self.problems}, self.plain, "")
        return found

    def line_of(self, path: str) -> int:
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path, 1)


def check_nodes(root: Node, file: str) -> Findings:
    findings = Findings(file)
    findings.lines[""] = root.line
    plain = _Shape(findings).section(root, File, "")
    if plain is not _BAD:
        findings.plain = plain
        _Rules(findings).check()
    findings.problems.sort(key=lambda problem: problem.line)
    return findings


def queue_options(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What of a queue in the file `store.queue(name, **options)` takes."""
    return {key: value for key, value in entry.items() if key not in _NOT_OPTIONS}


class _Shape:
    """Known keys, and values of the right kind."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def section(self, node: Node, section: Any, path: str) -> Any:
        keys = keys_of(section)
        if not path and node.value is None:
            return {}
        if not isinstance(node.value, dict):
            self._expected(path, f"a mapping of {', '.join(keys)}", node)
            return _BAD
        plain = {}
        for name, child in node.value.items():
            place = _join(path, name)
            if name in keys:
                self._findings.lines[place] = child.line
                value = self._value(child, keys[name], place)
                if value is not None and value is not _BAD:
                    plain[name] = value
            elif section.__struct_config__.forbid_unknown_fields and (path or name[:2] != _OWN):
                self._findings.lines[place] = child.line
                self._findings.complain(place, f"unknown key; {_hint(name, keys)}")
        for name, key in keys.items():
            if key.is_required and (name not in node.value or node.value[name].value is None):
                self._findings.complain(_join(path, name), "it is missing")
        return plain

    def _value(self, node: Node, key: Key, path: str) -> Any:
        if node.value is None:
            return None
        if key.is_map:
            return self._map(node, key, path)
        if key.is_list:
            return self._sections(node, key, path)
        return self._one(node, key, path)

    def _one(self, node: Node, key: Key, path: str) -> Any:
        """A mapping, or a value, or either."""
        is_mapping = isinstance(node.value, dict) or not key.is_short
        if key.section is not None and is_mapping:
            return self.section(node, key.section, path)
        return self._leaf(node, key, path)

    def _sections(self, node: Node, key: Key, path: str) -> Any:
        if not isinstance(node.value, list):
            self._expected(path, "a list", node)
            return _BAD
        plain = []
        for number, item in enumerate(node.value):
            place = f"{path}[{number}]"
            self._findings.lines[place] = item.line
            value = self.section(item, key.section, place)
            plain.append({} if value is _BAD else value)
        return plain

    def _map(self, node: Node, key: Key, path: str) -> Any:
        if not isinstance(node.value, dict):
            self._expected(path, "a mapping", node)
            return _BAD
        plain = {}
        for name, child in node.value.items():
            place = _join(path, name)
            self._findings.lines[place] = child.line
            if not NAME.fullmatch(name):
                self._findings.complain(place, "a name here is made of a to z, 0 to 9 and _")
                continue
            value = None if child.value is None else self._one(child, key, place)
            if value is not None and value is not _BAD:
                plain[name] = value
        return plain

    def _leaf(self, node: Node, key: Key, path: str) -> Any:
        value = node.value
        if isinstance(value, list):
            for number, item in enumerate(value):
                self._findings.lines[f"{path}[{number}]"] = item.line
            value = [each.value for each in value]
            if any(isinstance(each, list | dict) for each in value):
                value = _BAD
        try:
            return msgspec.convert(value, key.type)
        except msgspec.ValidationError:
            if isinstance(node.value, list) and key.kind in _LISTS:
                for number, item in enumerate(node.value):
                    if not isinstance(item.value, str):
                        self._expected(f"{path}[{number}]", "text", item)
                return _BAD
            expected = EXPECTED[key.kind]
            if key.is_short:
                expected += f", or a mapping of {', '.join(keys_of(key.section))}"
            if key.choices:
                expected = f"one of {', '.join(key.choices)}"
            self._expected(path, expected, node)
            return _BAD

    def _expected(self, path: str, what: str, node: Node) -> None:
        self._findings.complain(path, f"expected {what}, got {_describe(node.value)}")


class _Rules:
    """What only those who use a value know about it; and what one key says of another."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._plain = findings.plain
        self._archives: dict[str, str] = {}  # where the folder of each is said

    def check(self) -> None:
        storage = self._plain.get("storage", {})
        places = {storage[key] for key in _PLACES if key in storage}
        if len(places) > 1:
            self._findings.complain(
                "storage.badger_dir", "it is another folder than storage.path; give one of them"
            )
        elif "" in places:
            self._findings.complain("storage.path", "it is empty; name the folder of the store")
        self._disk(storage.get("disk", {}))
        defaults = {k: v for k, v in storage.items() if k not in (*_PLACES, "disk")}
        good = self._try_each("storage", defaults)
        good |= self._try_each("queue_manager", self._plain.get("queue_manager", {}))
        queues = enumerate(self._plain.get("queues", []))
        self._routes([self._queue(f"queues[{number}]", entry, good) for number, entry in queues])
        pipelines = self._plain.get("pipelines", [])
        for number, entry in enumerate(pipelines):
            for key, said in problems_of_pipeline(entry):
                self._findings.complain(f"pipelines[{number}].{key}", said)
        for number, said in circles(pipelines):
            self._findings.complain(f"pipelines[{number}].to", said)
        for section in ("queues", "pipelines"):
            self._names(section)
        if "cluster" in self._plain and self._plain["cluster"].get("enabled") is not False:
            self._findings.complain(
                "cluster",
                "a store is on one machine; set cluster.enabled to false, or remove cluster",
            )

    def _disk(self, given: Mapping[str, Any]) -> None:
        singly = [(key, {**_NO_RATIOS, key: value}) for key, value in given.items()]
        before = len(self._findings.problems)
        for key, options in singly:
            self._try_disk(key, options)
        if len(self._findings.problems) == before:  # else what is wrong together is not known
            self._try_disk("refuse_ratio", given)

    def _try_disk(self, key: str, options: Mapping[str, Any]) -> None:
        try:
            DiskSettings.parse(options)
        except ConfigError as error:
            place = key if key in self._plain["storage"]["disk"] else "max_used_ratio"
            said = str(error).removeprefix(f"disk.{place}: ")
            self._findings.complain(f"storage.disk.{place}", said)

    def _names(self, section: str) -> None:
        seen: dict[str, str] = {}
        for number, entry in enumerate(self._plain.get(section, [])):
            name, path = entry.get("name"), f"{section}[{number}].name"
            if name in seen:
                line = self._findings.line_of(seen[name])
                self._findings.complain(path, f"{name!r} is there twice, first on line {line}")
            elif name is not None:
                seen[name] = path

    def _queue(self, path: str, entry: dict[str, Any], defaults: dict[str, Any]) -> QueueSettings:
        """As it is without what is wrong."""
        if entry.get("replication", {}).get("enabled"):
            self._findings.complain(
                f"{path}.replication.enabled",
                "a queue is on one machine, and cannot be replicated; set it to false, or remove "
                "replication",
            )
        self._archive(f"{path}.archive", entry.get("archive", {}))
        good = self._try_each(path, queue_options(entry))
        name, kind = entry.get("name", "x"), entry.get("type", "classic")
        if not self._try(path, "name", name=name):
            name, good["topics"] = "x", []
        if not self._try(path, "type", type=kind):
            kind = "classic"
        settings = QueueSettings.unchecked(name, kind, defaults=defaults, **good)
        for key, said in settings.contradictions(good):
            self._findings.complain(f"{path}.{key}", said)
        return settings

    def _routes(self, settings: list[QueueSettings]) -> None:
        """Where dead letters go, from queue to queue of the file."""
        places = {each.name: f"queues[{number}]" for number, each in enumerate(settings)}
        queues = {each.name: each for each in settings}
        for name, key, said in wrong_routes(queues, {}, queues):
            self._findings.complain(f"{places[name]}.{key}", said)

    def _archive(self, path: str, entry: Mapping[str, Any]) -> None:
        if entry and "to" not in entry:  # an empty one says that there is none
            self._findings.complain(f"{path}.to", "it is missing; name the folder of the archive")
        if entry.get("to"):
            self._archive_folder(f"{path}.to", entry["to"])
        for name, key in keys_of(ArchiveEntry).items():
            if key.choices and entry.get(name, key.default) not in key.choices:
                known = ", ".join(key.choices)
                said = f"expected one of {known}, got {_describe(entry[name])}"
                self._findings.complain(f"{path}.{name}", said)
        try:
            parse_duration(entry.get("every", 0), "every")
        except ConfigError as error:
            said = str(error).removeprefix("every: ")
            self._findings.complain(f"{path}.every", said)

    def _archive_folder(self, path: str, to: str) -> None:
        beside = os.path.dirname(os.path.abspath(self._findings.file))
        storage = self._plain.get("storage", {})
        store = next((storage[key] for key in _PLACES if key in storage), File().storage.path)
        root = ""
        with contextlib.suppress(ConfigError):  # a file, say: who opens the store says so
            root = find_root(OsFileSystem(), os.path.join(beside, store))
        try:
            archive_folder(to)
            folder = os.path.realpath(os.path.join(beside, to))
            if root:
                check_outside(folder, root)
        except ConfigError as error:
            self._findings.complain(path, str(error))
            return
        for other, first in self._archives.items():
            if os.path.commonpath([folder, other]) in (folder, other):
                line = self._findings.line_of(first)
                where = "is" if folder == other else "is in" if folder.startswith(other) else "has"
                said = f"it {where} another queue's, on line {line}; each queue has a folder of "
                self._findings.complain(path, said + "its own, beside those of others")
                return
        self._archives[folder] = path

    def _try_each(self, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that are good by themselves."""
        good: dict[str, Any] = {}
        for key, option in _singly(options):
            if self._try(path, key, **option):
                for name, value in option.items():
                    if isinstance(value, Mapping):
                        value = {**good.get(name, {}), **value}
                    elif isinstance(value, list):
                        value = [*good.get(name, []), *value]
                    good[name] = value
        return good

    def _try(self, path: str, key: str, **given: Any) -> bool:
        try:
            QueueSettings.unchecked(**{"name": "x", **given})
        except (ConfigError, InvalidName) as error:
            self._findings.complain(f"{path}.{key}", str(error).removeprefix(f"{key}: "))
            return False
        return True


def _singly(options: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in options.items():
        if isinstance(value, Mapping):
            for inner, each in value.items():
                yield f"{key}.{inner}", {key: {inner: each}}
        elif isinstance(value, list):
            yield key, {key: []}
            for number, each in enumerate(value):
                yield f"{key}[{number}]", {key: [each]}
        else:
            yield key, {key: value}


def _without(wrong: Collection[str], value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(wrong, each, _join(path, name))
            for name, each in value.items()
            if _join(path, name) not in wrong
        }
    if isinstance(value, list):
        places = [f"{path}[{number}]" for number in range(len(value))]
        return [
            _without(wrong, each, place)
            for each, place in zip(value, places, strict=True)
            if place not in wrong or isinstance(each, dict)
        ]
    return value


def _join(path: str, name: str) -> str:
    shown = name if name.replace("_", "").isalnum() else repr(name)
    return f"{path}.{shown}" if path else shown


def _hint(name: str, keys: Collection[str]) -> str:
    for close in difflib.get_close_matches(name, keys, n=1):
        return f"did you mean {close}?"
    return f"there are {', '.join(keys)}"


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return f"{value!r:.60}"
    return f"a date or time, {value}"
