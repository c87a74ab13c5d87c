"""The running activity attempt as its own code sees it: identity, heartbeat, cancellation.

`heartbeat(...)` never waits for the engine. It hands the progress over, and raises `ActivityCancelled` once the engine
has reported that the result of this attempt is no longer wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from backstay.kernel.features.activity import ActivityAssignment, Progress
from backstay.kernel.views import log_ids
from backstay.sdk.errors import ActivityCancelled, BackstayError

_DETAIL = (str, int, float, bool, type(None))
_LONGEST = 2000  # characters of a detail


class Attempt:
    """The running attempt of an activity, as `activity_info()` returns it.

    `id` is the same on every attempt, so it can serve as an idempotency key for other systems.
    """

    def __init__(
        self, assignment: ActivityAssignment, beat: Callable[[ActivityAssignment, Attempt, Progress | None], None]
    ) -> None:
        self._beat = beat
        self._assignment = assignment
        self.cancelled = False
        self.stale = False  # cancelled because another attempt has taken its place

    @property
    def id(self) -> str:
        """The id of the activity execution: the same on every attempt."""
        return self._assignment.activity_execution_id

    @property
    def attempt_id(self) -> str:
        """The id of this attempt."""
        return self._assignment.activity_attempt_id

    @property
    def number(self) -> int:
        """The number of this attempt, from 1."""
        return self._assignment.attempt_number

    @property
    def type(self) -> str:
        """The durable name of the activity."""
        return self._assignment.activity_type

    @property
    def task_id(self) -> str:
        """The id of the task that this attempt was handed out with."""
        return self._assignment.task.id

    @property
    def workflow_id(self) -> str:
        """The id of the workflow that called the activity."""
        return self._assignment.workflow_id

    @property
    def run_id(self) -> str:
        """The id of the run that called the activity."""
        return self._assignment.run_id

    @property
    def step(self) -> int:
        """The number of the activity's step in its run."""
        return self._assignment.step

    @property
    def ids(self) -> dict[str, Any]:
        """The fields of log records of this attempt."""
        return log_ids.of_attempt(self._assignment)

    @property
    def idempotency_key(self) -> str:
        """The id to pass to another system whose action must not happen twice (a payment, an e-mail)."""
        return self.id

    def heartbeat(
        self,
        message: str | None = None,
        *,
        current: float | None = None,
        total: float | None = None,
        unit: str | None = None,
        **details: Any,
    ) -> None:
        """Send a heartbeat with the progress of this attempt. Raises `ActivityCancelled` if the attempt should stop."""
        if self.cancelled:
            raise ActivityCancelled(f"activity {self.type!r} is no longer wanted")
        said = message is not None or current is not None or total is not None or bool(details)
        progress = _progress(message, current, total, unit, details) if said else None
        self._beat(self._assignment, self, progress)

    def cancel(self, *, stale: bool = False) -> None:
        """Make the next heartbeat raise `ActivityCancelled`."""
        self.cancelled = True
        self.stale = stale


_current: ContextVar[Attempt | None] = ContextVar("backstay_attempt", default=None)

set_current = _current.set


def current_attempt() -> Attempt | None:
    return _current.get()


def activity_info() -> Attempt:
    """Return the activity attempt that is running here. Raises an error outside an activity."""
    found = _current.get()
    if found is None:
        raise BackstayError("activity_info() works only inside an activity that a worker runs")
    return found


def heartbeat(
    message: str | None = None,
    *,
    current: float | None = None,
    total: float | None = None,
    unit: str | None = None,
    **details: Any,
) -> None:
    """Send a heartbeat of the running attempt. Raises `ActivityCancelled` if the attempt should stop.

    Outside a worker it does nothing, so activities can be called as plain functions.
    """
    found = _current.get()
    if found is not None:
        found.heartbeat(message, current=current, total=total, unit=unit, **details)


def _progress(
    message: str | None, current: float | None, total: float | None, unit: str | None, details: dict[str, Any]
) -> Progress:
    for name, words in (("message", message), ("unit", unit)):
        if words is not None and not isinstance(words, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"heartbeat {name} must be text, not {words!r}; other values have names: heartbeat(rows=5)")
    for name, value in (("current", current), ("total", total)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"heartbeat {name} must be a number, not {value!r}")
        if value is not None and value < 0:
            raise ValueError(f"heartbeat {name} must not be negative, not {value}")
    if unit is not None and current is None and total is None:
        raise ValueError("heartbeat unit needs current or total")
    if len(details) > 20:
        raise ValueError(f"a heartbeat has at most 20 details, not {len(details)}")
    for key, value in details.items():
        if not isinstance(value, _DETAIL):
            raise TypeError(f"heartbeat detail {key!r} must be text, a number or a boolean, not {type(value).__name__}")
        if isinstance(value, str) and len(value) > _LONGEST:
            raise ValueError(
                f"heartbeat detail {key!r} has {len(value)} characters, at most {_LONGEST} are accepted; store longer values"
                " elsewhere, and pass a reference"
            )
    return Progress(
        message=None if message is None else message[:280],
        current=current,
        total=total,
        unit=None if unit is None else unit[:64],
        details=details or None,
    )
