"""What can be set on a queue, with its defaults, checked in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NoReturn

from tailrace.errors import ConfigError, InvalidName
from tailrace.log.options import FlushMode, LogOptions, Retention
from tailrace.queue.addresses import default_binding, parse_address
from tailrace.queue.names import check_name
from tailrace.queue.topics import check_filter, check_topic, matches
from tailrace.units import parse_size, parse_span, write_duration

__all__ = [
    "CODECS",
    "KEYS",
    "LOG_OPTIONS",
    "ON_FULL",
    "OPTIONS",
    "TYPES",
    "UNLIMITED",
    "DeadLetters",
    "Limits",
    "QueueSettings",
    "Retry",
    "describe_unknown",
    "new_incarnation",
]

TYPES: Final = ("classic", "stream")
ON_FULL: Final = ("raise", "block", "drop_oldest")
CODECS: Final = ("none", "s2", "zstd")

# FluxMQ's file has 64 bits for a number; 32 bits for retries, of which the most stands for no
# limit.
_LARGEST: Final = 2**63 - 1
UNLIMITED: Final = 2**31 - 1

_USUAL_SIZE: Final = 10 * 2**20
_STEEPEST: Final = 1000.0
_KEEP: Final = Retention()
_LOG: Final = LogOptions()
_KINDS: Final = {"classic": "a classic queue", "stream": "a stream"}
_FIXED: Final = ("type", "ephemeral", "flush")

# What a log takes besides, and a queue hands on; the rest of its options have a meaning here.
LOG_OPTIONS: Final = tuple(
    name.removesuffix("_ms")
    for name in (option.name for option in fields(LogOptions))
    if name not in ("flush", "codec", "retention")
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a queue takes; 0 means no limit of that kind."""

    max_message_size: int = _USUAL_SIZE
    max_depth: int = 0
    message_ttl_ms: int = 0
    on_full: str = "raise"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a message is tried again, and how long it waits before each time."""

    max_retries: int | None = 10  # None: for ever
    initial_backoff_ms: int = 5_000
    max_backoff_ms: int = 300_000
    multiplier: float = 2.0

    def backoff_ms(self, deliveries: int) -> int:
        """How long a message waits that was delivered so many times, and not acknowledged."""
        if not self.initial_backoff_ms:
            return 0
        try:
            grown = self.initial_backoff_ms * self.multiplier ** min(max(deliveries - 1, 0), 2**53)
        except OverflowError:
            return self.max_backoff_ms
        return int(min(grown, self.max_backoff_ms))


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where messages go that nobody could work on. Without a `topic` each queue has its own place
    for them. `expired` says whether those go there too whose time ran out."""

    enabled: bool = True
    topic: str = ""
    expired: bool = False


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of one queue, which never change: another setting is another object.

    Make them with `create`, which takes what people write; the constructor checks nothing.
    `log_options` are further options of the queue's log, in the order of their names. `incarnation`
    tells a queue from one of the same name that was deleted. `fluxmq` is what FluxMQ's file says of
    the queue, whole, and only who writes that file looks at it; it is no part of what makes two
    settings equal.
    """

    name: str
    type: str = "classic"
    topics: tuple[str, ...] = ()
    flush: FlushMode | None = None  # None: what its log was created with, else sync
    limits: Limits = Limits()
    visibility_timeout_ms: int = 30_000
    retry: Retry = Retry()
    dlq: DeadLetters = DeadLetters()
    retention: Retention = _KEEP
    primary_group: str = ""
    ephemeral: bool = False
    expires_after_ms: int = 300_000
    reserved: bool = False
    compression: str = "s2"
    log_options: tuple[tuple[str, int | str], ...] = ()
    compact_after: int = 10_000
    auto_commit_interval_ms: int = 5_000
    expire_groups_ms: int = 0  # 0: never
    implied: bool = False  # nobody has asked for it: it was made because somebody used its name
    survives: bool = False  # FluxMQ made it, where an ephemeral queue outlives a restart
    incarnation: str = ""
    fluxmq: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def create(
        cls,
        name: str,
        type: str = "classic",
        defaults: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> QueueSettings:
        """The settings of a new queue.

        `defaults` are options for every queue of a store; its own come before them, in mappings
        key by key. An option that is `None` was not given. Without `topics` the queue is bound to
        everything that is addressed to it by its name; with none of them it gets only what is
        published to it directly.
        """
        return cls.unchecked(name, type, defaults, **options)._checked(options)

    @classmethod
    def unchecked(
        cls,
        name: str,
        type: str = "classic",
        defaults: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> QueueSettings:
        """The same for who is to know what is wrong with each option by itself: what they say of
        each other is not looked at; `contradictions` does that."""
        check_name("queue", name)
        ephemeral = _flag(_given("ephemeral", options, defaults, False), "ephemeral")
        usual, others = (FlushMode.NONE, None) if ephemeral else (None, defaults)
        flush = _flush(_given("flush", options, others, usual), "flush")
        settings = cls(
            name,
            _type(type, "type"),
            (default_binding(name),),
            flush,
            ephemeral=ephemeral,
            incarnation=new_incarnation(),
        )
        for given in (defaults or {}, options):
            if given is options and settings.type == "classic":
                settings = replace(settings, primary_group="")  # a default for streams
            settings = settings._with({k: v for k, v in given.items() if k not in _FIXED})
        return settings

    @classmethod
    def imply(
        cls, name: str, pattern: str, defaults: Mapping[str, Any] | None = None
    ) -> QueueSettings:
        """The settings of a queue that nobody has asked for, but that somebody uses."""
        settings = cls.create(name, defaults=defaults, ephemeral=True, topics=[pattern])
        return replace(settings, implied=True)

    def declared(
        self, type: str, defaults: Mapping[str, Any], options: Mapping[str, Any]
    ) -> QueueSettings:
        """The settings of this queue when somebody asks for it: `changed`. But one that nobody has
        asked for before becomes what it would be if it were made now, which is durable unless that
        is not wanted; it stays bound to what it was bound to."""
        if not self.implied:
            return self.changed(type=type, **options)
        if _type(type, "type") != self.type:
            raise ConfigError(
                f"type: {self.name} is {_KINDS[self.type]}, because somebody published to it or "
                f"consumed from it before it was made; delete it first, or use another name"
            )
        asked = QueueSettings.create(self.name, type, defaults, **options)
        topics = () if options.get("topics") is not None else self.topics
        return replace(
            asked,
            topics=tuple(dict.fromkeys((*asked.topics, *topics))),
            flush=asked.flush or FlushMode.SYNC,
            incarnation=self.incarnation,
            fluxmq=self.fluxmq,
        )

    def changed(self, **options: Any) -> QueueSettings:
        """The settings of this queue after a change; itself, if nothing differs.

        | Option | Another value |
        |---|---|
        | `type`, `ephemeral` | is refused: they are fixed when the queue is created |
        | `flush` | is refused: it is the queue's promise; where nobody gave one, `sync` can be |
        | `limits`, `retry`, `dlq`, `retention` | counts for the keys that are given |
        | `topics` | takes the place of all that there were |
        | any other | takes the place of the old one |
        | one that is `None`, or not there | changes nothing |

        What processes have open goes on by them at once; but `flush_interval`, `index_interval`,
        `time_index_interval`, `open_files`, `producer_expiry` and `retention_check_interval` count
        when they open the queue next.
        """
        settings = self
        type, ephemeral, flush = (options.pop(key, None) for key in _FIXED)
        if type is not None and _type(type, "type") != self.type:
            self._refuse("type", _KINDS[self.type], _KINDS[type])
        if ephemeral is not None and _flag(ephemeral, "ephemeral") is not self.ephemeral:
            words = ("durable", "ephemeral")
            self._refuse("ephemeral", words[self.ephemeral], words[ephemeral])
        if flush is not None:
            flush, promise = _flush(flush, "flush"), self._promise
            if promise is None and flush is FlushMode.SYNC:
                settings = replace(self, flush=flush)
            elif flush is not promise:
                self._refuse("flush", promise or FlushMode.SYNC, str(flush))
        settings = settings._with(options)
        return settings if settings is self else settings._checked(options, self)

    def _checked(
        self, options: Mapping[str, Any], before: QueueSettings | None = None
    ) -> QueueSettings:
        """Itself, unless its options contradict each other. How they did `before` is no reason to
        refuse a change of something else: FluxMQ may have made the queue."""
        known = () if before is None else list(before.contradictions(options))
        for key, said in self.contradictions(options):
            if (key, said) not in known:
                raise ConfigError(f"{key}: {said}")
        return self

    def contradictions(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """What cannot be true of one queue at once: the option that is to blame, and why. What was
        `given` somebody has chosen, also if it is what it would be anyway."""
        name = self.name
        if self.ephemeral and self.flush not in (None, FlushMode.NONE):
            yield "flush", f"{name} is ephemeral, and so it is never flushed"
        if self.topics == (default_binding(name),) and ("+" in name or "#" in name):
            yield "topics", f"{name!r} cannot be a level of a filter; give it topics"
        largest, limit = self.max_batch_bytes, self.limits.max_message_size
        limits = given.get("limits")
        is_chosen = isinstance(limits, Mapping) and limits.get("max_message_size") is not None
        if limit > largest and (is_chosen or limit != _USUAL_SIZE):
            said = (
                f"{limit:,} bytes are more than a batch can hold, and a message is in one: "
                f"max_batch_bytes is {largest:,}; raise that, too, or lower this"
            )
            yield "limits.max_message_size", said
        first, longest = self.retry.initial_backoff_ms, self.retry.max_backoff_ms
        if longest < first:
            said = (
                f"{write_duration(longest)} is less than retry.initial_backoff, which is "
                f"{write_duration(first)}; raise this, or lower that"
            )
            yield "retry.max_backoff", said
        if self.primary_group and self.type == "classic":
            yield "primary_group", f"{name} is a classic queue, and only a stream can have one"
        if self.dlq.enabled and self.dlq.topic:
            yield from self._wrong_topic(self.dlq.topic)

    def _wrong_topic(self, topic: str) -> Iterator[tuple[str, str]]:
        """Why it can be no place for dead letters, as far as this queue can tell."""
        try:
            address = parse_address(topic)
        except InvalidName as error:
            yield "dlq.topic", str(error)
            return
        if address is not None and address.verb is not None:
            yield "dlq.topic", f"{topic!r} is no topic to publish to: it has a verb"
        leads_back = topic == self.name or any(matches(each, topic) for each in self.topics)
        if leads_back or (address is not None and address.queue == self.name):
            said = (
                f"{topic!r} leads back to {self.name}, so its dead letters would never come to an "
                f"end; name another one, or none for '$dlq/{self.name}'"
            )
            yield "dlq.topic", said

    @property
    def max_batch_bytes(self) -> int:
        """What the queue's log appends at once, at most."""
        return int(dict(self.log_options).get("max_batch_bytes", _LOG.max_batch_bytes))

    def log_arguments(self) -> dict[str, Any]:
        """What the queue's log is to be opened with. Retention is not among it: what may be deleted
        depends on the groups as well."""
        return {"flush": self._promise, "compression": self.compression, **dict(self.log_options)}

    @property
    def _promise(self) -> FlushMode | None:
        return FlushMode.NONE if self.ephemeral else self.flush

    def _refuse(self, key: str, kind: str, other: str) -> NoReturn:
        raise ConfigError(
            f"{key}: {self.name} is {kind}, and cannot become {other}; delete it first, or use "
            f"another name"
        )

    def _with(self, options: Mapping[str, Any]) -> QueueSettings:
        """With these options, checked, in place of what there was."""
        new: dict[str, Any] = {}
        log_options = dict(self.log_options)
        for key, value in options.items():
            if key not in OPTIONS:
                raise ConfigError(describe_unknown(key, OPTIONS, "a queue"))
            if value is None:
                continue
            if key in _PLAIN:
                name, parse = _PLAIN[key]
                new[name] = parse(value, key)
            elif key in _NESTED:
                new[key] = _parse_nested(getattr(self, key), value, key)
            elif key in LOG_OPTIONS:
                log_options[key] = _log_option(value, key)
            else:
                _check_replication(value, key)
        new["log_options"] = tuple(sorted(log_options.items()))
        settings = replace(self, **new)
        return self if settings == self else settings


def new_incarnation() -> str:
    return os.urandom(16).hex()


def _given(
    key: str, options: Mapping[str, Any], defaults: Mapping[str, Any] | None, otherwise: Any
) -> Any:
    for source in (options, defaults or {}):
        if source.get(key) is not None:
            return source[key]
    return otherwise


# --- single values --------------------------------------------------------------------------


def _flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key}: expected true or false, got {value!r}")
    return value


def _flush(value: Any, key: str) -> FlushMode | None:
    return LogOptions.parse(flush=value).flush


def _between(value: Any, key: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key}: expected a whole number, got {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{key}: {value} is outside {low}..{high}")
    return value


def _count(value: Any, key: str) -> int:
    return _between(value, key, 0, _LARGEST)


def _count_from_one(value: Any, key: str) -> int:
    return _between(value, key, 1, _LARGEST)


def _retries(value: Any, key: str) -> int | None:
    if value is None or value == "unlimited":
        return None
    return _between(value, key, 0, UNLIMITED - 1)


def _size(value: Any, key: str) -> int:
    return _between(parse_size(value, key), key, 0, _LARGEST)


def _some_time(value: Any, key: str) -> int:
    milliseconds = parse_span(value, key)
    if not milliseconds:
        raise ConfigError(f"{key}: {value!r} is no time at all; a millisecond is the least")
    return milliseconds


def _multiplier(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key}: expected a number, got {value!r}")
    if not 1 <= value <= _STEEPEST:
        raise ConfigError(f"{key}: {value!r} is outside 1..{_STEEPEST:g}")
    return float(value)


def _one_of(choices: Collection[str]) -> Callable[[Any, str], str]:
    def parse(value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ConfigError(f"{key}: {value!r} is not one of {', '.join(choices)}")
        return value

    return parse


_type = _one_of(TYPES)


def _topics(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(topic, str) for topic in value):
        raise ConfigError(f"{key}: expected a list such as ['$queue/orders/#'], got {value!r}")
    for topic in value:
        check_filter(topic)
    return tuple(dict.fromkeys(value))


def _topic(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{key}: expected a topic, got {value!r}")
    if value:
        check_topic(value)
    return value


def _group(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{key}: expected the name of a group, got {value!r}")
    if value:
        check_name("group", value)
    return value


def _log_option(value: Any, key: str) -> int | str:
    """As a log takes it, and always the same for the same, however it was written."""
    options = LogOptions.parse(**{key: value})
    if hasattr(options, key):
        return int(getattr(options, key))
    return f"{parse_span(value, key)}ms"


# --- mappings -------------------------------------------------------------------------------

_Parsers = Mapping[str, tuple[str, Callable[[Any, str], Any]]]


def _or_none(parse: Callable[[Any, str], int]) -> Callable[[Any, str], int | None]:
    """Retention has `None` where others have 0."""
    return lambda value, key: None if value is None else parse(value, key) or None


_NESTED: Final[Mapping[str, _Parsers]] = {
    "limits": {
        "max_message_size": ("max_message_size", _size),
        "max_depth": ("max_depth", _count),
        "message_ttl": ("message_ttl_ms", parse_span),
        "on_full": ("on_full", _one_of(ON_FULL)),
    },
    "retry": {
        "max_retries": ("max_retries", _retries),
        "initial_backoff": ("initial_backoff_ms", parse_span),
        "max_backoff": ("max_backoff_ms", parse_span),
        "multiplier": ("multiplier", _multiplier),
    },
    "dlq": {
        "enabled": ("enabled", _flag),
        "topic": ("topic", _topic),
        "expired": ("expired", _flag),
    },
    "retention": {
        "max_age": ("max_age_ms", _or_none(parse_span)),
        "max_bytes": ("max_bytes", _or_none(_size)),
        "max_records": ("max_records", _or_none(_count)),
        "max_length_bytes": ("max_bytes", _or_none(_size)),
        "max_length_messages": ("max_records", _or_none(_count)),
    },
}

_PLAIN: Final[_Parsers] = {
    "topics": ("topics", _topics),
    "visibility_timeout": ("visibility_timeout_ms", _some_time),
    "primary_group": ("primary_group", _group),
    "expires_after": ("expires_after_ms", _some_time),
    "reserved": ("reserved", _flag),
    "compression": ("compression", _one_of(CODECS)),
    "compact_after": ("compact_after", _count_from_one),
    "auto_commit_interval": ("auto_commit_interval_ms", parse_span),
    "expire_groups": ("expire_groups_ms", parse_span),
}

# What FluxMQ's configuration says of replication, which means nothing as long as it is off.
_REPLICATION: Final = (
    "enabled",
    "group",
    "mode",
    "ack_timeout",
    "replication_factor",
    "min_in_sync_replicas",
)

_MAPPINGS: Final[Mapping[str, Collection[str]]] = {**_NESTED, "replication": _REPLICATION}
_ALONE: Final = (*_FIXED, *_PLAIN, *LOG_OPTIONS)
OPTIONS: Final = frozenset({*_ALONE, *_MAPPINGS})
# The same with what is in the mappings: `limits.max_depth`.
KEYS: Final = frozenset(
    {*_ALONE, *(f"{key}.{name}" for key in _MAPPINGS for name in _MAPPINGS[key])}
)


def _parse_nested(old: Any, given: Any, key: str) -> Any:
    """`old`, with what is given in its place: key by key, or all of it by one of its kind."""
    if isinstance(given, type(old)):
        return given
    parsers = _NESTED[key]
    _check_mapping(given, key, parsers)
    new = {}
    for name, value in given.items():
        attribute, parse = parsers[name]
        new[attribute] = parse(value, f"{key}.{name}")
    return replace(old, **new)


def _check_replication(given: Any, key: str) -> None:
    _check_mapping(given, key, _REPLICATION)
    if _flag(given.get("enabled", False), f"{key}.enabled"):
        raise ConfigError(f"{key}.enabled: a queue is on one machine, and cannot be replicated")


def _check_mapping(given: Any, key: str, names: Collection[str]) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{key}: expected a mapping of {', '.join(names)}, got {given!r}")
    for name in given:
        if name not in names:
            known = [f"{key}.{known}" for known in names]
            raise ConfigError(describe_unknown(f"{key}.{name}", known, key))


def describe_unknown(key: str, names: Collection[str], what: str) -> str:
    """What to say of an option that `what` does not take."""
    from difflib import get_close_matches  # only a mistake needs it

    names = sorted(names)
    meant = "".join(f" (did you mean {name}?)" for name in get_close_matches(key, names, n=1))
    return f"{key}: unknown option{meant}; {what} takes {', '.join(names)}"
