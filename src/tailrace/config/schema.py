"""Which keys a file has, what each means, and what it is if it is not given.

The classes are the schema: what is checked, documented, published for editors and shown is read
from them. A key that is there but empty was not given.

What a value may be beyond its type is no business of this module where another has a rule for it.
Defaults stand here for people to read; a test holds them against those that count.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field

from tailrace.log.options import FlushMode
from tailrace.queue.settings import CODECS, ON_FULL, TYPES

__all__ = [
    "CONF",
    "FILE_FORMATS",
    "MESSAGE_FORMATS",
    "NAME",
    "ON_LOSS",
    "OUTPUT_MODES",
    "ArchiveEntry",
    "Disk",
    "File",
    "Pipeline",
    "QueueEntry",
    "Storage",
    "TableEntry",
    "TargetEntry",
]


def _kind(name: str, **more: Any) -> Meta:
    return Meta(extra={"kind": name}, **more)


def _shown(name: str, **rules: Any) -> Meta:
    """A kind with rules that editors get, and that nobody checks here: others do, in their words.
    They are never stricter than those."""
    examples = rules.pop("examples", None)
    return Meta(extra={"kind": name}, examples=examples, extra_json_schema=rules)


def _choice(choices: tuple[str, ...] | list[str]) -> Meta:
    return _kind("choice", extra_json_schema={"enum": [*choices]})


def _says(meaning: str, default: str | None = None, inherits: str | None = None) -> Meta:
    """What a key means; its default in words, if it has none that could be written; the key whose
    value it takes if it is not given."""
    return Meta(description=meaning, extra={"default": default, "inherits": inherits})


NAME: Final = re.compile(r"^[a-z][a-z0-9_]*$")
CONF: Final = re.compile(r"^spark\.[^=\s]+=.*$", re.DOTALL)
MESSAGE_FORMATS: Final = ("raw", "json", "csv", "avro")
FILE_FORMATS: Final = ("parquet", "csv", "json")
ON_LOSS: Final = ("fail", "skip")
OUTPUT_MODES: Final = ("append", "update", "complete")
_DURATION: Final = r"^\s*(\d+(\.\d+)?\s*([mM]?[sS]|[mMhHdDwW])?\s*)+$"
_SIZE: Final = r"^\s*\d+(\.\d+)?\s*([kKmMgGtT][iI]?)?[bB]?\s*$"
_HOURS: Final = r"^\s*(always|disk_full|\d{1,2}(\s*;\s*\d{1,2})*)\s*$"
_PORT: Final = r"([0-5]?[0-9]{1,4}|6([0-4][0-9]{3}|5([0-4][0-9]{2}|5([0-2][0-9]|3[0-5]))))"
_ADDRESS: Final = rf"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):{_PORT}$"

Text = Annotated[str, _kind("text")]
Texts = Annotated[list[str], _kind("texts")]
Flag = Annotated[bool, _kind("flag")]
Never = Annotated[bool, _shown("flag", const=False)]
Folder = Annotated[str, _shown("text", minLength=1)]
Count = Annotated[int, _kind("count", ge=0)]
Number = Annotated[float, _kind("number")]
Ratio = Annotated[float, _shown("ratio", exclusiveMinimum=0, maximum=1)]
Duration = Annotated[
    int | float | str,
    _shown("duration", pattern=_DURATION, minimum=0, examples=["250ms", "30s", "5m", "7d"]),
]
Size = Annotated[
    int | str, _shown("size", pattern=_SIZE, minimum=0, examples=["64KiB", "64MiB", 1048576])
]
Retries = Annotated[
    int | str, _shown("retries", pattern="^unlimited$", minimum=0, examples=[10, "unlimited"])
]
Address = Annotated[str, _kind("address", pattern=_ADDRESS, examples=["127.0.0.1:1883"])]
Hours = Annotated[
    str | int,
    _shown(
        "hours", pattern=_HOURS, minimum=0, maximum=23, examples=["always", "04;16", "disk_full"]
    ),
]
Names = Annotated[list[str], _kind("names")]
Confs = Annotated[list[str], _shown("confs", items={"type": "string", "pattern": CONF.pattern})]
Above0 = Annotated[int, _kind("above0", ge=1)]
Start = Annotated[
    int | str,
    _shown("start", minimum=0, minLength=1, examples=["first", "next", "2026-01-31T00:00:00Z"]),
]
Trigger = Annotated[
    int | float | str,
    _shown("trigger", pattern=f"^once$|{_DURATION}", minimum=0, examples=["10s", "5m", "once"]),
]
Delimiter = Annotated[str, _kind("delimiter", min_length=1)]
MessageFormat = Annotated[str, _choice(MESSAGE_FORMATS)]
FileFormat = Annotated[str, _choice(FILE_FORMATS)]
TableFormat = Annotated[str, _choice(sorted({*MESSAGE_FORMATS, *FILE_FORMATS}))]
OnLoss = Annotated[str, _choice(ON_LOSS)]
OutputMode = Annotated[str, _choice(OUTPUT_MODES)]
Flush = Annotated[str, _choice([str(mode) for mode in FlushMode])]
Codec = Annotated[str, _choice(CODECS)]
Type = Annotated[str, _choice(TYPES)]
OnFull = Annotated[str, _choice(ON_FULL)]
ArchiveFormat = Annotated[str, _choice(["parquet", "delta", "iceberg"])]
ArchivePartitions = Annotated[str, _choice(["none", "date", "hour"])]


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping whose keys are all known."""


class Disk(_Section, frozen=True, kw_only=True):
    """What to do when the disk fills up."""

    max_used_ratio: Annotated[
        Ratio, _says("when the disk is fuller, all goes at once that retention lets go")
    ] = 0.85
    refuse_ratio: Annotated[Ratio, _says("when the disk is fuller, publishing is refused")] = 0.90
    enough_free: Annotated[
        Size | None,
        _says(
            "as long as so much is free, neither ratio counts; 0: they always do",
            "10GiB, or 0 if a ratio is given",
        ),
    ] = None
    force: Annotated[
        Flag, _says("above `max_used_ratio`, drop the oldest ready messages, too, and count them")
    ] = False
    delete_when: Annotated[
        Hours,
        _says("when retention may delete: `always`, in hours of the day, or only on `disk_full`"),
    ] = "always"


class Storage(_Section, frozen=True, kw_only=True):
    """Where the store is, and defaults for the queues that are made in it."""

    path: Annotated[Folder, _says("the store; a relative one is beside the file")] = "data"
    badger_dir: Annotated[
        Folder | None, _says("FluxMQ's name for `path`; give one of them", "not given")
    ] = None
    flush: Annotated[Flush, _says("what publishing and settling wait for")] = "sync"
    flush_interval: Annotated[Duration, _says("how often `async` flushes")] = "1s"
    compression: Annotated[
        Codec, _says("tried on batches above 256 bytes, and kept if they get smaller")
    ] = "s2"
    segment_bytes: Annotated[Size, _says("a segment of the log ends at this size")] = "64MiB"
    segment_age: Annotated[Duration, _says("a segment ends when its first record is so old")] = (
        "168h"
    )
    index_max_bytes: Annotated[
        Size, _says("a segment ends when one of its indexes is so large")
    ] = "10MiB"
    index_interval: Annotated[Size, _says("bytes between entries of the offset index")] = "4KiB"
    time_index_interval: Annotated[Duration, _says("time between entries of the time index")] = "1s"
    max_batch_bytes: Annotated[Size, _says("what is appended at once, at most")] = "16MiB"
    producer_expiry: Annotated[
        Duration, _says("how long the last sequence of a producer is remembered")
    ] = "7d"
    open_files: Annotated[Count, _says("files of a log that are kept open, at most")] = 64
    retention_check_interval: Annotated[
        Duration, _says("how often is looked for what may be deleted")
    ] = "5m"
    disk: Disk = field(default_factory=Disk)


class QueueManager(_Section, frozen=True, kw_only=True):
    """Defaults for all queues, under FluxMQ's name for what runs them."""

    auto_commit_interval: Annotated[
        Duration,
        _says("how often the position of a stream's group is committed by itself; 0: each batch"),
    ] = "5s"


class LimitsEntry(_Section, frozen=True, kw_only=True):
    """What a queue takes; 0 means no limit."""

    max_message_size: Annotated[Size, _says("bytes of a message's value")] = "10MiB"
    max_depth: Annotated[Count, _says("messages that wait in the queue; 0: any number")] = 0
    message_ttl: Annotated[
        Duration, _says("a message is not delivered when it is older; 0: it always is")
    ] = 0
    on_full: Annotated[OnFull, _says("what publishing does when `max_depth` is reached")] = "raise"


class RetryEntry(_Section, frozen=True, kw_only=True):
    """What happens to a message that was not acknowledged."""

    max_retries: Annotated[
        Retries, _says("how often a message is tried again before it is a dead letter")
    ] = 10
    initial_backoff: Annotated[
        Duration, _says("how long a message waits before it is tried again")
    ] = "5s"
    max_backoff: Annotated[Duration, _says("how long it waits at most")] = "5m"
    multiplier: Annotated[Number, _says("how much longer it waits each time")] = 2.0


class DeadLettersEntry(_Section, frozen=True, kw_only=True):
    """Where messages go that nobody could work on."""

    enabled: Annotated[Flag, _says("keep what was given up; without this it is gone")] = True
    topic: Annotated[
        Text, _says("the queue that takes it, or its address; empty: `$dlq/<name>`")
    ] = ""
    expired: Annotated[Flag, _says("keep messages there, too, whose time ran out")] = False


class RetentionEntry(_Section, frozen=True, kw_only=True):
    """What may be deleted, oldest first; 0 means no limit."""

    max_age: Annotated[Duration, _says("messages that are older may go; 0: no limit")] = 0
    max_length_bytes: Annotated[Size, _says("the oldest may go if there is more; 0: no limit")] = 0
    max_length_messages: Annotated[
        Count, _says("the oldest may go if there are more; 0: no limit")
    ] = 0


class ArchiveEntry(_Section, frozen=True, kw_only=True):
    """Where full segments go, and when."""

    to: Annotated[
        Text, _says("the folder of its archive; a relative one is beside the file; empty: none")
    ] = ""
    format: Annotated[ArchiveFormat, _says("plain files, or a table of them as well")] = "parquet"
    partition_by: Annotated[ArchivePartitions, _says("a folder for each date, or each hour")] = (
        "none"
    )
    every: Annotated[
        Duration, _says("how often, by whoever has the store open; 0: only by command")
    ] = "1h"
    delete: Annotated[
        Flag,
        _says(
            "delete what is verified in the archive; retention waits for that, too, from then on"
        ),
    ] = False


class Replication(_Section, frozen=True, kw_only=True):
    """FluxMQ's, and without effect: a queue is on one machine."""

    enabled: Annotated[Never, _says("only `false` is taken")] = False
    group: Annotated[Text | None, _says("no effect", "not given")] = None
    mode: Annotated[Text | None, _says("no effect", "not given")] = None
    ack_timeout: Annotated[Duration | None, _says("no effect", "not given")] = None
    replication_factor: Annotated[Count | None, _says("no effect", "not given")] = None
    min_in_sync_replicas: Annotated[Count | None, _says("no effect", "not given")] = None


class QueueEntry(_Section, frozen=True, kw_only=True):
    """A queue, which is made if it does not exist, and changed if it does."""

    name: Annotated[Text, _says("its name", "has to be given")]
    type: Annotated[
        Type, _says("`classic` is worked off, `stream` is replayed; fixed when it is made")
    ] = "classic"
    topics: Annotated[
        Texts | None, _says("what it is bound to: filters as in MQTT", '`["$queue/<name>/#"]`')
    ] = None
    primary_group: Annotated[
        Text, _says("of a stream: the group whose progress deliveries show")
    ] = ""
    limits: LimitsEntry = field(default_factory=LimitsEntry)
    visibility_timeout: Annotated[Duration, _says("how long a message is leased to who got it")] = (
        "30s"
    )
    retry: RetryEntry = field(default_factory=RetryEntry)
    dlq: DeadLettersEntry = field(default_factory=DeadLettersEntry)
    retention: RetentionEntry = field(default_factory=RetentionEntry)
    archive: ArchiveEntry = field(default_factory=ArchiveEntry)
    replication: Replication = field(default_factory=Replication)
    ephemeral: Annotated[
        Flag, _says("never flushed, and gone when nobody consumes it; fixed when it is made")
    ] = False
    expires_after: Annotated[
        Duration, _says("an ephemeral queue goes when nobody has consumed it for so long")
    ] = "5m"
    compact_after: Annotated[
        Count, _says("operations of a group before its journal gives way to a snapshot")
    ] = 10_000
    expire_groups: Annotated[
        Duration, _says("a group goes when nobody has used it for so long; 0: it stays")
    ] = 0
    auto_commit_interval: Annotated[
        Duration | None,
        _says("of a stream, as above", inherits="queue_manager.auto_commit_interval"),
    ] = None
    flush: Annotated[
        Flush | None,
        _says(
            "what publishing and settling wait for; fixed when it is made", None, "storage.flush"
        ),
    ] = None
    compression: Annotated[
        Codec | None, _says("as in `storage`", inherits="storage.compression")
    ] = None
    flush_interval: Annotated[
        Duration | None, _says("as in `storage`", inherits="storage.flush_interval")
    ] = None
    segment_bytes: Annotated[
        Size | None, _says("as in `storage`", inherits="storage.segment_bytes")
    ] = None
    segment_age: Annotated[
        Duration | None, _says("as in `storage`", inherits="storage.segment_age")
    ] = None
    index_max_bytes: Annotated[
        Size | None, _says("as in `storage`", inherits="storage.index_max_bytes")
    ] = None
    index_interval: Annotated[
        Size | None, _says("as in `storage`", inherits="storage.index_interval")
    ] = None
    time_index_interval: Annotated[
        Duration | None, _says("as in `storage`", inherits="storage.time_index_interval")
    ] = None
    max_batch_bytes: Annotated[
        Size | None, _says("as in `storage`", inherits="storage.max_batch_bytes")
    ] = None
    producer_expiry: Annotated[
        Duration | None, _says("as in `storage`", inherits="storage.producer_expiry")
    ] = None
    open_files: Annotated[Count | None, _says("as in `storage`", inherits="storage.open_files")] = (
        None
    )
    retention_check_interval: Annotated[
        Duration | None, _says("as in `storage`", inherits="storage.retention_check_interval")
    ] = None


class WatermarkEntry(_Section, frozen=True, kw_only=True):
    """How late a row may come."""

    column: Annotated[Text, _says("the column with the time of a row", "has to be given")]
    delay: Annotated[Duration, _says("rows that are later than the latest by more are dropped")] = (
        "10m"
    )


class TableEntry(_Section, frozen=True, kw_only=True):
    """What else a pipeline's statement can name: files, or another queue."""

    path: Annotated[
        Text | None,
        _says("files, or a folder of them; a relative one is beside the file", "not given"),
    ] = None
    queue: Annotated[Text | None, _says("or a queue", "not given")] = None
    stream: Annotated[
        Flag, _says("of a queue: go on with it; else it is as it was at the start")
    ] = False
    format: Annotated[
        TableFormat | None,
        _says(
            "of files `csv`, `json` or `parquet`, of messages as above",
            "by the name of the files; of a queue `raw`",
        ),
    ] = None
    schema: Annotated[Text | None, _says("as above; of files it may be left out", "not given")] = (
        None
    )
    schema_file: Annotated[Text | None, _says("as above", "not given")] = None
    delimiter: Annotated[Delimiter | None, _says("as above", '`","`')] = None
    watermark: WatermarkEntry | None = None
    start: Annotated[Start | None, _says("as above, with `stream`", "not given")] = None
    max_offsets_per_trigger: Annotated[
        Above0 | None, _says("as above, with `stream`", "not given")
    ] = None


class TargetEntry(_Section, frozen=True, kw_only=True):
    """Where the rows of a pipeline go, if not to a queue."""

    path: Annotated[
        Folder, _says("a folder of files; a relative one is beside the file", "has to be given")
    ]
    format: Annotated[FileFormat, _says("of the files")] = "parquet"
    partition_by: Annotated[
        Names | None, _says("a folder for each value of these columns", "not given")
    ] = None


class Pipeline(_Section, frozen=True, kw_only=True):
    """A query that runs on, from one queue to another, or to files."""

    name: Annotated[Text, _says("its name", "has to be given")]
    source: Annotated[Text, _says("the queue that it reads", "has to be given")] = field(
        name="from"
    )
    format: Annotated[MessageFormat, _says("what its values are; `raw`: bytes")] = "raw"
    schema: Annotated[
        Text | None,
        _says(
            "their columns, as Spark writes them (`id long, at timestamp`); or an Avro schema",
            "not given",
        ),
    ] = None
    schema_file: Annotated[Text | None, _says("a file with that", "not given")] = None
    delimiter: Annotated[Delimiter | None, _says("of `csv`", '`","`')] = None
    watermark: WatermarkEntry | None = None
    start: Annotated[
        Start,
        _says("where a new pipeline begins: `first`, `next` (what comes), an offset, a time"),
    ] = "first"
    max_offsets_per_trigger: Annotated[
        Above0 | None, _says("messages in one batch, at most", "5,000,000")
    ] = None
    on_loss: Annotated[
        OnLoss,
        _says("what to do about messages that retention or damage took before they were read"),
    ] = "fail"
    dead_letters: Annotated[
        Text | None,
        _says("the queue that takes values that do not fit", "that of `from`: `$dlq/<from>`"),
    ] = None
    sql: Annotated[Text | None, _says("what it makes of it: a query", "this or `sql_file`")] = None
    sql_file: Annotated[
        Text | None, _says("a file with the query; a relative one is beside the file", "not given")
    ] = None
    tables: Annotated[
        dict[Annotated[str, Meta(pattern=NAME.pattern)], Text | TableEntry],
        _says("other tables that the query names: a path of files, or more", "none"),
    ] = field(default_factory=dict)
    to: Annotated[
        Text | TargetEntry,
        _says("the queue that it writes, which is made if it is not there", "has to be given"),
    ]
    trigger: Annotated[
        Trigger | None,
        _says("how often: a duration, or `once`: what is there, and end", "as soon as it can"),
    ] = None
    output_mode: Annotated[
        OutputMode, _says("of an aggregate: `append` writes what is final, `update` what changed")
    ] = "append"
    checkpoint: Annotated[
        Text | None,
        _says("a folder for Spark's checkpoint", "in the store: `.tailrace/pipelines/<name>`"),
    ] = None
    conf: Annotated[Confs | None, _says("settings of Spark: `name=value`", "not given")] = None


class Cluster(Struct, frozen=True, kw_only=True):
    """FluxMQ's, and without effect: tailrace is on one machine. What else is in it is not looked
    at."""

    enabled: Annotated[
        Never, _says("only `false` is taken, and it has to be there if `cluster` is")
    ] = False


class File(_Section, frozen=True, kw_only=True):
    """A tailrace configuration. At its top, keys that begin with `x-` are yours: for anchors."""

    storage: Storage = field(default_factory=Storage)
    listeners: Annotated[
        dict[Annotated[str, Meta(pattern=NAME.pattern)], Address],
        _says(
            "where the broker listens: an address for each protocol, `mqtt`, `ws`, …; without a "
            "host on every one of the machine, with the port 0 on any that is free",
            "none",
        ),
    ] = field(default_factory=dict)
    queue_manager: QueueManager = field(default_factory=QueueManager)
    queues: list[QueueEntry] = field(default_factory=list)
    pipelines: list[Pipeline] = field(default_factory=list)
    cluster: Cluster = field(default_factory=Cluster)
