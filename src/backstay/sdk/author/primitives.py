"""Deterministic replacements for workflow code: the run's time, its randomness, and values that are recorded once.

`side_effect`, `version` and the upserts take a step. The others answer from the run and record nothing.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from backstay.codec.hints import hints_of
from backstay.codec.values import dumps, loads
from backstay.kernel.command import Command
from backstay.kernel.feature import Value
from backstay.kernel.features import memo, search
from backstay.kernel.features.memo import UpsertMemo
from backstay.kernel.features.search import UpsertSearchAttributes
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.version import DEFAULT_VERSION, RecordVersionMarker, VersionMarkerRecorded, is_fresh
from backstay.kernel.message import Refused
from backstay.kernel.task import Block
from backstay.kernel.views import log_ids
from backstay.sdk.author.attempt import current_attempt
from backstay.sdk.author.options import is_whole
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import Readonly, current_greenlet, current_run, required_run

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RunInfo(NamedTuple):
    """The run that is executing, as `info()` returns it to its code."""

    workflow_id: str
    """The id of the workflow."""
    run_id: str
    """The id of this run."""
    type: str
    """The durable name of the workflow."""
    namespace: str
    """The namespace of the workflow."""
    attempt: int
    """The number of the attempt at the current workflow task."""
    run_number: int
    """The number of this run in its chain, from 1."""
    history_length: int
    """The number of events in the history so far."""
    continue_suggested: bool
    """Whether the history is so long that the run should continue as new."""
    schedule_id: str | None = None
    """The id of the schedule that started the workflow, if one did."""
    occurrence: datetime | None = None
    """The time of the occurrence that the schedule started the workflow for."""


class Immediate:
    """An operation that is recorded at once: the code does not wait for it."""

    def __init__(self, shape: str, detail: str | None = None) -> None:
        self.shape = shape
        self.detail = detail

    hears = False

    def check(self, live_run: LiveRun) -> None:
        """Allow the call in any state of the run."""

    def asked(self, live_run: LiveRun, step: int, answer: Any) -> None:
        """Register nothing: no later event answers the call."""

    def differs(self, event: Any) -> None:
        """Compare nothing: the shape and the detail have been compared already."""

    def cancel(self, live_run: LiveRun, step: int) -> None:
        """Cancel nothing: the call has ended when it returns."""

    def spared(self, live_run: LiveRun, step: int) -> bool:
        return False

    def command(self, step: int) -> Command:
        raise TypeError("recorded at once, never asked for")

    def describe(self) -> str:
        return self.shape if self.detail is None else f"{self.shape} {self.detail}"


_SIDE_EFFECT = Immediate("side effect")
_MEMO = Immediate("memo upsert")
_SEARCH = Immediate("search attributes upsert")


_SIDE_EFFECT_CODE = Readonly("a side effect", replayed=False)


def side_effect(fn: Callable[[], T], /) -> T:
    """Run a function once and record its value; a replay returns the recorded value and does not run the function.

    For small values that are not deterministic. The function makes no durable calls, and an exception fails the run. For work
    that may fail, use an activity.
    """
    live_run = current_run()
    if live_run is None:
        return fn()
    made: list[bytes] = []

    def run(step: int) -> Command:
        greenlet = current_greenlet()
        assert greenlet is not None
        greenlet.readonly = _SIDE_EFFECT_CODE
        try:
            made.append(dumps(fn()))
        finally:
            greenlet.readonly = None
        return RecordSideEffect(sequence=step, result=made[0])

    known = live_run.immediate(_SIDE_EFFECT, run)
    blob = known.blob if isinstance(known, Value) else made[0]
    # The value is decoded from its record in live code too, so that live code and a replay get the same.
    annotated = getattr(fn, "__annotations__", None)
    return loads(blob if blob is not None else b"", hints_of(fn).get("return", Any) if annotated else Any)


def version(change_id: str, /, *, max: int = 1, min: int = DEFAULT_VERSION) -> int:
    """Return which version of a change this run is on; the choice is recorded when the code first reaches it.

    A run that got past this point with older code is on -1, any other on `max`. Raises `ValueError` without an id or if `min`
    exceeds `max`. A run on a version that the code no longer supports is blocked.
    """
    live_run = required_run("version()")
    if not change_id or min > max:
        raise ValueError(f"version({change_id!r}, min={min}, max={max}): it needs an id, and min must not exceed max")
    taken = live_run.markers.get(change_id)
    if taken is None:
        _checked(change_id, min, max)
        taken = _reach(live_run, change_id, min, max)
        live_run.markers[change_id] = taken
    if not min <= taken <= max:
        live_run.park(
            Block(
                message=f"this run is on version {taken} of {change_id!r}; the code supports {min}..{max}",
                type="VersionNotSupported",
                replay_blocked=True,
                reason="history_shape_mismatch",
                workflow_sequence=live_run.step,
                expected_history_shape="version marker",
                recorded_event_types=["VersionMarkerRecorded"],
                fingerprint=live_run.fingerprint,
            )
        )
    return taken


def _checked(change_id: Any, min: Any, max: Any) -> None:
    if not (isinstance(change_id, str) and is_whole(min) and is_whole(max)):
        raise TypeError(
            f"version({change_id!r}, min={min!r}, max={max!r}): the id of a change is text, versions are whole numbers"
        )


def _reach(live_run: LiveRun, change_id: str, min: int, max: int) -> int:
    started = live_run.assignment.started
    adopts = live_run.adopts
    recorded = live_run.peek()
    marked = isinstance(recorded, VersionMarkerRecorded) and recorded.change_id == change_id
    fresh = is_fresh(
        change_id,
        started_fingerprint=started.workflow_definition_fingerprint if adopts is None else adopts.fingerprint,
        current_fingerprint=live_run.fingerprint,
        started_change_ids=started.declared_change_ids if adopts is None else adopts.change_ids,
        started_compatibility=started.routing.compatibility,
        current_compatibility=live_run.compatibility,
    )
    # Another step recorded here shows that code without the change got past this point.
    passed = recorded is not None and not isinstance(recorded, VersionMarkerRecorded)
    if passed or not (marked or fresh):
        return DEFAULT_VERSION
    live_run.immediate(
        Immediate("version marker", change_id),
        lambda step: RecordVersionMarker(
            sequence=step, change_id=change_id, version=max, min_supported=min, max_supported=max
        ),
    )
    return recorded.version if marked and isinstance(recorded, VersionMarkerRecorded) else max


def patched(change_id: str, /) -> bool:
    """Return True in runs that started with this change in their code, and False in older ones."""
    return version(change_id) >= 1


def upsert_memo(**entries: Any) -> None:
    """Add entries to the run's memo; the value None removes an entry. A memo is returned with the run and never searched."""
    live_run = required_run("upsert_memo()")
    blobs = {key: None if value is None else dumps(value) for key, value in entries.items()}
    _valid(lambda: memo.check(blobs))
    live_run.immediate(_MEMO, lambda step: UpsertMemo(sequence=step, entries=blobs))


def upsert_search_attributes(**attributes: Any) -> None:
    """Set search attributes of the run, which lists can filter by; the value None removes one."""
    plain = {key: value.isoformat() if isinstance(value, datetime) else value for key, value in attributes.items()}
    live_run = required_run("upsert_search_attributes()")
    _valid(lambda: search.check(plain))
    live_run.immediate(_SEARCH, lambda step: UpsertSearchAttributes(sequence=step, attributes=plain))


def _valid(check: Callable[[], None]) -> None:
    """Raise here, in the author's code, an error that the engine would raise later."""
    try:
        check()
    except Refused as refusal:
        raise ValueError(refusal.message) from None


def now() -> datetime:
    """Return the run's time: when the event was recorded that the code is reacting to. A replay returns the same."""
    return _EPOCH + timedelta(microseconds=required_run("now()").read_clock())


def rng() -> random.Random:
    """Return a random number generator that gives the same numbers in every replay of this run."""
    return required_run("rng()").rng()


def uuid4() -> UUID:
    """Return a random UUID that is the same in every replay of this run."""
    return UUID(int=rng().getrandbits(128), version=4)


def info() -> RunInfo:
    """Return the facts about this run: ids, type, number, length of its history, the schedule that started it."""
    live_run = required_run("info()")
    task = live_run.assignment
    started = live_run.started
    occurrence = None if started is None else started.occurrence_time
    return RunInfo(
        workflow_id=task.workflow_id,
        run_id=task.run_id,
        type=task.workflow_type,
        namespace=task.namespace,
        attempt=task.task.attempt + (task.task.state == "ready"),
        run_number=task.run_number,
        history_length=live_run.length,
        continue_suggested=live_run.length >= 10_000,
        schedule_id=None if occurrence is None or started is None else started.parent_workflow_instance_id,
        occurrence=None if occurrence is None else _EPOCH + timedelta(microseconds=occurrence),
    )


class WorkflowLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for workflow code. It is silent while a run replays or its code is dropped, so each line is logged once.

    Every record has the ids of the run as fields, in an activity also its type, its step and the number of the attempt.
    """

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name logging uses
        live_run = current_run()
        if live_run is not None and (live_run.replaying or live_run.looking or live_run.abandoned):
            return False
        return super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        live_run = current_run()
        attempt = current_attempt() if live_run is None else None
        if live_run is not None:
            kwargs["extra"] = {**log_ids.of_task(live_run.assignment), **(kwargs.get("extra") or {})}
        elif attempt is not None:
            kwargs["extra"] = {**attempt.ids, **(kwargs.get("extra") or {})}
        return msg, kwargs


def logger(name: str = "backstay.workflow") -> WorkflowLogger:
    """Return a logger for workflows and activities. It is silent during a replay, and its records have the run's ids as fields."""
    return WorkflowLogger(logging.getLogger(name), {})
