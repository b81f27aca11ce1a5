"""`tailrace pipeline`. What it needs is imported when it runs: `tailrace --help` lists it, too."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.output import as_age, as_time, print_json, print_table
from tailrace.cli.signals import Stopped, Stopping
from tailrace.cli.sparks import errors_of_spark, spark_options
from tailrace.cli.stores import StorePlace, look_at_store, open_store, place_in, store_options
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tailrace.spark.pipelines.definition import Definition
    from tailrace.spark.pipelines.running import Run

__all__ = ["pipeline"]

_TICK_S = 0.1
_json = click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")


def _complete(
    ctx: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem | str]:
    with contextlib.suppress(TailraceError, OSError):
        config = place_in(ctx).config
        names = [] if config is None else [each.name for each in config.pipelines]
        return [name for name in names if name.startswith(incomplete)]
    return []


_names = click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_complete)


@click.group()
def pipeline() -> None:
    """Run the pipelines of the configuration, with Spark.

    A pipeline reads a queue, makes something of it by a statement of SQL, and writes that to
    another queue, or to files, exactly once. It is described under `pipelines` in the configuration
    of the store.

    \b
    Example:
      tailrace pipeline run revenue
    """


@pipeline.command()
@_names
@click.option("--all", "all_of_them", is_flag=True, help="All pipelines, in one Spark.")
@click.option("--once", is_flag=True, help="Work off what is there, and end.")
@click.option(
    "--restart-from-scratch",
    "anew",
    is_flag=True,
    help="Move the checkpoint aside, and begin as if it had never run.",
)
@click.option(
    "--keep-checkpoint",
    "keep",
    is_flag=True,
    help="Go on with the checkpoint although the pipeline was changed.",
)
@spark_options
@store_options
@_json
@click.pass_context
def run(
    context: click.Context,
    names: tuple[str, ...],
    all_of_them: bool,
    once: bool,
    anew: bool,
    keep: bool,
    master: str | None,
    conf: dict[str, str],
    store: StorePlace,
    as_json: bool,
) -> None:
    """Run pipelines, until they are stopped.

    Each batch is a line. SIGTERM, and Ctrl-C, let it finish the batches that it is at; a second one
    does not wait. Whatever happens, the next run goes on where this one ended, and nothing is
    written twice. The exit code is 0 if it was stopped or had no more to do, 130 after Ctrl-C, and
    2 if it could not go on.

    \b
    Examples:
      tailrace pipeline run revenue
      tailrace pipeline run --all --once
      tailrace pipeline run revenue --master spark://host:7077 --json
    """
    if all_of_them is bool(names):
        raise click.UsageError("Name pipelines, or give --all.")
    if anew and keep:
        raise click.UsageError("--restart-from-scratch and --keep-checkpoint exclude each other.")
    chosen = _chosen(store, names)
    errors = errors_of_spark()
    with contextlib.closing(_Runner(store, chosen, as_json=as_json)) as runner:
        runner.hold(anew=anew, keep=keep)
        try:
            runner.run(errors, master, conf, once=once, keep=keep)
        except Stopped as stopped:
            runner.stopped_by = stopped.code - 128
    if runner.stopped_by == signal.SIGINT:
        click.echo("tailrace: interrupted", err=True)
        context.exit(128 + signal.SIGINT)


class _Runner:
    """Pipelines that run in this process, in one Spark."""

    def __init__(self, store: StorePlace, chosen: list[Definition], *, as_json: bool) -> None:
        self._store = store
        self._path = os.path.abspath(store.path)
        self._chosen = chosen
        self._as_json = as_json
        self._runs: list[Run] = []
        self._stack = contextlib.ExitStack()
        self.stopped_by: int | None = None

    def hold(self, *, anew: bool, keep: bool) -> None:
        """Each of them, before Spark takes its time to start."""
        from tailrace.spark.pipelines.chains import make_between
        from tailrace.spark.pipelines.definition import definitions
        from tailrace.spark.pipelines.homes import Home
        from tailrace.spark.pipelines.targets import check_places

        config = self._store.config
        with open_store(self._store, create=config is not None) as opened:
            make_between(opened, self._chosen, list(definitions(config).values()))
        for definition in self._chosen:
            check_places(self._path, definition)
            home = Home(self._path, definition)
            self._stack.enter_context(home.held())
            if anew:
                for place in home.begin_anew():
                    click.echo(f"{definition.name}: moved aside: {place}", err=True)
            elif not keep:
                home.check()

    def close(self) -> None:
        self._stack.close()

    def run(
        self,
        errors: tuple[type[Exception], ...],
        master: str | None,
        conf: Mapping[str, str],
        *,
        once: bool,
        keep: bool,
    ) -> None:
        from tailrace.spark.pipelines.definition import settings
        from tailrace.spark.session import local_session
        from tailrace.spark.statements import describe, quietly

        runs = self._runs
        with quietly(), Stopping() as stopping:
            try:
                with stopping.allowed():
                    ours = signal.getsignal(signal.SIGINT)
                    common, of_sql = settings(self._chosen, conf)
                    with _imported("tailrace.spark.pipelines.running"):
                        spark = local_session(master, common, "pipelines", of_sql)
                    _restore(ours)  # Spark's would cancel the jobs of a batch
                from tailrace.spark.pipelines.running import Run, told_apart

                def begin(definition: Definition) -> None:
                    session = told_apart(spark, definition, conf, self._chosen)
                    runs.append(Run(session, self._path, definition, once=once))
                    runs[-1].start(keep_checkpoint=keep)
                    if not self._as_json:
                        click.echo(_title(definition))

                try:
                    self._follow(begin, stopping, once=once)
                except TailraceError:  # the others end, too, with what they are at
                    for each in runs:
                        if each.status.state != "failed":
                            _finish(each, stopping, ends=once or each.definition.is_once)
                    raise
            except errors as error:
                raise TailraceError(describe(error)) from error
            finally:
                self.stopped_by = stopping.signal
                for each in runs:
                    if each.status.state in ("starting", "running"):
                        each.stop(now=True)
        for each in runs:
            self._summary(each)

    def _follow(
        self, begin: Callable[[Definition], None], stopping: Stopping, *, once: bool
    ) -> None:
        """Begin each when it may, until all have ended."""
        from tailrace.spark.pipelines.chains import ready

        waiting, active = list(self._chosen), list(self._runs)
        while waiting or active:
            for definition in ready(waiting, [each.definition for each in active], once=once):
                if stopping.is_stopping():
                    break
                waiting.remove(definition)
                begin(definition)
                active.append(self._runs[-1])
            if stopping.is_stopping():
                waiting = []  # those that have begun are at a batch
            active = [each for each in active if each.poll(self._batch) or self._end(each)]
            if stopping.is_insisting():
                break
            if stopping.is_stopping():
                for each in active:
                    each.finish()
            time.sleep(_TICK_S)
        for each in active:
            self._end(each, now=True)

    def _end(self, run: Run, *, now: bool = False) -> bool:
        """False, since it is not active any more."""
        run.poll(self._batch)
        run.stop(now=now)
        return False

    def _batch(self, definition: Definition, progress: Mapping[str, Any]) -> None:
        rows, took = progress["numInputRows"], progress["durationMs"].get("triggerExecution", 0)
        from tailrace.spark.pipelines.status import written_in

        written = written_in(progress)
        if self._as_json:
            print_json(
                {
                    "type": "batch",
                    "pipeline": definition.name,
                    "batch": progress["batchId"],
                    "rows_in": rows,
                    "rows_out": written,
                    "ms": took,
                    "watermark": (progress.get("eventTime") or {}).get("watermark"),
                }
            )
        else:
            click.echo(
                f"{progress['timestamp']}  {definition.name}  batch {progress['batchId']}: "
                f"{rows:,} in, {'' if written is None else f'{written:,} out, '}{took:,} ms"
            )

    def _summary(self, run: Run) -> None:
        status = run.status
        if self._as_json:
            print_json(
                {
                    "type": "pipeline",
                    "name": status.name,
                    "state": status.state,
                    "batches": status.batches,
                    "rows_in": status.rows_in,
                    "rows_out": status.rows_out,
                    "dead_letters": status.dead_letters,
                }
            )
            return
        from tailrace.log.offline.words import counted

        bad = f", {counted(status.dead_letters, 'dead letter')}" if status.dead_letters else ""
        out = "" if status.rows_out is None else f", {status.rows_out:,} out"
        click.echo(
            f"{status.name}: {counted(status.batches, 'batch', 'batches')}, "
            f"{counted(status.rows_in, 'row')} in{out}{bad}"
        )


def _finish(run: Run, stopping: Stopping, *, ends: bool) -> None:
    """Wait for what it is at: a batch, or if it `ends` by itself, and may not even have begun, all
    that there is."""
    with contextlib.suppress(TailraceError):  # there is an error to be told already
        while run.poll() and not stopping.is_insisting():
            if not ends or stopping.is_stopping():
                run.finish()
            time.sleep(_TICK_S)
    run.stop(now=True)


@contextlib.contextmanager
def _imported(name: str) -> Iterator[None]:
    """Import a module meanwhile, in a thread. What is wrong with it, who imports it is told."""

    def load() -> None:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _restore(handler: Any) -> None:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, handler)


def _title(definition: Definition) -> str:
    return f"{definition.name}: {definition.source.queue} → {definition.target}"


@pipeline.command(name="list")
@store_options
@_json
def list_(store: StorePlace, as_json: bool) -> None:
    """Show the pipelines of the configuration.

    \b
    Example:
      tailrace pipeline list
    """
    chosen = _chosen(store, ())
    rows = []
    for each in chosen:
        to = each.to
        if as_json:
            print_json(
                {
                    "type": "pipeline",
                    "name": each.name,
                    "from": each.source.queue,
                    "to": to if isinstance(to, str) else None,
                    "path": None if isinstance(to, str) else to.path,
                    "format": each.source.format,
                    "trigger": each.trigger,
                    "output_mode": each.output_mode,
                }
            )
        rows.append((each.name, each.source.queue, each.source.format, each.target, _when(each)))
    if not as_json:
        print_table(("pipeline", "from", "format", "to", "trigger"), rows)


def _when(definition: Definition) -> str:
    trigger = definition.trigger
    if trigger is None:
        return "as soon as it can"
    return str(trigger) if isinstance(trigger, str) else f"every {as_age(trigger)}"


@pipeline.command()
@_names
@store_options
@_json
def status(names: tuple[str, ...], store: StorePlace, as_json: bool) -> None:
    """Show how pipelines go, also those that another process runs.

    The state is running, stopped, failed, or unknown: then its process was killed. The lag is how
    many messages are still to be read, at this moment.

    \b
    Examples:
      tailrace pipeline status
      tailrace pipeline status revenue --json | jq .lag
    """
    from tailrace.spark.pipelines.homes import Home
    from tailrace.spark.pipelines.status import lag_of, read_status

    chosen = _chosen(store, names)
    with look_at_store(store):
        path = os.path.abspath(store.path)
    rows: list[tuple[object, ...]] = []
    for each in chosen:
        found = read_status(Home(path, each))
        if found is None:
            item: dict[str, Any] = {"name": each.name, "state": "never ran"}
            rows.append((each.name, "never ran", *[None] * 7))
        else:
            lag = lag_of(path, found.offsets)
            item = {**vars(found), "lag": lag}
            last = None if found.batch is None else f"{found.batch}: {found.batch_rows:,} rows"
            rows.append(
                (
                    each.name,
                    found.state if found.error is None else f"{found.state}: {found.error}",
                    found.rows_in,
                    found.rows_out,
                    found.dead_letters,
                    f"{found.rate:,.0f}/s",
                    sum(lag.values()) if lag else None,
                    f"{last}, {as_time(found.batch_at)}" if last else None,
                    found.watermark,
                )
            )
        if as_json:
            print_json({"type": "pipeline", **item})
    if not as_json:
        titles = ("pipeline", "state", "in", "out", "dead", "rate", "lag", "last batch")
        print_table((*titles, "watermark"), rows)


@pipeline.command()
@_names
@spark_options
@store_options
@_json
@click.pass_context
def check(
    context: click.Context,
    names: tuple[str, ...],
    master: str | None,
    conf: dict[str, str],
    store: StorePlace,
    as_json: bool,
) -> None:
    """Plan pipelines without running them, and say what is wrong.

    Statements are checked against the declared schemas, all names, all queues and all targets; a
    mistake in a statement has its line and column. The exit code is 0 if all are good, 1 if one is
    not, and 2 if that cannot be told.

    \b
    Examples:
      tailrace pipeline check
      tailrace pipeline check revenue --json
    """
    chosen = _chosen(store, names)
    errors = errors_of_spark()
    from tailrace.spark.pipelines.chains import written_by
    from tailrace.spark.pipelines.definition import definitions, settings
    from tailrace.spark.pipelines.homes import Home
    from tailrace.spark.pipelines.running import check as check_one
    from tailrace.spark.pipelines.running import told_apart
    from tailrace.spark.session import local_session
    from tailrace.spark.statements import describe, quietly

    with open_store(store, create=store.config is not None):
        path = os.path.abspath(store.path)
    coming, wrong = written_by(definitions(store.config).values()), 0
    with quietly(), Stopping() as stopping:
        try:
            with stopping.allowed():
                common, of_sql = settings(chosen, conf)
                spark = local_session(master, common, "pipelines", of_sql)
                for definition in chosen:
                    said = None
                    try:
                        Home(path, definition).check()
                        session = told_apart(spark, definition, conf, chosen)
                        check_one(session, path, definition, coming)
                    except TailraceError as error:
                        said, wrong = str(error), wrong + 1
                    except errors as error:
                        said, wrong = f"pipeline {definition.name!r}: {describe(error)}", wrong + 1
                    _say(definition.name, said, as_json=as_json)
        except Stopped as stopped:
            click.echo("tailrace: interrupted", err=True)
            context.exit(stopped.code)
    context.exit(1 if wrong else 0)


def _say(name: str, said: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"type": "pipeline", "name": name, "ok": said is None, "problem": said})
    else:
        click.echo(f"pipeline {name!r}: no problem" if said is None else " ".join(said.split()))


def _chosen(store: StorePlace, names: tuple[str, ...]) -> list[Definition]:
    from tailrace.spark.pipelines.definition import choose

    return choose(store.config, names)
