"""What the Spark at hand can do. Asked for what is there, not for numbers of versions, where that
can be told."""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType
from typing import Any

from pyspark.sql import datasource

__all__ = ["COUNTS_WITHOUT_COLUMNS", "HAS_ARROW_STREAMS", "LIMITS", "StreamArrowWriter"]

# Limits of what a trigger reads, and Trigger.AvailableNow in steps: from 4.2 on.
LIMITS: ModuleType | None = None
with contextlib.suppress(ImportError):
    LIMITS = importlib.import_module("pyspark.sql.streaming.datasource")

# Before 4.1 streaming writers are given rows.
HAS_ARROW_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
StreamArrowWriter: Any = getattr(
    datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
)

# Before 4.1 batches without columns count as no rows. It was fixed in the same release as the
# above: there is nothing else to test for.
COUNTS_WITHOUT_COLUMNS = HAS_ARROW_STREAMS
