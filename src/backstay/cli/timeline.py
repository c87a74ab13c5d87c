"""A history as a timeline: each event one line in words, with the time since the run began and the step it belongs to.

A Timeline is told the events of one run in order. It remembers the steps that are still open, so it can also say what
the run waits for. An event it has no words for is named as it is, so that a new kind of event is never hidden.
"""

from __future__ import annotations

import re

from rich.text import Text

from backstay.cli import words
from backstay.kernel.event import Event, Recorded, StepEvent
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
from backstay.kernel.features.activity.records import told
from backstay.kernel.features.archive import ArchiveRequested, WorkflowArchived
from backstay.kernel.features.cancel import CancelRequested, TerminateRequested, WorkflowCancelled, WorkflowTerminated
from backstay.kernel.features.child import (
    CarriedChildClosed,
    ChildRunCompleted,
    ChildRunStarted,
    ChildSignalSent,
    ChildSignalSentByUpdate,
    ChildUnsuccessful,
    ChildWorkflowScheduled,
    ParentClosePolicyApplied,
    ParentClosePolicyFailed,
)
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.condition import ConditionWaitOpened, ConditionWaitSatisfied, ConditionWaitTimedOut
from backstay.kernel.features.continue_as_new import WorkflowContinuedAsNew
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.failures import FailureHandled
from backstay.kernel.features.memo import MemoUpserted
from backstay.kernel.features.pause import WorkflowPaused, WorkflowUnpaused
from backstay.kernel.features.schedule import ScheduleTriggered
from backstay.kernel.features.search import SearchAttributesUpserted
from backstay.kernel.features.side_effect import SideEffectRecorded
from backstay.kernel.features.signal import SignalApplied, SignalReceived, SignalWaitOpened
from backstay.kernel.features.start import StartAccepted, StartRejected, WorkflowStarted
from backstay.kernel.features.timer import TimerCancelled, TimerFired, TimerScheduled
from backstay.kernel.features.update import UpdateAccepted, UpdateApplied, UpdateCompleted, UpdateRejected
from backstay.kernel.features.version import VersionMarkerRecorded
from backstay.kernel.values import SECOND, Micros

GOOD, BAD, AGAIN, QUIET, PLAIN = "green", "bold red", "yellow", "bright_black", ""


class Step:
    """A durable call that has not ended."""

    def __init__(self, number: int, name: str, at: Micros) -> None:
        self.number = number
        self.name = name
        self.scheduled_at = at
        self.attempt = 0
        self.started_at: Micros | None = None  # while an attempt runs
        self.again_at: Micros | None = None  # while it waits for its next attempt
        self.fires_at: Micros | None = None  # of a timer
        self.progress: str | None = None
        self.outside = False  # somebody else has to do something

    def waits(self, now: Micros) -> str:
        """What a run that stands here waits for."""
        if self.outside:
            until = "" if self.fires_at is None else f", until {words.moment(self.fires_at)}"
            return f"{self.name}, for {words.span(now - self.scheduled_at)}{until}"
        if self.fires_at is not None:
            due = f"due in {words.span(self.fires_at - now)}" if self.fires_at > now else "due now"
            return f"{self.name}, {due} ({words.moment(self.fires_at)})"
        if self.started_at is not None:
            said = f", says {self.progress}" if self.progress else ""
            return f"{self.name}, attempt {self.attempt} running for {words.span(now - self.started_at)}{said}"
        if self.again_at is not None:
            when = f"in {words.span(self.again_at - now)}" if self.again_at > now else "now"
            return f"{self.name}, attempt {self.attempt + 1} {when}"
        return f"{self.name}, waiting for a worker for {words.span(now - self.scheduled_at)}"


class Timeline:
    def __init__(self) -> None:
        self.began: Micros = 0
        self.open: dict[int, Step] = {}
        self.last_failure: tuple[Micros, str] | None = None
        self.failed: Event | None = None  # the event of it
        self.closed = False
        self._type = "workflow"

    def tell(self, entry: Recorded) -> Text | None:
        """The line of this event; None for one that says nothing a reader does not see elsewhere."""
        if not self.began:
            self.began = entry.at
        event = entry.event
        before = self.last_failure
        told = self._words(event, entry.at)
        if self.last_failure is not before:
            self.failed = event
        if told is None:
            return None
        mark, style, text = told
        step = event.sequence if isinstance(event, StepEvent) else None
        line = Text()
        line.append(f"{words.offset(entry.at - self.began):>12}", QUIET)
        line.append(f" {'' if step is None else step:>4}  ", QUIET)
        line.append(f"{mark} ", style or QUIET)
        line.append(text, style)
        return line

    def _words(self, event: Event, at: Micros) -> tuple[str, str, str] | None:
        match event:
            case StartAccepted() | ChildRunStarted(child_run_number=1):
                return None  # stands beside what says it
            case StartRejected():
                return "✗", QUIET, "another start of this id was rejected"
            case WorkflowStarted():
                self._type = event.workflow_type
                came = " (continued)" if event.continued_from_run_id else ""
                return "▶", "bold", f"{event.workflow_type}({words.arguments(event.arguments)}) started{came}"
            case WorkflowCompleted():
                self.closed = True
                result = "" if event.output is None else f" → {words.value(event.output)}"
                return "✓", f"bold {GOOD}", f"{self._type} completed in {words.span(at - self.began)}{result}"
            case WorkflowFailed():
                self.closed = True
                return "✗", BAD, f"{self._type} failed: {self._failed(at, event.exception_type, event.message)}"
            case WorkflowTimedOut():
                self.closed = True
                return "✗", BAD, f"{self._type} timed out: {self._failed(at, None, event.message)}"
            case WorkflowContinuedAsNew():
                self.closed = True
                return (
                    "↪",
                    f"bold {GOOD}",
                    f"{self._type} continued as run {event.continued_to_run_number} ({event.continued_to_run_id})",
                )
            case TimerScheduled() | TimerFired() | TimerCancelled():
                return self._timer(event, at)
            case SideEffectRecorded(stream_name=str(stream), stream_items=0):
                return "≋", PLAIN, f"stream {stream!r} ended"
            case SideEffectRecorded(stream_name=str(stream), stream_items=items):
                return "≋", PLAIN, f"{items} {'item' if items == 1 else 'items'} emitted to stream {stream!r}"
            case SideEffectRecorded():
                return "◆", PLAIN, f"side effect recorded → {words.value(event.result)}"
            case VersionMarkerRecorded():
                return "◆", PLAIN, f"version {event.version} of change {event.change_id!r} taken"
            case MemoUpserted():
                return "◆", PLAIN, f"memo set: {', '.join(event.entries)}"
            case SearchAttributesUpserted():
                return "◆", PLAIN, f"search attributes set: {words.shortened(repr(event.attributes))}"
            case FailureHandled():
                return "↷", QUIET, f"the code caught the failure of step {event.sequence} and went on"
            case _:
                told = self._activity(event, at) or self._wait(event, at) or self._message(event, at)
                told = told or self._child(event, at)
                return told or ("•", PLAIN, _named(event))

    def _wait(self, event: Event, at: Micros) -> tuple[str, str, str] | None:
        match event:
            case SignalWaitOpened():
                self._opened(event.sequence, f"signal {event.signal_name}", at)
                return "◌", PLAIN, f"waits for signal {event.signal_name}{_at_most(event.timeout_seconds)}"
            case ConditionWaitOpened():
                name = "a condition" if event.condition_key is None else f"condition {event.condition_key}"
                self._opened(event.sequence, name, at)
                return "◌", PLAIN, f"waits for {name}{_at_most(event.timeout_seconds)}"
            case ConditionWaitSatisfied():
                self.open.pop(event.sequence, None)
                return "●", GOOD, f"condition {event.condition_key or ''} holds".replace("  ", " ")
            case ConditionWaitTimedOut():
                self.open.pop(event.sequence, None)
                return "●", AGAIN, f"condition {event.condition_key or ''} timed out".replace("  ", " ")
            case _:
                return None

    def _child(self, event: Event, at: Micros) -> tuple[str, str, str] | None:
        match event:
            case ChildWorkflowScheduled():
                name = f"child {event.child_workflow_type} {event.child_workflow_instance_id}"
                self._opened(event.sequence, name, at)
                policy = "" if event.parent_close_policy == "abandon" else f" ({event.parent_close_policy} at its end)"
                called = f"{event.child_workflow_type}({words.arguments(event.arguments)})"
                return "⤷", PLAIN, f"child {called} called as {event.child_workflow_instance_id}{policy}"
            case ChildRunStarted():
                why = "continued" if event.retry_of_child_workflow_run_id is None else "tried again"
                return "↻", AGAIN, f"child {event.child_workflow_type} {why} as run {event.child_run_number}"
            case ChildRunCompleted():
                self.open.pop(event.sequence, None)
                result = "" if event.output is None else f" → {words.value(event.output)}"
                return "✓", GOOD, f"child {event.child_workflow_type} completed{result}"
            case ChildUnsuccessful():
                self.open.pop(event.sequence, None)
                name = f"child {event.child_workflow_type}"
                why = self._failed(at, event.exception_type, event.message, name)
                return "✗", BAD, f"{name} {event.closed_reason.replace('_', ' ')}: {why}"
            case ChildSignalSent() | ChildSignalSentByUpdate():
                return "✉", PLAIN, f"signal {event.signal_name}({words.arguments(event.arguments)}) sent to a child"
            case CarriedChildClosed():
                return "■", QUIET, f"child {event.child_workflow_instance_id} of an earlier run {event.child_status}"
            case ParentClosePolicyApplied():
                return "■", QUIET, f"child {event.child_instance_id} told: {event.policy.replace('_', ' ')}"
            case ParentClosePolicyFailed():
                return "✗", BAD, f"child {event.child_instance_id} could not be told: {event.error}"
            case _:
                return None

    def _opened(self, number: int, name: str, at: Micros) -> None:
        step = self.open[number] = Step(number, name, at)
        step.outside = True

    def _message(self, event: Event, at: Micros) -> tuple[str, str, str] | None:
        match event:
            case SignalReceived():
                return "✉", PLAIN, f"signal {event.signal_name}({words.arguments(event.arguments)}) received"
            case SignalApplied():
                if event.sequence is not None:
                    self.open.pop(event.sequence, None)
                return "✉", GOOD, f"signal {event.signal_name} applied"
            case UpdateAccepted():
                return "✎", PLAIN, f"update {event.update_name}({words.arguments(event.arguments)}) accepted"
            case UpdateApplied():
                return None  # its completion follows
            case UpdateRejected():
                return "✗", QUIET, f"update {event.update_name} rejected: {event.rejection_reason.replace('_', ' ')}"
            case UpdateCompleted():
                if event.outcome == "update_completed":
                    return "✎", GOOD, f"update {event.update_name} completed → {words.value(event.result)}"
                why = self._failed(at, event.exception_type, event.message or "", f"update {event.update_name}")
                return "✗", BAD, f"update {event.update_name} failed: {why}"
            case CancelRequested():
                until = event.cleanup_deadline_at
                left = "" if until is None else f", its code has {words.span(until - at)}"
                return "■", AGAIN, f"cancel requested{_because(event.reason)}{left}"
            case TerminateRequested():
                return "■", AGAIN, f"terminate requested{_because(event.reason)}"
            case WorkflowCancelled() | WorkflowTerminated():
                self.closed = True
                self.open.clear()
                return "✗", BAD, f"{self._type} {event.closed_reason}"
            case ScheduleTriggered():
                for_ = words.moment(event.occurrence_time)
                return "•", "", f"by schedule {event.schedule_id}, number {event.trigger_number}, for {for_}"
            case WorkflowPaused():
                return "‖", AGAIN, f"paused{_because(event.reason)}"
            case WorkflowUnpaused():
                return "▶", PLAIN, f"unpaused{_because(event.reason)}"
            case ArchiveRequested():
                return None  # what became of it follows, unless it had been archived before
            case WorkflowArchived():
                return "▤", QUIET, f"archived{_because(event.reason)}"
            case _:
                return None

    def _timer(self, event: TimerScheduled | TimerFired | TimerCancelled, at: Micros) -> tuple[str, str, str]:
        match event:
            case TimerScheduled():
                length = words.span(round(event.delay_seconds * SECOND))
                waiting = self.open.get(event.sequence)
                if waiting is not None:  # the timeout of a wait
                    waiting.fires_at = event.fire_at
                    return "◷", QUIET, f"timeout set for {length}"
                step = self.open[event.sequence] = Step(event.sequence, f"timer of {length}", at)
                step.fires_at = event.fire_at
                return "◷", PLAIN, f"timer set for {length}"
            case TimerFired():
                waiting = self.open.get(event.sequence)
                if waiting is None or not waiting.outside or event.timer_kind == "signal_timeout":
                    self.open.pop(event.sequence, None)
                else:
                    waiting.fires_at = None  # the code has yet to be told
                late = at - event.fire_at
                return "◷", GOOD, "timer fired" + (f", {words.span(late)} late" if late > SECOND else "")
            case TimerCancelled():
                waiting = self.open.get(event.sequence)
                if waiting is None or not waiting.outside:
                    self.open.pop(event.sequence, None)
                return "◷", QUIET, "timer cancelled"

    def _activity(self, event: Event, at: Micros) -> tuple[str, str, str] | None:
        match event:
            case ActivityScheduled():
                self.open[event.sequence] = Step(event.sequence, f"activity {event.activity_type}", at)
                where = event.activity.routing.queue
                queue = f" on queue {where!r}" if where != "default" else ""
                kind = " (local)" if event.local_activity else ""
                call = f"{event.activity_type}({words.arguments(event.activity.arguments)})"
                return "○", PLAIN, f"{call} scheduled{queue}{kind}"
            case ActivityStarted():
                return self._attempt(event, at)
            case ActivityHeartbeatRecorded():
                said = None if event.progress is None else told(event.progress)
                step = self.open.get(event.sequence)
                if step is not None:
                    step.progress = said or step.progress
                return "♥", QUIET, f"{event.activity_type} is alive" + (f": {said}" if said else "")
            case ActivityRetryScheduled() if event.retry_task_id == event.retry_of_task_id:
                return self._lost(event, at)
            case ActivityRetryScheduled():
                why = self._failed(at, event.timeout_kind or event.exception_type, event.message, event.activity_type)
                took = self._took(event.sequence, at)
                of = f" of {event.max_attempts}" if event.max_attempts else ""
                step = self.open.get(event.sequence)
                if step is not None:
                    step.started_at, step.again_at = None, event.retry_available_at
                pause = words.span(event.retry_available_at - at)
                return (
                    "↻",
                    AGAIN,
                    f"{event.activity_type} attempt {event.retry_after_attempt}{of} failed{took}: {why};"
                    f" again in {pause}",
                )
            case ActivityCompleted():
                took, whole = self._took(event.sequence, at), self._since(event.sequence, at)
                self.open.pop(event.sequence, None)
                total = f", {whole} in all" if event.attempt_number > 1 and whole else ""
                return "✓", GOOD, f"{event.activity_type} completed{took}{total} → {words.value(event.result)}"
            case ActivityFailed():
                why = self._failed(at, event.exception_type, event.message, event.activity_type)
                took = self._took(event.sequence, at)
                self.open.pop(event.sequence, None)
                final = " (not retried)" if event.non_retryable else ""
                return "✗", BAD, f"{event.activity_type} failed at attempt {event.attempt_number}{took}: {why}{final}"
            case ActivityTimedOut():
                why = self._failed(at, None, event.message, event.activity_type)
                self.open.pop(event.sequence, None)
                return "✗", BAD, f"{event.activity_type} timed out ({event.timeout_kind}): {why}"
            case ActivityCancelled():
                self.open.pop(event.sequence, None)
                return "✗", QUIET, f"{event.activity_type} cancelled"
            case _:
                return None

    def _attempt(self, event: ActivityStarted, at: Micros) -> tuple[str, str, str]:
        step = self.open.get(event.sequence)
        if step is not None:
            step.attempt, step.started_at, step.again_at = event.attempt_number, at, None
        return "▸", QUIET, f"{event.activity_type} attempt {event.attempt_number} started"

    def _lost(self, event: ActivityRetryScheduled, at: Micros) -> tuple[str, str, str]:
        """An attempt that never reported; the same task is offered for the next one."""
        step = self.open.get(event.sequence)
        if step is not None:
            step.started_at, step.again_at = None, event.retry_available_at
        wait = event.retry_available_at - at
        pause = f"again in {words.span(wait)}" if wait > 0 else "again at once"
        if not event.crashes or event.retry_reason != "activity_crashed":
            return (
                "↻",
                QUIET,
                f"{event.activity_type} attempt {event.retry_after_attempt} never reached its worker; {pause}",
            )
        self.last_failure = (at, f"{event.activity_type}: {event.message}")
        times = "" if event.crashes == 1 else f" ({event.crashes} in a row)"
        gone = "crashed: it never reported, its process is gone"
        return "↻", AGAIN, f"{event.activity_type} attempt {event.retry_after_attempt} {gone}{times}; {pause}"

    def _failed(self, at: Micros, type: str | None, message: str, where: str | None = None) -> str:
        why = words.failure(type, message) if type else words.shortened(message)
        self.last_failure = (at, f"{where}: {why}" if where else why)
        return why

    def _took(self, step: int, at: Micros) -> str:
        found = self.open.get(step)
        running = None if found is None else found.started_at
        return "" if running is None else f" in {words.span(at - running)}"

    def _since(self, step: int, at: Micros) -> str:
        found = self.open.get(step)
        return "" if found is None else words.span(at - found.scheduled_at)


def _at_most(seconds: float | None) -> str:
    return "" if seconds is None else f", at most {words.span(round(seconds * SECOND))}"


def _because(reason: str | None) -> str:
    return f": {words.shortened(reason)}" if reason else ""


def _named(event: Event) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(event).__name__).lower()
