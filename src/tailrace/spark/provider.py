"""`format("tailrace")`: what Spark finds, and asks for a reader or a writer.

Some of the processes that Spark starts only want to know that it is there. So nothing else is
imported here: what reads and writes takes several times as long to load as this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from tailrace.errors import ConfigError
from tailrace.spark.versions import COUNTS_WITHOUT_COLUMNS
from tailrace.spark.workers import freeze_imports

if TYPE_CHECKING:
    from tailrace.spark.source import BatchReader, StreamReader

__all__ = ["TailraceSource", "given_options"]


class TailraceSource(DataSource):
    """`format("tailrace")`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        freeze_imports()

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> str:
        from tailrace.spark.columns import ddl
        from tailrace.spark.options import SourceOptions

        options = SourceOptions.parse(given_options(self.options))
        return ddl(has_headers=options.has_headers, headers_as=options.headers_as)

    def reader(self, schema: Any) -> BatchReader:
        from tailrace.spark.columns import Projection
        from tailrace.spark.options import SourceOptions
        from tailrace.spark.source import BatchReader

        if not schema.fields and not COUNTS_WITHOUT_COLUMNS:
            raise ConfigError(
                "the schema: it has no columns, and Spark 4.0 would find no rows then; name one, "
                "such as offset"
            )
        return BatchReader(SourceOptions.parse(given_options(self.options)), Projection.of(schema))

    def streamReader(self, schema: Any) -> StreamReader:  # noqa: N802  Spark's name
        from tailrace.spark.columns import Projection
        from tailrace.spark.options import SourceOptions
        from tailrace.spark.source import StreamReader

        options = SourceOptions.parse(given_options(self.options), is_stream=True)
        return StreamReader(options, Projection.of(schema))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from tailrace.spark.options import SinkOptions
        from tailrace.spark.sink import BatchWriter

        options = SinkOptions.parse(given_options(self.options))
        return BatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        from tailrace.spark.options import SinkOptions
        from tailrace.spark.sink import StreamWriter

        options = SinkOptions.parse(given_options(self.options))
        return StreamWriter(options, schema, overwrite=overwrite)


def given_options(options: Any) -> Mapping[str, str]:
    return dict(options)
