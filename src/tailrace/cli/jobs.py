"""What every job has: whether Spark is used, and which; a bar; a report for programs."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.output import print_json, progress_bar
from tailrace.cli.places import check_path
from tailrace.cli.signals import Insisting
from tailrace.cli.sparks import spark_options
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.spark.jobs.running import Means, Running

__all__ = ["Job", "job_options"]


@dataclass(frozen=True)
class Job:
    """How a person wants a job to be done; see `job_options`."""

    spark: bool | None
    master: str | None
    conf: dict[str, str]
    as_json: bool
    report: str | None

    def check(self) -> None:
        """Refuse what cannot be meant, before anything is done."""
        if self.spark is False and (self.master is not None or self.conf):
            raise click.UsageError("--master and --conf are Spark's: not with --no-spark")
        if self.report is not None:
            folder = os.path.dirname(self.report) or "."
            if not os.path.isdir(folder):
                raise TailraceError(f"--report {self.report}: there is no folder {folder}")

    @contextlib.contextmanager
    def run(self, label: str) -> Iterator[Means]:
        """What the job may use, while it runs."""
        from tailrace.spark.jobs.running import Means

        with Insisting(), progress_bar(label) as progress:
            try:
                yield Means(self.spark, self.master, self.conf, progress=progress)
            except KeyboardInterrupt:
                from tailrace.spark.session import end_jvm

                end_jvm()  # with the tasks that go on
                click.echo("tailrace: interrupted", err=True)
                raise

    def write(
        self, document: dict[str, Any], running: Running, print_text: Callable[[], object]
    ) -> None:
        """The report, for programs and for people."""
        run = {
            "path": running.path,
            "tasks": running.tasks,
            "seconds": round(running.seconds, 3),
            "bytes": running.total,
        }
        document = {**document, "run": run}
        if self.report is not None:
            with open(self.report, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=2)
                file.write("\n")
        if self.as_json:
            print_json(document)
            return
        print_text()
        click.echo(f"({running.why}, {running.seconds:.1f} s)", err=True)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--spark`, `--master`, `--conf`, `--json` and `--report`: as one argument, `job`."""

    @functools.wraps(command)
    def with_job(
        *args: Any,
        spark: bool | None,
        master: str | None,
        conf: dict[str, str],
        as_json: bool,
        report: str | None,
        **rest: Any,
    ) -> Any:
        job = Job(spark, master, conf, as_json, report)
        job.check()
        return command(*args, job=job, **rest)

    options = (
        click.option(
            "--spark/--no-spark",
            default=None,
            help="Have Spark do it, or not.  [default: from 4 GiB on, or with --master or --conf]",
        ),
        spark_options,
        click.option("--json", "as_json", is_flag=True, help="Write the report as JSON."),
        click.option(
            "--report",
            callback=check_path,
            metavar="FILE",
            help="Write the report to a file, as JSON, as well.",
        ),
    )
    for option in reversed(options):
        with_job = option(with_job)
    return with_job
