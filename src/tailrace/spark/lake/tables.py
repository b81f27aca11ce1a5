"""An archive as a table of Delta Lake or Iceberg: the same files, listed in the table's own way.

A table follows the manifest. It notes how many of the manifest's steps it has, in the same commit
that adds their files: as an application's transaction in Delta, as a property in Iceberg. So it
catches up after a kill at any point, no file is in it twice and none is missing; and what others do
to the table meanwhile (compaction, say) does not make files come again.

A message may have a time that no calendar has, and Iceberg takes no file with one: such a file is
left out of its table, with a warning, and the archive goes on.

Delta's log is in the archive's folder, beside the files. Iceberg's catalog (SQLite) and metadata
are in its side folder, and name files by their whole path: such an archive does not move.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet

from tailrace.errors import ConfigError, TailraceError
from tailrace.log.fs import NO_SPACE
from tailrace.spark.lake.manifest import ArchivedFile, Manifest, Origin, Step, side_of
from tailrace.spark.lake.rows import NO_TIME, schema_of

pq: Any = pyarrow.parquet  # its stubs know few of these calls

__all__ = ["FORMATS", "Table", "TableBehind", "formats_in", "open_table"]

logger = logging.getLogger("tailrace")

FORMATS: Final = ("parquet", "delta", "iceberg")

# What their libraries take for something else in the address of a file.
_REFUSED: Final = {"delta": "%", "iceberg": "%#?"}
_STEPS: Final = "tailrace.steps"
_NAMESPACE: Final = "tailrace"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = ("timestamp", "expires_at")
_COLUMNS: Final = {"date": pa.date32(), "hour": pa.int32()}


class TableBehind(TailraceError):
    """A table does not have all that the archive has, which is whole without it."""


class Table(Protocol):
    def catch_up(self, manifest: Manifest) -> int:
        """Add the files of the steps that it does not have yet; how many files. `TableBehind` if it
        cannot be changed now."""


def open_table(kind: str, folder: str, origin: Origin) -> Table | None:
    """The table of an archive, which is made if it does not exist; plain files have none.
    `TailraceError` names what to install."""
    for character in _REFUSED.get(kind, ""):
        if character in os.path.abspath(folder):
            raise ConfigError(
                f"{folder}: a table of {kind} cannot be in a folder with a {character!r} in its "
                "path; name another, or archive to plain files: --format parquet"
            )
    match kind:
        case "parquet":
            return None
        case "delta":
            return _Delta(folder, origin)
        case "iceberg":
            return _Iceberg(folder, origin)
    raise ConfigError(f"format: {kind!r} is not one of {', '.join(FORMATS)}")


def formats_in(folder: str) -> list[str]:
    """The tables that an archive has."""
    found = []
    if os.path.isdir(os.path.join(folder, "_delta_log")):
        found.append("delta")
    if os.path.exists(_catalog_file(folder)):
        found.append("iceberg")
    return found


def _missing(package: str, extra: str) -> TailraceError:
    return TailraceError(f"{package} is missing: pip install 'tailrace[{extra}]'")


@contextlib.contextmanager
def _changing(kind: str, folder: str, *errors: type[Exception]) -> Iterator[None]:
    """`errors` are the library's own; it lets pass others, which what it stands on raises."""
    known: tuple[type[Exception], ...] = (OSError, OverflowError, ValueError, pa.ArrowException)
    try:
        yield
    except errors + known as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise
        raise TableBehind(
            f"the {kind} table in {folder} cannot be changed: {error}. The files and the manifest "
            "are whole; archive again, and it catches up"
        ) from error


def _parts(origin: Origin) -> list[str]:
    return {"": [], "date": ["date"], "hour": ["date", "hour"]}[origin.partition_by]


def _since(steps: Sequence[Step], count: int, where: str) -> list[ArchivedFile]:
    if count > len(steps):
        raise TailraceError(
            f"{where} has {count} steps of the archive, whose manifest has {len(steps)}: it is not "
            "the table of this archive, or the manifest was put back to an older one"
        )
    return [file for step in steps[count:] for file in step.files]


class _Delta:
    def __init__(self, folder: str, origin: Origin) -> None:
        try:
            import deltalake
        except ImportError:
            raise _missing("deltalake", "delta") from None
        self._library: Any = deltalake
        self._folder = folder
        self._parts = _parts(origin)
        self._app = f"tailrace:{origin.queue}:{origin.incarnation}"
        parts: list[Any] = [pa.field(name, _COLUMNS[name]) for name in self._parts]
        columns: list[Any] = [*schema_of(origin.format), *parts]
        self._schema = deltalake.Schema.from_arrow(pa.schema(columns))

    def catch_up(self, manifest: Manifest) -> int:
        from deltalake.exceptions import DeltaError

        with _changing("Delta", self._folder, DeltaError):
            return self._add(manifest)

    def _add(self, manifest: Manifest) -> int:
        deltalake = self._library
        table = deltalake.DeltaTable.create(
            self._folder,
            self._schema,
            mode="ignore",
            partition_by=self._parts or None,
            name=manifest.origin.queue,
        )
        known = table.transaction_version(self._app) or 0
        files = _since(manifest.added, known, f"the Delta table in {self._folder}")
        if known < len(manifest.added):
            done = deltalake.Transaction(self._app, len(manifest.added))
            table.create_write_transaction(
                [self._action(file) for file in files],
                mode="append",
                schema=self._schema,
                partition_by=self._parts or None,
                commit_properties=deltalake.CommitProperties(app_transactions=[done]),
            )
        return len(files)

    def _action(self, file: ArchivedFile) -> Any:
        from deltalake.transaction import AddAction

        return AddAction(
            path=file.path,
            size=file.size,
            partition_values=dict(_values(file)),
            modification_time=int(os.stat(os.path.join(self._folder, file.path)).st_mtime * 1000),
            data_change=True,
            stats=json.dumps(_stats(file)),
        )


def _values(file: ArchivedFile) -> Iterator[tuple[str, str | None]]:
    """The partition of a file, by its folders."""
    for part in file.path.split("/")[:-1]:
        name, _, value = part.partition("=")
        if value == NO_TIME:
            yield name, None
        else:
            yield name, str(int(value)) if name == "hour" else value


def _stats(file: ArchivedFile) -> dict[str, Any]:
    if not (_is_dated(file.first_ms) and _is_dated(file.last_ms)):
        return {"numRecords": file.rows}
    return {
        "numRecords": file.rows,
        "minValues": {"timestamp": _moment(file.first_ms)},
        "maxValues": {"timestamp": _moment(file.last_ms)},
        "nullCount": {"timestamp": 0},
    }


def _is_dated(milliseconds: int) -> bool:
    """Does a calendar have it?"""
    try:
        _moment(milliseconds)
    except OverflowError:
        return False
    return True


def _moment(milliseconds: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """pyiceberg warns of each column without statistics; those of values would be of no use."""
    logger = logging.getLogger("pyiceberg.io.pyarrow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _catalog_file(folder: str) -> str:
    return os.path.join(side_of(folder), "iceberg.db")


class _Iceberg:
    def __init__(self, folder: str, origin: Origin) -> None:
        try:
            import pyiceberg.catalog.sql
        except ImportError:
            raise _missing("pyiceberg (with SQLAlchemy)", "iceberg") from None
        self._library: Any = pyiceberg.catalog.sql
        self._folder = os.path.abspath(folder)
        self._origin = origin
        self._name = re.sub(r"\W", "_", origin.queue)
        self._warehouse = f"file://{side_of(self._folder)}/iceberg"

    def catch_up(self, manifest: Manifest) -> int:
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import SQLAlchemyError

        with _changing("Iceberg", self._folder, CommitFailedException, SQLAlchemyError):
            catalog = self._library.SqlCatalog(
                "tailrace",
                uri=f"sqlite:///{_catalog_file(self._folder)}",
                warehouse=self._warehouse,
            )
            try:
                return self._add(self._table(catalog), manifest)
            finally:
                catalog.close()

    def _add(self, table: Any, manifest: Manifest) -> int:
        known = int(table.properties.get(_STEPS, 0))
        found = _since(manifest.added, known, f"the Iceberg table in {self._folder}")
        files = [file for file in found if self._takes(file)]
        if len(files) < len(found):
            logger.warning(
                "%s: %d files are not in the Iceberg table: messages in them have a time, or "
                "expire, before year 1 or after 9999",
                self._folder,
                len(found) - len(files),
                extra={"path": self._folder, "count": len(found) - len(files)},
            )
        if known < len(manifest.added):
            done = {_STEPS: str(len(manifest.added))}
            with _quietly(), table.transaction() as transaction:
                if files:
                    transaction.add_files(
                        [f"file://{self._folder}/{file.path}" for file in files],
                        snapshot_properties=done,
                        check_duplicate_files=False,  # the property tells
                    )
                transaction.set_properties(done)
        return len(files)

    def _takes(self, file: ArchivedFile) -> bool:
        """Are all of its times such that a calendar has them? Iceberg asks for the oldest and the
        newest of each column."""
        metadata = pq.read_metadata(os.path.join(self._folder, file.path))
        for number in range(metadata.num_row_groups * metadata.num_columns):
            group, index = divmod(number, metadata.num_columns)
            column = metadata.row_group(group).column(index)
            found = column.statistics
            if column.path_in_schema not in _TIMES or found is None or not found.has_min_max:
                continue
            if not (_is_dated(found.min_raw) and _is_dated(found.max_raw)):
                return False
        return True

    def _table(self, catalog: Any) -> Any:
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.partitioning import (
            UNPARTITIONED_PARTITION_SPEC,
            PartitionField,
            PartitionSpec,
        )
        from pyiceberg.schema import assign_fresh_schema_ids
        from pyiceberg.transforms import DayTransform, HourTransform

        name = (_NAMESPACE, self._name)
        catalog.create_namespace_if_not_exists(_NAMESPACE)
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            columns = schema_of(self._origin.format)
            schema = assign_fresh_schema_ids(catalog._convert_schema_if_needed(columns))
            spec = UNPARTITIONED_PARTITION_SPEC
            if self._origin.partition_by:
                is_hour = self._origin.partition_by == "hour"
                by = PartitionField(
                    source_id=schema.find_field("timestamp").field_id,
                    field_id=1000,
                    transform=HourTransform() if is_hour else DayTransform(),
                    name=f"timestamp_{'hour' if is_hour else 'day'}",
                )
                spec = PartitionSpec(by)
            return catalog.create_table(
                name, schema, location=f"{self._warehouse}/{self._name}", partition_spec=spec
            )
