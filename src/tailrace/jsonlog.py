"""`tailrace.jsonlog.JsonFormatter`: log records as JSON, one object a line.

tailrace logs to the logger `tailrace` and installs no handler: where that goes is the program's to
say. What a record is about it carries in attributes, as far as that is known: `queue`, `group`,
`offset`, `path` and `count`. The formatter writes them, and whatever else a record was given.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["JsonFormatter"]

# What every record has, and what formatters add.
_USUAL: Final = frozenset({*vars(logging.makeLogRecord({})), "asctime", "message", "taskName"})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, the record's own fields,
    and `exception` and `stack` if there are any. `fields` are added to each."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, without its end. A field that JSON does not know becomes text; one
        that has the name of ours gets an underscore behind it."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        own = {name: value for name, value in vars(record).items() if name not in _USUAL}
        exception = self._exception(record)
        if exception:
            line["exception"] = exception
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        for name, value in {**self._fields, **own}.items():
            line[f"{name}_" if name in line else name] = value
        return "{" + ", ".join(f"{json.dumps(n)}: {_encoded(v)}" for n, v in line.items()) + "}"

    def _exception(self, record: logging.LogRecord) -> str:
        if record.exc_info:
            return self.formatException(record.exc_info)
        return record.exc_text or ""


def _encoded(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(str(value))
