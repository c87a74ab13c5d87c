"""Log records as JSON, one object per line, with the ids of the code that logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from backstay.kernel.views import log_ids
from backstay.sdk import tracing
from backstay.sdk.author.attempt import current_attempt
from backstay.sdk.replay.workflow_greenlet import current_run

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A formatter for `logging` that writes each record as one line of JSON.

    Fields: `time` (UTC), `level`, `logger`, `message`, with an exception `exception`, and every extra field of the record,
    such as `workflow_id`, `run_id`, `activity_type`, `step`, `attempt` and `trace_id`. Records of other loggers get the ids
    of the workflow or the activity that logs them. `handler.setFormatter(JsonFormatter())` uses it.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line}
        line |= _ids_here() | given
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


def _ids_here() -> dict[str, Any]:
    """The ids of the code that runs here: of its run or its attempt, and of the current span."""
    live_run = current_run()
    attempt = current_attempt() if live_run is None else None
    if live_run is not None:
        ids = log_ids.of_task(live_run.assignment)
    else:
        ids = {} if attempt is None else attempt.ids
    return ids | tracing.current_ids()
