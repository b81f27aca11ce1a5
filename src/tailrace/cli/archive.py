"""`tailrace archive`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from tailrace.cli.lazy import one_line
from tailrace.cli.output import print_json, progress_bar
from tailrace.cli.signals import Insisting
from tailrace.cli.sparks import spark_options
from tailrace.cli.stores import StorePlace, complete_queue, open_store, store_options
from tailrace.cli.times import check_range, parse_time
from tailrace.errors import ConfigError, TailraceError
from tailrace.log.offline.words import counted
from tailrace.units import format_size

if TYPE_CHECKING:
    from tailrace.queue.archived import ArchiveNote
    from tailrace.queue.looking import Look
    from tailrace.queue.store import Store
    from tailrace.spark.lake.archive import ArchiveReport, Order
    from tailrace.spark.lake.engines import Engine

__all__ = ["archive"]

SPARK_FROM: Final = 8 << 30  # bytes, from which on Spark's start does not matter


@click.command()
@click.argument("queue", metavar="[QUEUE]", required=False, shell_complete=complete_queue)
@click.option("--to", metavar="DIR", help="The archive.  [default: where it was archived before]")
@click.option(
    "--format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    help="Plain files, or a table of them as well.  [default: as before, or parquet]",
)
@click.option(
    "--partition-by",
    type=click.Choice(["date", "hour"]),
    help="A folder for each date, or each hour, in UTC.  [default: as before, or none]",
)
@click.option("--since", callback=parse_time, metavar="TIME", help="Not what is before it.")
@click.option("--until", callback=parse_time, metavar="TIME", help="Not what is from it on.")
@click.option(
    "--delete",
    is_flag=True,
    help="Read the archive back, compare it, and delete from the queue what is in it. From then on "
    "retention deletes nothing else.",
)
@click.option("--release", is_flag=True, help="Have retention no longer wait for the archive.")
@click.option("--all", "every", is_flag=True, help="All queues that the configuration archives.")
@click.option(
    "--spark/--no-spark", default=None, help="With Spark, or without.  [default: by the size]"
)
@spark_options
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each queue.")
def archive(
    queue: str | None,
    to: str | None,
    format: str | None,
    partition_by: str | None,
    since: int | None,
    until: int | None,
    delete: bool,
    release: bool,
    every: bool,
    spark: bool | None,
    master: str | None,
    conf: dict[str, str],
    store: StorePlace,
    as_json: bool,
) -> None:
    """Put what a queue has in full segments into an archive: Parquet files that anybody reads.

    Only what is not there yet is archived, so this may run again and again, and goes on where it
    was killed. The segment that is being written stays for the next time. A time stands for the
    first message that is not older.

    With --delete, segments go that were read back and are the same, never what a group of a work
    queue needs; and what is not archived stays, whatever retention says, until --release.

    It needs pip install 'tailrace[arrow]'; the tables 'tailrace[delta]' or 'tailrace[iceberg]'.
    Above 8 GiB, with --master or --spark it runs on Spark ('tailrace[spark]').

    \b
    Examples:
      tailrace archive orders --to lake/orders
      tailrace archive events --to lake/events --partition-by date --format delta --delete
      tailrace archive --all --config tailrace.yaml --json
      tailrace archive orders --release
    """
    if every == (queue is not None):
        raise click.UsageError("name a QUEUE, or say --all for those of the configuration")
    given = (to, format, partition_by, since, until)
    if every and (delete or release or any(each is not None for each in given)):
        raise click.UsageError("with --all, the configuration says what to archive, and how")
    if release and (delete or any(each is not None for each in given)):
        raise click.UsageError("--release goes alone")
    check_range(since, until)
    if spark is False and (master or conf):
        raise click.UsageError("--master and --conf are for Spark, and --no-spark excludes it")
    _check_library()
    with open_store(store) as opened:
        if release:
            assert queue is not None
            _release(opened, queue, as_json)
            return
        if every:
            orders = _orders(store, opened)
        else:
            assert queue is not None
            found = opened.get(queue)
            drop = found.drop_archived if delete else None
            folder = _remembered(opened, queue) if to is None else to
            is_named = to is not None
            orders = [_order(queue, folder, format, partition_by, since, until, drop, is_named)]
        _run(opened, orders, spark, master, conf, as_json)


def _check_library() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise TailraceError("pyarrow is missing: pip install 'tailrace[arrow]'") from None


def _order(*arguments: Any) -> Order:
    from tailrace.spark.lake.archive import Order

    return Order(*arguments)


def _orders(place: StorePlace, store: Store) -> list[Order]:
    from tailrace.spark.lake.scheduled import order_of

    config = place.config
    if config is None:
        raise ConfigError("--all is for the queues of a configuration; name it with --config")
    if not config.archives:
        raise ConfigError(f"{config.path}: no queue has an archive; give it archive.to")
    return [order_of(each, store) for each in config.archives]


def _remembered(store: Store, queue: str) -> str:
    from tailrace.queue.archived import ArchiveNote

    note = ArchiveNote.load(store.fs, store.layout, queue)
    if note is None:
        raise ConfigError(f"the queue {queue!r} was never archived; say where to: --to DIR")
    return note.folder(store.layout)


def _release(store: Store, queue: str, as_json: bool) -> None:
    from tailrace.queue.stats import look_through
    from tailrace.spark.lake.archive import release

    note: ArchiveNote | None = release(look_through(store), queue)
    folder = None if note is None else note.folder(store.layout)
    if as_json:
        print_json({"type": "released", "queue": queue, "folder": folder})
    elif folder is None:
        click.echo(f"{queue}: no archive is known; retention goes by its limits")
    else:
        click.echo(f"{queue}: retention goes by its limits; the archive stays in {folder}")


def _run(
    store: Store,
    orders: list[Order],
    spark: bool | None,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    from tailrace.queue.stats import look_through
    from tailrace.spark.lake.archive import archive

    look = look_through(store)
    if spark is None and not (master or conf):  # else whoever names Spark's settings wants it
        spark = _has_spark() and sum(_size(look, each) for each in orders) >= SPARK_FROM
    failed: list[str] = []
    with _engine(spark is not False, master, conf) as engine:
        for order in orders:
            try:
                label = f"archive {order.queue}"
                with progress_bar(label, beside_output=len(orders) > 1) as progress:
                    report = archive(look, order, engine, progress)
            except (TailraceError, OSError) as error:
                if len(orders) == 1:
                    raise
                failed.append(order.queue)  # the others do not wait for somebody to mend it
                click.echo(f"tailrace: {order.queue}: {one_line(error)}", err=True)
                if as_json:
                    print_json({"type": "error", "queue": order.queue, "error": one_line(error)})
                continue
            if as_json:
                print_json({"type": "report", **asdict(report)})
            else:
                click.echo("\n".join(_describe(report)))
    if failed:
        raise TailraceError(
            f"{len(failed)} of {counted(len(orders), 'queue')} could not be archived: "
            + ", ".join(failed)
        )


def _size(look: Look, order: Order) -> int:
    """About what there is to do; nothing where that fails, which whoever does it is told."""
    from tailrace.spark.lake.archive import size_to_archive

    try:
        return size_to_archive(look, order)
    except (TailraceError, OSError):
        return 0


def _has_spark() -> bool:
    import importlib.util

    return importlib.util.find_spec("pyspark") is not None


@contextlib.contextmanager
def _engine(on_spark: bool, master: str | None, conf: dict[str, str]) -> Iterator[Engine]:
    from tailrace.spark.lake.engines import Direct, OnSpark

    if not on_spark:
        yield Direct()
        return
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        raise TailraceError("pyspark is missing: pip install 'tailrace[spark]'") from None
    from tailrace.spark.session import local_session
    from tailrace.spark.statements import describe, quietly

    with quietly(), Insisting():
        try:
            before = signal.getsignal(signal.SIGINT)
            session = local_session(master, conf)
            signal.signal(signal.SIGINT, before)  # Spark's asks the JVM, in the middle of an answer
            yield OnSpark(session)
        except (PySparkException, Py4JError) as error:
            raise TailraceError(describe(error)) from error


def _describe(report: ArchiveReport) -> Iterator[str]:
    how = "with Spark" if report.engine == "spark" else "directly, without Spark"
    if report.steps:
        size = f"{format_size(report.bytes)} in {counted(report.files, 'file')}"
        yield f"{report.queue}: archived {counted(report.rows, 'message')}, {size}, {how}"
    else:
        yield f"{report.queue}: nothing new to archive"
    if report.table_files:
        yield f"  {counted(report.table_files, 'file')} added to the table"
    if report.verified is not None:
        deleted = f"{counted(report.deleted_segments, 'segment')}, "
        deleted += format_size(report.deleted_bytes)
        yield f"  verified below offset {report.verified:,}; deleted {deleted}"
    if report.notice:
        yield f"  {report.notice}"
    if report.remaining:
        rest = counted(report.remaining, "message")
        yield f"  {rest} not archived yet: their segment is still written to, or not chosen"
    if report.missed:
        yield f"  {counted(report.missed, 'message')} missing: retention deleted them before"
