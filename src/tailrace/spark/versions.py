"""What the Spark at hand can do. Asked for what is there, not for numbers of versions, where that
can be told."""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType
from typing import Any

from pyspark.sql import datasource

__all__ = ["COUNTS_WITHOUT_COLUMNS", "LIMITS", "StreamArrowWriter"]

# Limits of what a trigger reads, and Trigger.AvailableNow in steps: from 4.2 on.
LIMITS: ModuleType | None = None
with contextlib.suppress(ImportError):
    LIMITS = importlib.import_module("pyspark.sql.streaming.datasource")

_HAS_ARROW_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")


class _StreamArrowWriter(  # type: ignore[misc]  # both have the same methods
    datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
):
    """Spark 4.0 has no such class for streams. But a task of it asks only whether the writer is
    one of batches that takes Arrow. Otherwise it would be given rows, which have lost something:
    of the two hours that are one when clocks are put back times do not tell which, and text that
    is not UTF-8 fails."""


StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", _StreamArrowWriter)

# Before 4.1 batches without columns count as no rows. It was fixed in the same release as the
# above: there is nothing else to test for.
COUNTS_WITHOUT_COLUMNS = _HAS_ARROW_STREAMS
