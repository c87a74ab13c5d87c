"""The outline of a run: its timeline as columns of numbers, small enough to be sent whole.

Four tables: `steps` (one row a durable call), `attempts` (those that ended before the last one of their step), `tasks` (when
workflow code ran, from the contexts of events) and `marks` (everything that is no step: commands, messages, the ends of the
run). Words are kept once, in `texts`; columns hold their numbers. An outline only ever grows by the next event, and every row
knows the last event that changed it, so a reader requests changes by a history sequence.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from backstay.kernel.event import Context, Recorded, StepEvent
from backstay.kernel.features.activity import (
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityHeartbeatRecorded,
    ActivityRetryScheduled,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
)
from backstay.kernel.features.cancel import WorkflowCancelled, WorkflowTerminated
from backstay.kernel.features.child import (
    ChildRunCompleted,
    ChildRunStarted,
    ChildUnsuccessful,
    ChildWorkflowScheduled,
)
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.condition import (
    ConditionWaitCancelled,
    ConditionWaitOpened,
    ConditionWaitSatisfied,
    ConditionWaitTimedOut,
)
from backstay.kernel.features.continue_as_new import WorkflowContinuedAsNew
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.fork import WorkflowRewound
from backstay.kernel.features.retry_now import ActivityRetryRequested
from backstay.kernel.features.signal import SignalApplied, SignalWaitCancelled, SignalWaitOpened
from backstay.kernel.features.timer import TimerCancelled, TimerFired, TimerScheduled
from backstay.kernel.values import Micros
from backstay.kernel.views.timeline import WORDS

NONE = -1
"""In a column: there is no such value."""

STEPS = (
    *("first", "last", "step", "kind", "name", "note", "state", "group"),
    *("started", "began", "ended", "until", "attempts"),
)
"""`note` is the author's summary of the call. `first` and `last`: the history sequences of the first and the last event
of the step; `first` is also its identity.

`started` counts in microseconds from the start of the run, `began` (of the latest attempt), `ended` and `until` (the time of a
timer, a timeout or the next attempt) from `started`.
"""

ATTEMPTS = ("sequence", "first", "attempt", "state", "began", "ended", "next")
"""`first` names the step. `began`, `ended` and `next` (when the next attempt may begin) count from the step's `started`."""

TASKS = ("first", "last", "decided_after", "events", "leased", "recorded", "owner", "attempt")
"""`leased` and `recorded` count from the start of the run."""

MARKS = ("sequence", "type", "kind", "name", "at")

CLOSING = (
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowTimedOut,
    WorkflowCancelled,
    WorkflowTerminated,
    WorkflowContinuedAsNew,
    WorkflowRewound,
)
"""The events that end a run."""


class NumberTable:
    """A table of whole numbers, a column each."""

    __slots__ = ("columns", "names")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.columns = {name: array("q") for name in names}

    def __len__(self) -> int:
        return len(self.columns[self.names[0]])

    def add(self, *values: int) -> int:
        for name, value in zip(self.names, values, strict=True):
            self.columns[name].append(value)
        return len(self) - 1

    def put(self, row: int, **values: int) -> None:
        for name, value in values.items():
            self.columns[name][row] = value

    def get(self, row: int, name: str) -> int:
        return self.columns[name][row]

    def rows(self, chosen: Sequence[int]) -> dict[str, list[int]]:
        """These rows, a list of numbers a column."""
        return {name: [column[row] for row in chosen] for name, column in self.columns.items()}

    @property
    def size(self) -> int:
        return sum(len(column) * column.itemsize for column in self.columns.values())


class Outline:
    """The outline of a run as far as its events were added."""

    def __init__(self) -> None:
        self.origin: Micros = 0  # when the run began
        self.through = 0  # the last event that was added
        self.checksum = 0  # of that event, by which a reader knows that the history is still the same
        self.steps = NumberTable(STEPS)
        self.attempts = NumberTable(ATTEMPTS)
        self.tasks = NumberTable(TASKS)
        self.marks = NumberTable(MARKS)
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._text_since = array("q")  # the event with which each text came in
        self._open: dict[int, int] = {}  # the row of each open step
        self._task: str | None = None  # of the last row of `tasks`

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        tables = self.steps.size + self.attempts.size + self.tasks.size + self.marks.size
        return 2000 + tables + sum(map(len, self.texts)) + 200 * (len(self.texts) + len(self._open))

    def add(self, entry: Recorded) -> None:
        """Add the next event of the history."""
        event: Any = entry.event
        if not self.through:
            self.origin = entry.at
        self.through, self.checksum = entry.sequence, entry.checksum
        if entry.context.decided_after is not None:
            self._decided(entry)
        opens = _OPENS.get(type(entry.event))
        if opens is not None:
            opens(self, event, entry)
        else:
            rule = _RULES.get(type(entry.event))
            if rule is not None:
                row = None if event.sequence is None else self._open.get(event.sequence)
                if row is not None:
                    self.steps.put(row, last=entry.sequence)
                    rule(self, row, event, entry)
            elif isinstance(event, StepEvent):
                self.end_step(self.open_step(event, entry, "recorded"), event.sequence, entry, "recorded")
        if isinstance(event, ActivityRetryRequested):
            self._retry_now(event, entry)
        if not isinstance(event, StepEvent) or isinstance(event, WorkflowContinuedAsNew):
            self._mark(entry)
        if isinstance(event, CLOSING):
            self._close(entry)

    def since(self, after: int, limit: int) -> dict[str, Any]:
        """The rows that events after `after` have changed: at most so many, the oldest first. `through` is where the
        rest begins."""
        steps = self.steps.columns["last"]
        changed = sorted((row for row, last in enumerate(steps) if last > after), key=steps.__getitem__)
        found: list[tuple[str, NumberTable, Sequence[int], array[int]]] = [("steps", self.steps, changed, steps)]
        for name, table in (("attempts", self.attempts), ("tasks", self.tasks), ("marks", self.marks)):
            ordered = table.columns["last" if table is self.tasks else "sequence"]
            found.append((name, table, range(bisect_right(ordered, after), len(ordered)), ordered))
        through = self.through
        if sum(len(rows) for _, _, rows, _ in found) > limit:
            through = sorted(by[row] for _, _, rows, by in found for row in rows)[limit - 1]
        first, last = bisect_right(self._text_since, after), bisect_right(self._text_since, through)
        return {
            "after": after,
            "through": through,
            "last": self.through,
            "texts_from": first,
            "texts": self.texts[first:last],
            **{name: table.rows([row for row in rows if by[row] <= through]) for name, table, rows, by in found},
        }

    def rows_of(self, kind: str, after: int, limit: int) -> list[tuple[int, int, int]]:
        """Steps of one kind with a number above `after`, in their order: (step, its first event, its last)."""
        number = self._numbers.get(kind, NONE)
        columns = self.steps.columns
        found = sorted(
            (step, columns["first"][row], columns["last"][row])
            for row, step in enumerate(columns["step"])
            if step > after and columns["kind"][row] == number
        )
        return found[:limit]

    # -- for the rules

    def row_of(self, step: int) -> int | None:
        """The row of an open step."""
        return self._open.get(step)

    def text(self, text: str | None, sequence: int) -> int:
        """The number of a text."""
        if not text:
            return NONE
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
            self._text_since.append(sequence)
        return number

    def open_step(self, event: Any, entry: Recorded, state: str, kind: str | None = None) -> int:
        words = WORDS[type(event)]
        about = words.about
        name = next((name for field in about.name if (name := getattr(event, field, None))), None)
        path = getattr(event, "parallel_group_path", None)
        at = entry.sequence
        row = self.steps.add(
            at,
            at,
            event.sequence,
            self.text(kind or about.kind, at),
            self.text(name, at),
            NONE if words.note is None else self.text(words.note(event), at),
            self.text(state, at),
            self.text(path[-1].parallel_group_id, at) if path else NONE,
            entry.at - self.origin,
            *(NONE, NONE, NONE, 0),
        )
        self._open[event.sequence] = row
        return row

    def since_start(self, row: int, at: Micros) -> int:
        """A time as it is counted in the columns of a step."""
        return max(at - self.origin - self.steps.get(row, "started"), 0)

    def set_state(self, row: int, state: str, entry: Recorded) -> None:
        self.steps.put(row, state=self.text(state, entry.sequence))

    def end_step(self, row: int, step: int, entry: Recorded, state: str) -> None:
        self.set_state(row, state, entry)
        self.steps.put(row, ended=self.since_start(row, entry.at), until=NONE)
        self._open.pop(step, None)

    def _decided(self, entry: Recorded) -> None:
        context: Context = entry.context
        if context.task_id is not None and context.task_id == self._task:
            row = len(self.tasks) - 1
            self.tasks.put(
                row, last=entry.sequence, events=self.tasks.get(row, "events") + 1, recorded=entry.at - self.origin
            )
            return
        self._task = context.task_id
        self.tasks.add(
            entry.sequence,
            entry.sequence,
            context.decided_after or 0,
            1,
            NONE if context.leased_at is None else max(context.leased_at - self.origin, 0),
            entry.at - self.origin,
            self.text(context.owner, entry.sequence),
            context.attempt or 0,
        )

    def _retry_now(self, event: ActivityRetryRequested, entry: Recorded) -> None:
        row = self._open.get(event.step)
        if row is not None:
            self.steps.put(row, last=entry.sequence, until=self.since_start(row, entry.at))

    def _mark(self, entry: Recorded) -> None:
        event: Any = entry.event
        about = WORDS[type(event)].about
        name = next((name for field in about.name if (name := getattr(event, field, None))), None)
        self.marks.add(
            entry.sequence,
            self.text(entry.type, entry.sequence),
            self.text(about.kind, entry.sequence),
            self.text(name, entry.sequence),
            entry.at - self.origin,
        )

    def _close(self, entry: Recorded) -> None:
        """The run has ended, and with it everything that was open."""
        for step, row in list(self._open.items()):
            self.steps.put(row, last=entry.sequence)
            self.end_step(row, step, entry, "cancelled")


# -- rules


def _timer(outline: Outline, event: TimerScheduled, entry: Recorded) -> None:
    row = outline.row_of(event.sequence) if event.timer_kind is not None else None
    if row is None:
        row = outline.open_step(event, entry, "pending")
    else:
        outline.steps.put(row, last=entry.sequence)
    outline.steps.put(row, until=outline.since_start(row, event.fire_at))


def _fired(outline: Outline, row: int, event: TimerFired, entry: Recorded) -> None:
    if event.timer_kind is None:
        outline.end_step(row, event.sequence, entry, "fired")
    elif event.timer_kind == "signal_timeout":
        outline.end_step(row, event.sequence, entry, "timed_out")
    else:
        outline.set_state(row, "timeout_fired", entry)  # the wait ends when a worker says so


def _timer_cancelled(outline: Outline, row: int, event: TimerCancelled, entry: Recorded) -> None:
    if event.timer_kind is None:
        outline.end_step(row, event.sequence, entry, "cancelled")


def _started(outline: Outline, row: int, event: ActivityStarted, entry: Recorded) -> None:
    outline.set_state(row, "running", entry)
    outline.steps.put(row, began=outline.since_start(row, entry.at), until=NONE, attempts=event.attempt_number)


def _heartbeat(outline: Outline, row: int, event: ActivityHeartbeatRecorded, entry: Recorded) -> None:
    pass


def _retried(outline: Outline, row: int, event: ActivityRetryScheduled, entry: Recorded) -> None:
    state = "timed_out" if event.timeout_kind is not None else "failed"
    if event.retry_task_id == event.retry_of_task_id:
        state = "expired"
    due = outline.since_start(row, event.retry_available_at)
    outline.attempts.add(
        entry.sequence,
        outline.steps.get(row, "first"),
        event.retry_after_attempt,
        outline.text(state, entry.sequence),
        outline.steps.get(row, "began"),
        outline.since_start(row, entry.at),
        due,
    )
    outline.set_state(row, "backoff", entry)
    outline.steps.put(row, began=NONE, until=due)


def _ends_as(outline: Outline, row: int, event: ChildRunCompleted | ChildUnsuccessful, entry: Recorded) -> None:
    outline.end_step(row, event.sequence, entry, event.child_status)


def _child_run(outline: Outline, row: int, event: ChildRunStarted, entry: Recorded) -> None:
    outline.set_state(row, "running", entry)
    outline.steps.put(row, began=outline.since_start(row, entry.at), attempts=event.child_run_number)


def _opens(state: str, kind: str | None = None) -> Callable[[Outline, Any, Recorded], None]:
    def rule(outline: Outline, event: Any, entry: Recorded) -> None:
        outline.open_step(event, entry, state, kind)

    return rule


def _ends(state: str) -> Callable[[Outline, int, Any, Recorded], None]:
    def rule(outline: Outline, row: int, event: Any, entry: Recorded) -> None:
        outline.end_step(row, event.sequence, entry, state)

    return rule


_OPENS: dict[type[Any], Callable[[Outline, Any, Recorded], None]] = {
    ActivityScheduled: _opens("scheduled"),
    TimerScheduled: _timer,
    ConditionWaitOpened: _opens("open"),
    SignalWaitOpened: _opens("open"),
    ChildWorkflowScheduled: _opens("scheduled"),
}

_RULES: dict[type[Any], Callable[[Outline, int, Any, Recorded], None]] = {
    ActivityStarted: _started,
    ActivityHeartbeatRecorded: _heartbeat,
    ActivityRetryScheduled: _retried,
    ActivityCompleted: _ends("completed"),
    ActivityFailed: _ends("failed"),
    ActivityTimedOut: _ends("timed_out"),
    ActivityCancelled: _ends("cancelled"),
    TimerFired: _fired,
    TimerCancelled: _timer_cancelled,
    ConditionWaitSatisfied: _ends("satisfied"),
    ConditionWaitTimedOut: _ends("timed_out"),
    ConditionWaitCancelled: _ends("cancelled"),
    SignalWaitCancelled: _ends("cancelled"),
    SignalApplied: _ends("applied"),
    ChildRunStarted: _child_run,
    ChildRunCompleted: _ends_as,
    **dict.fromkeys(ChildUnsuccessful.__subclasses__(), _ends_as),
}
