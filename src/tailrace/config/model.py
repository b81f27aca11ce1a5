"""`Config`: what a configuration file says, and where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tailrace.config.checking import Findings, check_nodes
from tailrace.config.declaring import QueueConfig, options_for_all, problems_in, queues_of
from tailrace.config.keys import keys_of
from tailrace.config.nodes import Node, Problem, Unreadable, refuse
from tailrace.config.schema import Disk, File, Pipeline, Storage
from tailrace.errors import ConfigError
from tailrace.queue.addresses import default_binding
from tailrace.queue.disk import DiskSettings
from tailrace.queue.layout import CONFIGS
from tailrace.queue.settings import QueueSettings
from tailrace.queue.store import Store
from tailrace.units import parse_duration, write_size

__all__ = [
    "NAMES",
    "ArchiveConfig",
    "Config",
    "QueueConfig",
    "Value",
    "check",
    "find_here",
    "find_others",
    "load",
    "named_store",
    "store_of",
]

NAMES: Final = CONFIGS
DEFAULT: Final = "default"
_ENOUGH: Final = "storage.disk.enough_free"
_PLACES: Final = ("storage.path", "storage.badger_dir")


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """The archive of a queue: what `tailrace archive` takes. `every_s` of 0: only by command."""

    queue: str
    folder: str
    format: str
    partition_by: str  # or nothing
    every_s: float
    delete: bool


@dataclass(frozen=True, slots=True)
class Value:
    """A value that counts. `origin` is where it is written (`tailrace.yaml:12`), or `default`."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """What a configuration file says. It never changes: load it again to see what is new.

    `file` has every value, with its default where the file says nothing; `path` is the file's, and
    `None` if there is none.
    """

    path: str | None
    file: File
    queues: list[QueueConfig]
    _findings: Findings = field(repr=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Read a file: TOML if its name ends so, else YAML. `ConfigError` names the file, the line
        and the key of what is wrong."""
        return load(path)

    @classmethod
    def find(cls, store: str | os.PathLike[str]) -> Config | None:
        """The configuration of a store, if it has one; see `find_file`."""
        path = cls.find_file(store)
        return None if path is None else load(path)

    @staticmethod
    def find_file(
        store: str | os.PathLike[str], *, beside: str | os.PathLike[str] | None = None
    ) -> str | None:
        """The file of a store, good or not: `tailrace.yaml`, `.yml` or `.toml` in its folder, else
        beside it, or the one that is given for that. One beside it that names another folder as its
        store is not meant."""
        base = _base(store)
        inside = _only_one(base)
        if inside is not None:
            return inside
        if beside is not None:
            return os.fspath(beside)
        found = _only_one(os.path.dirname(base))
        if found is None:
            return None
        place = named_store(found)
        return found if place is None or _is_same(place, base) else None

    @classmethod
    def empty(cls) -> Config:
        """As if there were a file that says nothing."""
        return _build(None, Findings(DEFAULT))

    # --- what it says -----------------------------------------------------------------------

    @property
    def store_path(self) -> str:
        """The folder of the store; a relative one is beside the file."""
        folder = os.path.dirname(self.path) if self.path is not None else ""
        place = _place_in(self._findings.plain)
        return os.path.join(folder, self.file.storage.path if place is None else place)

    @property
    def disk(self) -> Disk:
        """How full the disk may get, and what happens then."""
        return self.file.storage.disk

    @property
    def listeners(self) -> Mapping[str, str]:
        """Addresses of the broker, by the name of the protocol."""
        return self.file.listeners

    @property
    def pipelines(self) -> list[Pipeline]:
        """What the pipeline is to make of which queue."""
        return self.file.pipelines

    @property
    def archives(self) -> list[ArchiveConfig]:
        """The queues that are archived, and how."""
        beside = os.path.dirname(os.path.abspath(self.path)) if self.path is not None else ""
        return [
            ArchiveConfig(
                entry.name,
                os.path.join(beside, entry.archive.to),
                entry.archive.format,
                "" if entry.archive.partition_by == "none" else entry.archive.partition_by,
                parse_duration(entry.archive.every, "every") / 1000,
                entry.archive.delete,
            )
            for entry in self.file.queues
            if entry.archive.to
        ]

    def store_options(self) -> dict[str, Any]:
        """What `tailrace.open(path, **options)` takes: what the file says for all queues, and of
        the disk."""
        return options_for_all(self._findings.plain)

    def values(self) -> Iterator[Value]:
        """Every value that counts, in the order of the schema, with its origin."""
        yield from self._values(File, "", self.file, None)

    def origin(self, key: str) -> str:
        """Where the value of a key comes from."""
        if key in self._findings.lines and self.is_given(key):
            return f"{self._findings.file}:{self._findings.lines[key]}"
        return DEFAULT

    def is_given(self, key: str) -> bool:
        """Does the file say it?"""
        found: Any = self._findings.plain
        for part in key.replace("]", "").replace("[", ".").split("."):
            if isinstance(found, list):
                found = found[int(part)] if int(part) < len(found) else None
            else:
                found = found.get(part) if isinstance(found, dict) else None
        return found is not None

    # --- what it does -----------------------------------------------------------------------

    def apply(self, store: Store) -> None:
        """Make the queues of the file, and change those that exist: what the file says of a queue
        counts, what it does not say stays. If one cannot be changed so, none is."""
        for problem in self.problems_in(store.registry.current()):
            raise ConfigError(str(problem))
        store.declare([(queue.name, queue.type, queue.options) for queue in self.queues])

    def problems_in(self, queues: Mapping[str, QueueSettings]) -> list[Problem]:
        """Why a store with these queues could not be opened with this file, in the order of its
        lines."""
        return problems_in(self._findings, queues)

    # --- origins ----------------------------------------------------------------------------

    def _values(self, section: Any, above: str, has: Any, name: str | None) -> Iterator[Value]:
        fields = {each.encode_name: each.name for each in msgspec.structs.fields(section)}
        for key in keys_of(section).values():
            path, value = f"{above}{key.name}", getattr(has, fields[key.name])
            if key.is_list:
                for number, item in enumerate(value):
                    place = f"{path}[{number}]."
                    yield from self._values(key.section, place, item, item.name)
            elif key.is_map:
                for each in value:
                    yield from self._one(key.section, f"{path}.{each}", value[each], name)
            elif key.section is not None:
                if value is not None:
                    yield from self._one(key.section, path, value, name)
            elif path in _PLACES:
                if path == _PLACES[0]:
                    yield self._place()
            elif value is None and key.inherits:
                yield Value(path, self.value_of(key.inherits), self.origin(key.inherits))
            elif value is None and path == _ENOUGH:
                enough = DiskSettings.parse(self._findings.plain.get("storage", {}).get("disk"))
                yield Value(path, write_size(enough.enough_free), DEFAULT)
            elif value is None and key.name == "topics":
                yield Value(path, [default_binding(name or "")], DEFAULT)
            elif value is not None:
                yield Value(path, value, self.origin(path))

    def _one(self, section: Any, path: str, has: Any, name: str | None) -> Iterator[Value]:
        """A mapping, or a value that stands for one."""
        if section is not None and isinstance(has, section):
            yield from self._values(section, f"{path}.", has, name)
        else:
            yield Value(path, has, self.origin(path))

    def _place(self) -> Value:
        """The folder of the store, by whichever of its names it is given."""
        place = _place_in(self._findings.plain)
        given = next(filter(self.is_given, _PLACES), _PLACES[0])
        return Value(
            _PLACES[0], self.file.storage.path if place is None else place, self.origin(given)
        )

    def value_of(self, key: str) -> Any:
        """Of a key of `storage` or `queue_manager`."""
        section, _, name = key.partition(".")
        return getattr(getattr(self.file, section), name)


# --- files ----------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Config:
    """Read a file: TOML if its name ends so, else YAML."""
    findings = _read(os.fspath(path))
    if findings.problems:
        first, *others = findings.problems
        more = f" (and {len(others)} more: tailrace config check shows them)" if others else ""
        raise ConfigError(f"{first}{more}")
    return _build(os.fspath(path), findings)


def check(
    path: str | os.PathLike[str], queues: Mapping[str, QueueSettings] | None = None
) -> list[Problem]:
    """All that is wrong in a file, in the order of its lines; with the `queues` of a store, also
    why that could not be opened with it."""
    findings = _read(os.fspath(path))
    found = [] if queues is None else problems_in(findings, queues)
    return sorted([*findings.problems, *found], key=lambda problem: problem.line)


def find_here() -> str | None:
    """The file in the working folder, good or not, if there is one."""
    return _only_one("")


def find_others(store: str | os.PathLike[str]) -> list[str]:
    """The files that a person may have meant for a store that has none: they are beside it, or in
    the working folder, and for another store."""
    beside, here = _only_one(os.path.dirname(_base(store))), find_here()
    if beside is not None and here is not None and _is_same(beside, here):
        beside = None
    return [each for each in (beside, here) if each is not None]


def named_store(path: str) -> str | None:
    """The folder of the store, if a file names it; the file may be wrong otherwise."""
    place = _place_in(_read(path).plain)
    return None if place is None else os.path.join(os.path.dirname(path), place)


def store_of(path: str) -> str:
    """The folder of the store that a file is for; the file may be wrong otherwise."""
    return named_store(path) or os.path.join(os.path.dirname(path), Storage().path)


def _build(path: str | None, findings: Findings) -> Config:
    plain = findings.plain
    return Config(path, msgspec.convert(plain, File), queues_of(plain), findings)


def _read(path: str) -> Findings:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file that can be read") from error
    try:
        root, others = _parse(data, is_toml=path.lower().endswith(".toml"))
    except Unreadable as error:
        return Findings(path, problems=[Problem(path, error.line, "", error.message)])
    findings = check_nodes(root, path)
    findings.problems += [Problem(path, line, "", message) for line, message in others]
    findings.problems.sort(key=lambda problem: problem.line)
    return findings


def _parse(data: bytes, *, is_toml: bool) -> tuple[Node, list[tuple[int, str]]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(data.count(b"\n", 0, error.start) + 1, "this is not UTF-8")
    if is_toml:
        from tailrace.config.toml_text import parse_toml

        return parse_toml(text), []
    from tailrace.config.yaml_text import parse_yaml

    return parse_yaml(text)


def _place_in(plain: Mapping[str, Any]) -> str | None:
    """The folder of the store, if the file names it."""
    storage = plain.get("storage", {})
    place: str | None = storage.get("path", storage.get("badger_dir"))
    return place


def _base(store: str | os.PathLike[str]) -> str:
    """The folder of a store, of which its `queue` may be given."""
    base = os.path.abspath(store)
    if os.path.basename(base) == "queue" and os.path.isdir(os.path.join(base, "config")):
        return os.path.dirname(base)
    return base


def _is_same(folder: str, other: str) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other)


def _only_one(folder: str) -> str | None:
    paths = [os.path.join(folder, name) for name in NAMES]
    found = [path for path in paths if os.path.isfile(path)]
    if len(found) > 1:
        raise ConfigError(f"{found[0]}: there is {os.path.basename(found[1])} beside it; keep one")
    return found[0] if found else None
