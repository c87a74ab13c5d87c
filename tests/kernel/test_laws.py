"""Laws: what holds after any sequence of messages, with any workers waiting, and a clock that may go back.

Folding the stored history from zero gives the live state; the rows are exactly what `expect` says; the same input gives
the same decision, with or without a restart before each message; history adds up; nothing follows the end. Whatever was
accepted is told to the code once and in order, and every accepted update ends once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from backstay.kernel.command import Command, TerminalCommand
from backstay.kernel.decision import Decision
from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import (
    Activities,
    ActivityStarted,
    CancelActivity,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    Progress,
    RetryPolicy,
    ScheduleActivity,
)
from backstay.kernel.features.activity.records import Execution
from backstay.kernel.features.archive import Archive
from backstay.kernel.features.cancel import Cancel, CancelRequested, CancelWorkflow, Terminate
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.condition import (
    Conditions,
    OpenConditionWait,
    SatisfyConditionWait,
    TimeOutConditionWait,
)
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.failures import Failures
from backstay.kernel.features.fork import Fork, HistoryInherited, Rewind
from backstay.kernel.features.instance_commands import update_of
from backstay.kernel.features.lease import Claim, Offer, Release
from backstay.kernel.features.local_activity import LocalAttempt, RecordLocalActivity
from backstay.kernel.features.memo import UpsertMemo
from backstay.kernel.features.pause import Pause, Paused, Unpause
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.repair import Repair
from backstay.kernel.features.retry_now import RetryNow
from backstay.kernel.features.search import UpsertSearchAttributes
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.signal import (
    ApplySignal,
    DeliverSignal,
    OpenSignalWait,
    SignalReceived,
    Signals,
    open_waits,
)
from backstay.kernel.features.signal_with_start import SignalAndStart
from backstay.kernel.features.skip_wait import SkipWait
from backstay.kernel.features.start import Reserve, WorkflowStarted
from backstay.kernel.features.timer import CancelTimer, StartTimer, Timers
from backstay.kernel.features.update import (
    CompleteUpdate,
    FailUpdate,
    Update,
    UpdateAccepted,
    UpdateCompleted,
    UpdateRejected,
    Updates,
)
from backstay.kernel.features.version import RecordVersionMarker
from backstay.kernel.features.workflow_task import (
    WAITING_FOR_HISTORY,
    CompleteWorkflowTask,
    FailWorkflowTask,
    HeartbeatWorkflowTask,
    history_end,
)
from backstay.kernel.limits import Limits
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.task import Block, Lease, Task
from backstay.kernel.values import LEASE, SECOND, command_id, execution_id, run_of, signal_id, timer_id

from .deciding import Decided
from .given import TALKING, Flow, started
from .stored import refold, reread, snapshot

ENDS = {
    *("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled", "TimerFired", "TimerCancelled"),
    *("SideEffectRecorded", "VersionMarkerRecorded", "MemoUpserted", "SearchAttributesUpserted"),
    *("SignalApplied", "ConditionWaitSatisfied", "ConditionWaitTimedOut"),
}
OPENS = {
    *("ActivityScheduled", "TimerScheduled", "SignalWaitOpened", "ConditionWaitOpened"),
    *(end for end in ENDS if end.endswith(("Recorded", "Upserted"))),
}
CLOSES = {
    *("WorkflowCompleted", "WorkflowFailed", "WorkflowTimedOut", "WorkflowContinuedAsNew"),
    *("WorkflowCancelled", "WorkflowTerminated", "WorkflowRewound"),
}
AFTERWARDS = {
    *("UpdateCompleted", "ActivityCancelled", "ParentClosePolicyApplied", "ParentClosePolicyFailed"),
    *("ArchiveRequested", "WorkflowArchived"),
}
"""What may follow the end of a run."""

LIMITS = Limits(
    pending_activity_count=6,
    pending_timer_count=6,
    pending_signal_count=6,
    pending_update_count=4,
    memo_size=12,
    history_length=120,
)

POLICIES: list[RetryPolicy | None] = [
    None,
    RetryPolicy(max_attempts=3, backoff_seconds=[0.0, 5.0]),
    RetryPolicy(max_attempts=None, backoff_seconds=[30.0]),
    RetryPolicy(max_attempts=2, start_to_close_timeout=40.0, heartbeat_timeout=8.0),
    RetryPolicy(max_attempts=2, schedule_to_start_timeout=4.0, schedule_to_close_timeout=50.0),
    RetryPolicy(max_attempts=2, schedule_to_start_timeout=5.0, schedule_to_close_timeout=60.0, backoff_seconds=[7.0]),
    RetryPolicy(max_attempts=2, non_retryable_error_types=["Fatal"], start_to_close_timeout=400.0),
]
AT_ONCE = [policy for policy in POLICIES if policy is None or not any(policy.backoff_seconds)]
FAILURES = [
    Failure(message="boom"),
    Failure(message="boom", exception_type="Fatal"),
    Failure(message="boom", non_retryable=True),
]
BLOCKS = [
    Block(message="boom"),
    Block(message="diverged", replay_blocked=True, fingerprint="f1"),
    Block(message="nothing yet", type=WAITING_FOR_HISTORY),
]
OWNERS = ["engine-1/0", "engine-2/0", "worker-1", "worker-2"]
HANDLING = msgspec.structs.replace(TALKING, cleanup_seconds=25.0)
STARTS: list[dict[str, Any]] = [
    {},
    {"definition": TALKING},
    {"definition": TALKING},
    {"definition": HANDLING},
    {"execution_timeout_seconds": 5000.0, "run_timeout_seconds": 2500.0},
    {"duplicate_policy": "return_existing_active", "memo": {"a": b"1"}, "search_attributes": {"x": 1}},
]
ATTEMPTS = [
    LocalAttempt(),
    LocalAttempt(failure=FAILURES[0], backoff_seconds=2.0),
    LocalAttempt(failure=FAILURES[0], timeout_kind="start_to_close"),
]

WRONG: list[Command] = [
    StartTimer(delay_seconds=-1),
    ScheduleActivity(activity_type=""),
    UpsertMemo(entries={"1": b""}),
    OpenConditionWait(condition_key="a b"),
    TimeOutConditionWait(step=99),
    SatisfyConditionWait(step=99),
    CompleteUpdate(update_id="RUN1-u99"),
]
LAST: list[Command] = [
    CompleteWorkflow(result=b"r"),
    CancelWorkflow(),
    FailWorkflow(message="x"),
    ContinueAsNew(),
    ContinueAsNew(arguments=b"n", queue="q"),
    ContinueAsNew(arguments=b"n"),
]


def some_command(random: Random, policies: list[RetryPolicy | None]) -> Command:
    pick = random.choice
    kinds = ["activity"] * 4 + ["timer"] * 3 + ["signal wait"] * 3 + ["condition"] * 3
    match pick([*kinds, "cancel", "cancel", "effect", "version", "memo", "search", "local"]):
        case "signal wait":
            return OpenSignalWait(signal_name=pick(["go", "stop"]), timeout_seconds=pick([None, None, 0.0, 5.0, 60.0]))
        case "condition":
            timeout = pick([None, None, 0.0, 5.0, 60.0])
            return OpenConditionWait(
                condition_key=pick([None, "k"]), timeout_seconds=timeout, satisfied=pick([False, False, True])
            )
        case "activity":
            return ScheduleActivity(activity_type=pick("ab"), retry_policy=pick(policies))
        case "timer":
            return StartTimer(delay_seconds=pick([0.0, 1.0, 5.0, 60.0, 0.25]))
        case "cancel":
            return pick([CancelTimer, CancelActivity])(step=pick(range(1, 9)))
        case "effect":
            return RecordSideEffect(result=pick([b"", b"x"]))
        case "version":
            version = pick([-1, 0, 1])
            return RecordVersionMarker(change_id=pick("cd"), version=version, min_supported=-1, max_supported=1)
        case "memo":
            return UpsertMemo(entries={pick("abc"): pick([None, b"", b"x", b"yz"])})
        case "search":
            return UpsertSearchAttributes(attributes={pick("abc"): pick([None, True, -7, 0.5, "text", ["a", "b"]])})
        case _:
            outcome: Any = pick(["completed", "completed", "failed", "timed_out", "cancelled"])
            attempts = [pick(ATTEMPTS) for _ in range(pick([1, 1, 2, 3]))]
            policy = pick(policies)
            return RecordLocalActivity(activity_type="l", outcome=outcome, attempts=attempts, retry_policy=policy)


def some_commands(random: Random, policies: list[RetryPolicy | None]) -> tuple[Command, ...]:
    found = [some_command(random, policies) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    end = random.choice([[]] * 15 + [WRONG, LAST])
    return (*found, random.choice(end)) if end else tuple(found)


class Act(NamedTuple):
    """One thing that happens. The numbers choose among whatever there is to choose from at that moment."""

    verb: str
    which: int = 0
    how: int = 0
    pause: float = 0
    taker: int = 0
    commands: tuple[Command, ...] = ()


CALM = ["complete"] * 6 + ["claim"] * 5 + ["finish"] * 4 + ["fail"] * 3 + ["due"] * 3
CALM += ["start", "stale", "break", "renew", "release", "offer", "reconcile"]
CALM += ["signal"] * 5 + ["update"] * 4 + ["both", "both", "pause", "unpause", "unpause", "stop", "archive", "repair"]
CALM += ["rewind"]
TALK = ["complete"] * 8 + ["claim"] * 3 + ["signal"] * 6 + ["update"] * 5 + ["due"] * 3
TALK += ["both", "stop", "release", "break", "reconcile", "finish", "rewind"]
WILD = [*CALM, "beat", "beat", "beat", "lose", "reserve", "retry now", "retry now", "retry now", "skip wait"]


def some_act(verbs: list[str], seed: int) -> Act:
    policies = POLICIES if verbs is WILD else AT_ONCE
    random = Random(seed)
    verb = random.choice(verbs)
    which, how, taker = (random.randrange(6) for _ in range(3))
    pause = random.choice([0, 0, 0, 0, 1, 1, 5, 20, 301, -50])
    return Act(verb, which, how, pause, taker, some_commands(random, policies) if verb == "complete" else ())


def acts(verbs: list[str]) -> st.SearchStrategy[list[Act]]:
    """Stories of up to forty acts. An act is one number, so that a failing story shrinks to the few acts it needs."""
    story = st.lists(st.integers(0, 2**20), min_size=20, max_size=40, unique=True)
    return story.map(lambda seeds: [Act("start", how=len(seeds)), *(some_act(verbs, seed) for seed in seeds)])


class Story:
    """An instance living through a sequence of acts, and everyone who ever held a lease on it."""

    def __init__(self) -> None:
        self.flow = Flow(Machine(limits=LIMITS))
        self.attempts: list[dict[str, Any]] = []
        self.leases: list[dict[str, Any]] = []
        self.lost: set[str] = set()
        self.blurred = False  # an unrecorded heartbeat or a lost row: the wake may be early
        self.inferred: list[Inferred] = []

    def live(self, act: Act) -> Decision | Refused:
        flow = self.flow
        flow.now += round(act.pause * SECOND)
        if act.verb == "lose" and flow.rows:
            id = sorted(flow.rows)[act.which % len(flow.rows)]
            self.lost.add(id)
            self.blurred = True
            flow.lose(id)
        message = self.message(act)
        before = snapshot(flow)
        left = self.left_behind(message)
        run = flow.state.run
        outcome = self.decide(message, act)
        if isinstance(outcome, Refused):
            assert snapshot(flow) == before, f"refused as {outcome.reason}, yet something changed"
        else:
            if run is not None and flow.state.run is run and run.part(Paused).entry is not None:
                assert (outcome.unassigned, outcome.leased) == ([], []), "handed out while paused"
            self.remember(outcome)
            if left is not None and outcome.reply.recorded:
                self.inferred.append(Inferred(left, outcome.events))
        return outcome

    def left_behind(self, message: Message) -> dict[int, str] | None:
        """The waits that a worker which does not number its steps leaves behind with this, and how they end."""
        if not isinstance(message, CompleteWorkflowTask) or message.numbered or message.task_id not in self.flow.tasks:
            return None
        task = self.flow.tasks[message.task_id]
        if task.history_limit is not None:
            return None
        run = self.flow.run
        seen = history_end(run, task) if task.seen is None else task.seen
        again = [command.condition_key for command in message.commands if isinstance(command, OpenConditionWait)]
        left: dict[int, str] = {}
        for step, wait in run.part(Conditions).open.items():
            if run.part(Timers).fired.get(step, seen + 1) <= seen:
                left[step] = "ConditionWaitTimedOut"
            elif wait.condition_key in again:
                again.remove(wait.condition_key)
            else:
                left[step] = "ConditionWaitSatisfied"
        return left

    def decide(self, message: Message, act: Act) -> Decided | Refused:
        try:
            return self.flow.when(message, offer=self.taker(act))
        except Refused as refusal:
            return refusal

    def remember(self, decision: Decision) -> None:
        for entry in decision.events:
            if isinstance(entry.event, ActivityStarted):
                event = entry.event
                who = {"step": event.sequence, "attempt": event.attempt_number, "owner": entry.context.owner}
                self.attempts.append({**who, "run_id": event.activity_execution_id.partition("-")[0]})
        for task in self.flow.tasks.values():
            lease = {"task_id": task.id, "owner": task.owner, "attempt": task.attempt}
            if task.state == "leased" and lease not in self.leases:
                self.leases.append(lease)
        self.lost -= set(self.flow.rows)

    def taker(self, act: Act) -> Callable[[Task], Lease | None]:
        if act.taker < 3:
            return lambda task: None
        kind = ("activity", "workflow", None)[act.taker - 3]
        return lambda task: self.lease(act.which) if kind in (None, task.kind) else None

    def lease(self, which: int) -> Lease:
        owner = OWNERS[which % len(OWNERS)]
        return Lease(owner=owner, until=None if owner.startswith("engine") else self.flow.now + LEASE)

    def answers(self, act: Act) -> list[Command]:
        """What code says of the waits and updates it has been shown, if it comes to that."""
        flow = self.flow
        run = flow.run
        (task,) = (task for task in flow.tasks.values() if task.kind == "workflow")
        seen = history_end(run, task) if task.seen is None else task.seen
        if task.history_limit is not None:
            update_id = task.resume.workflow_update_id or ""
            wrong: list[Command] = [*act.commands[:1], CompleteUpdate(update_id=update_id)]
            good = (
                FailUpdate(update_id=update_id, message="x") if act.which == 0 else CompleteUpdate(update_id=update_id)
            )
            return wrong if act.how == 0 else [good]
        found: list[Command] = []
        letters = [e for e in run.part(Signals).received.values() if not e.handler and e.sequence <= seen]
        for wait in open_waits(run) if act.how % 3 else ():
            letter = next((e for e in letters if e.event.signal_name == wait.signal_name), None)
            if letter is not None:
                letters.remove(letter)
                found.append(ApplySignal(step=wait.sequence, signal_id=letter.event.signal_id, value=b"v"))
        for step in run.part(Conditions).open:
            if run.part(Timers).fired.get(step, seen + 1) <= seen:
                found.append(TimeOutConditionWait(step=step))
            elif (step + act.which) % 2:
                found.append(SatisfyConditionWait(step=step))
        return [*found, *act.commands]

    def current_lease(self) -> dict[str, Any]:
        """Who may complete the workflow task: its holder, or for a ready one the engine itself."""
        for task in self.flow.tasks.values():
            if task.kind == "workflow" and task.state == "leased":
                return {"task_id": task.id, "owner": task.owner, "attempt": task.attempt}
            if task.kind == "workflow" and task.state == "ready":
                return {"task_id": task.id, "owner": OWNERS[0], "attempt": 1, "lease": Lease(owner=OWNERS[0])}
        return {}

    def next_verb(self, act: Act) -> str:
        """While the workflow waits: what moves it on."""
        if any(task.state == "ready" for task in self.flow.tasks.values()):
            return "claim"
        return ("finish", "finish", "fail")[act.how % 3] if self.running() else "due"

    def running(self) -> list[dict[str, Any]]:
        """The attempts that may report."""
        run = self.flow.state.run
        open = {} if run is None else run.part(Activities).open
        return [a for a in self.attempts if run and a["run_id"] == run.run_id and current(open.get(a["step"]), a)]

    def addressed(self, act: Act) -> dict[str, Any]:
        """To the instance or to a run of it; new, or once more."""
        keys = list(self.flow.runs)
        key = keys[-1] if act.how == 4 else keys[0] if act.how == 5 else None
        return {
            "run_id": None if key is None else self.flow.runs[key].run_id,
            "earlier": None if key is None else self.flow.earlier(key),
            "request_id": "r1" if act.taker == 0 else None,
        }

    def message(self, act: Act) -> Message:
        flow = self.flow
        tasks = sorted(flow.tasks)
        tasks = [id for id in tasks if flow.tasks[id].state == "ready"] or tasks
        task_id = tasks[act.which % len(tasks)] if tasks else "RUN1-w9"
        held = self.leases[-1 - act.which % len(self.leases)] if self.leases else {}
        held = held or {"task_id": task_id, "owner": OWNERS[0], "attempt": 1}
        attempts = (self.running() if act.which else []) or self.attempts
        attempt = attempts[-1 - act.which % len(attempts)] if attempts else {}
        attempt = attempt or {"step": 1, "attempt": 1, "owner": OWNERS[0], "run_id": "RUN1"}
        raised = list(flow.run.part(Failures).raised) if flow.state.run is not None and act.how % 2 else []
        match act.verb:
            case "start":
                return started(**STARTS[act.how % len(STARTS)])
            case "reserve":
                return Reserve(namespace="default", workflow_id="order-1", workflow_type="order")
            case "claim":
                return Claim(task_id=task_id, lease=self.lease(act.how))
            case "complete":
                lease = self.current_lease()
                if not lease:
                    return self.message(act._replace(verb=self.next_verb(act)))
                numbered = act.which < 4
                apart = flow.tasks[lease["task_id"]].history_limit is not None
                found = self.answers(act) if numbered or apart else list(act.commands)
                if act.how and not apart and not (found and isinstance(found[-1], TerminalCommand)):
                    found.append(StartTimer(delay_seconds=float(act.how)))  # so that the story goes on
                return CompleteWorkflowTask(**lease, commands=found, handled_failures=raised, numbered=numbered)
            case "signal":
                name = ("go", "note", "stop", "go", "note", "typo")[act.which]
                return flow.retried(DeliverSignal(name=name, **self.addressed(act)))
            case "update":
                return flow.retried(Update(name="typo" if act.which == 5 else "add", **self.addressed(act)))
            case "both":
                start = started(**STARTS[act.which % len(STARTS)])
                return SignalAndStart(start=start, signal=DeliverSignal(name=("go", "note", "typo")[act.how % 3]))
            case "pause" | "unpause":
                return (Pause if act.verb == "pause" else Unpause)(reason="why")
            case "retry now":
                named = execution_id(flow.run.run_id, 1 + act.which) if flow.state.run is not None else None
                return RetryNow(activity_execution_id=named if act.how == 5 else None)
            case "skip wait":
                named = timer_id(flow.run.run_id, 1 + act.which) if flow.state.run is not None else None
                return SkipWait(wait_id=named if act.how == 5 else None)
            case "stop":
                if act.how > 1 or act.which > 2:
                    return self.message(act._replace(verb="signal"))
                return Terminate() if act.how else Cancel()
            case "rewind":
                if flow.state.run is None:
                    return self.message(act._replace(verb="start"))
                step = 1 + act.taker
                replaced: dict[int, bytes | None] = {step: b"given"} if act.how == 2 else {}
                return Rewind(
                    at=None
                    if act.how == 1
                    else f"event:{2 + (7 * act.which + act.how + act.taker) % len(flow.history)}",
                    set=replaced,
                    history=reread(flow.machine, flow.history),
                    from_run_id=flow.run.run_id,
                    routing=flow.run.routing,
                )
            case "archive":
                keys = sorted(flow.histories)
                key = keys[act.which % len(keys)]
                return Archive(run_id=flow.runs[key].run_id, earlier=flow.earlier(key))
            case "repair":
                return Repair(work=Reconcile(incarnation="engine-1", force=act.how % 2 == 1))
            case "stale":
                return CompleteWorkflowTask(**held, commands=[RecordSideEffect(result=b"s")])
            case "break":
                return FailWorkflowTask(**held, block=BLOCKS[act.how % len(BLOCKS)])
            case "renew":
                return HeartbeatWorkflowTask(**held, renew=act.how % 2 == 0)
            case "release":
                return Release(**held)
            case "offer":
                return Offer(task_id=task_id, quiet=act.how == 0)
            case "finish":
                return CompleteActivity(**attempt, result=b"r" * act.how)
            case "fail":
                return FailActivity(**attempt, failure=FAILURES[act.how % len(FAILURES)])
            case "beat":
                self.blurred = True
                return HeartbeatActivity(**attempt, progress=None if act.how < 3 else Progress(current=act.how))
            case "due":
                wake = flow.state.next_wake
                if wake is not None and act.how < 4:
                    flow.now = max(flow.now, wake)
                return Due()
            case _:
                if act.how > 2:
                    flow.deployed["order"] = "f2"
                return Reconcile(incarnation="engine-1" if act.which % 2 else "engine-2", force=act.how % 2 == 1)


class Inferred(NamedTuple):
    """Waits that a worker left behind without a word, how each had to end, and what was recorded."""

    left: dict[int, str]
    events: Sequence[Recorded]


def current(execution: Execution | None, attempt: dict[str, Any]) -> bool:
    return execution is not None and execution.running and execution.attempt == attempt["attempt"]


def quick(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def plain(decision: Decision | Refused) -> Any:
    """A decision as the bytes that would be stored and sent."""
    if isinstance(decision, Refused):
        return decision.reason, decision.message, repr(decision.fields)
    events = [(e.run, e.sequence, e.at, e.type, e.body, e.context_body, e.checksum) for e in decision.events]
    rest = [getattr(decision, field) for field in Decision.__struct_fields__ if field != "events"]
    return events, msgspec.json.encode(rest)


# -- the laws, one by one, on a story that has been lived


def the_fold_of_the_stored_history_is_the_live_state(story: Story) -> None:
    if story.flow.row is not None:
        assert snapshot(story.flow, refold(story.flow)) == snapshot(story.flow)


def the_rows_are_exactly_what_is_expected(story: Story) -> None:
    flow = story.flow
    assert flow.tasks == flow.rows
    expected = flow.machine.expect(flow.state)
    missing = set(expected.tasks) - set(flow.rows)
    assert set(flow.rows) <= set(expected.tasks)
    assert missing <= story.lost
    assert all(expected.tasks[id].state == "leased" for id in missing), "only what may still run is left without a row"
    assert sum(task.kind == "workflow" for task in flow.rows.values()) <= 1


def the_wake_is_the_earliest_deadline(story: Story) -> None:
    flow = story.flow
    if not story.blurred:
        assert flow.state.next_wake == flow.machine.expect(flow.state).next_wake
    assert flow.row is None or flow.row.next_wake == flow.state.next_wake


def the_end_is_the_end(story: Story) -> None:
    flow = story.flow
    for history in flow.histories.values():
        types = [entry.type for entry in history]
        ends = [at for at, type in enumerate(types) if type in CLOSES]
        assert len(ends) <= 1
        behind = history[ends[0] + 1 :] if ends else []
        assert {entry.type for entry in behind} <= AFTERWARDS
        failed = [entry for entry in behind if isinstance(entry.event, UpdateCompleted)]
        assert all(entry.event.outcome == "update_failed" for entry in failed)  # type: ignore[attr-defined]
        assert failed == behind[: len(failed)], "what fails with the run fails in its last breath"
    if flow.state.run is not None and not flow.run.is_open:
        assert flow.rows == {}
        assert flow.state.buffered_events == []
        assert flow.state.next_wake is None
        assert flow.machine.expect(flow.state) == ({}, None)
    current = None if flow.row is None else flow.row.run
    assert all(row.closed_reason is not None for key, row in flow.runs.items() if key != current)


def each_step_opens_once_and_ends_at_most_once(story: Story) -> None:
    for history in story.flow.histories.values():
        opened = [step_of(entry) for entry in history if entry.type in OPENS and not is_timeout(entry)]
        assert opened == list(range(1, len(opened) + 1))
        ends = [step_of(entry) for entry in history if entry.type in ENDS and not is_timeout(entry)]
        ended = Counter(step for step in ends if step is not None)  # a handler takes no step
        assert set(ended) <= set(opened)
        assert set(ended.values()) <= {1}


def step_of(entry: Recorded) -> int:
    return entry.event.sequence  # type: ignore[attr-defined,no-any-return]


def is_timeout(entry: Recorded) -> bool:
    """Whether an event is about the timeout of a wait: that shares the step of the wait and does not end it."""
    return getattr(entry.event, "timer_kind", None) is not None


def history_adds_up(story: Story) -> None:
    flow = story.flow
    for history in flow.histories.values():
        assert [entry.sequence for entry in history] == list(range(1, len(history) + 1))
        assert [entry.event for entry in reread(flow.machine, history)] == [entry.event for entry in history]
        times = [entry.at for entry in history]
        assert times == sorted(times)
    # Across runs too, but for what is said of an earlier one when it is archived.
    lived = [e for history in flow.histories.values() for e in own(history) if "Archive" not in e.type]
    assert [entry.at for entry in lived] == sorted(entry.at for entry in lived)


def the_index_tells_the_truth(story: Story) -> None:
    flow = story.flow
    if flow.state.run is not None:
        row, run = flow.runs[flow.run.key], flow.run
        assert (row.status, row.closed_reason, row.closed_at) == (run.status, run.closed_reason, run.closed_at)
        assert row.search_attributes == flow.machine.index(flow.state, flow.run).search_attributes
    for key, row in flow.runs.items():
        archived = [entry.at for entry in flow.histories[key] if entry.type == "WorkflowArchived"]
        assert archived == ([] if row.archived_at is None else [row.archived_at])


def every_run_numbers_its_own_commands(story: Story) -> None:
    flow = story.flow
    for key, row in flow.runs.items():
        own = [command for command in flow.commands if command.run == key]
        # A rewound run does not give the numbers of commands again whose events it has taken over.
        entries = copies(flow.histories.get(key, ()))[2:]  # the first two name the start of this run
        named = [e.context.command_id or getattr(e.event, "workflow_command_id", None) or "" for e in entries]
        taken = max((int(id.partition("-c")[2]) for id in named if run_of(id) == row.run_id), default=0)
        first = own[0].sequence or 0
        assert first > taken if source(story, key) is not None else first == 1
        numbers = list(range(first, first + len(own)))
        assert [command.sequence for command in own] == numbers
        assert [command.id for command in own] == [command_id(row.run_id, number) for number in numbers]
        assert {command.requested_run_id for command in own} <= {None, row.run_id}


def what_is_accepted_is_told_in_the_order_of_the_commands(story: Story) -> None:
    flow = story.flow
    numbers = {row.run_id: row.number for row in flow.runs.values()}
    told = (SignalReceived, UpdateAccepted, UpdateRejected, CancelRequested)
    for history in flow.histories.values():
        # A command that a run has taken over with the history of another one has the place that it had there.
        commands = [origin(story, entry.context.command_id or "") for entry in history if isinstance(entry.event, told)]
        order = [(numbers[run_of(id)], int(id.partition("-c")[2])) for id in commands]
        assert order == sorted(set(order))


def nothing_that_code_was_told_stands_before_what_it_decided_without_it(story: Story) -> None:
    told = (SignalReceived, UpdateAccepted, CancelRequested)
    for history in story.flow.histories.values():
        for entry in history:
            context = entry.context
            if context.decided_after is not None and "-w" in (context.task_id or ""):  # an ordinary task
                unseen = history[context.decided_after : entry.sequence - 1]
                assert not [other for other in unseen if isinstance(other.event, told)]


def own(history: Sequence[Recorded]) -> Sequence[Recorded]:
    """The events that a run has recorded itself."""
    return history[len(copies(history)) :]


def copies(history: Sequence[Recorded]) -> Sequence[Recorded]:
    """The events that a rewound run has taken over from the run before."""
    return history[: max((at for at, entry in enumerate(history) if entry.type == "HistoryInherited"), default=0)]


def source(story: Story, key: int) -> tuple[int, HistoryInherited] | None:
    """The run whose history a run has taken over, and how."""
    flow = story.flow
    found = [e.event for e in flow.histories.get(key, ()) if isinstance(e.event, HistoryInherited)]
    keys = {row.run_id: old for old, row in flow.runs.items()}
    return (keys[found[-1].from_workflow_run_id], found[-1]) if found else None


def origin(story: Story, id: str) -> str:
    """The id of a command or signal before rewound runs took over its event, each under an id of its own."""
    for key, row in story.flow.runs.items():
        taken = source(story, key)
        if row.run_id == run_of(id) and taken is not None:
            number = int(id.partition("-")[2][1:])
            mine = [e for e in copies(story.flow.histories[key]) if run_of(e.context.command_id or "") == row.run_id]
            if number in {entry.context.command_sequence for entry in mine}:
                return origin(story, f"{story.flow.runs[taken[0]].run_id}-{id.partition('-')[2]}")
    return id


def standing(story: Story) -> tuple[list[Recorded], set[int]]:
    """What stands of the chain of runs that the current one belongs to: no rewind has taken it back. And all its runs."""
    flow = story.flow
    keys = {row.run_id: key for key, row in flow.runs.items()}
    found: list[Recorded] = []
    runs: set[int] = set()
    key: int | None = flow.run.key
    while key is not None:
        found = [*flow.histories[key], *found]
        runs.add(key)
        while (taken := source(story, key)) is not None:
            key = taken[0]
            runs.add(key)
        before = [e.event.continued_from_run_id for e in flow.histories[key] if isinstance(e.event, WorkflowStarted)]
        key = keys[before[0]] if before and before[0] is not None else None
    return found, runs


def ids(history: Sequence[Recorded], kind: str, field: str) -> list[str]:
    return [getattr(entry.event, field) for entry in history if entry.type == kind]


def accepted(story: Story, command_type: str) -> list[tuple[str, int]]:
    """The id and the run of every accepted signal or update."""
    commands = [c for c in story.flow.commands if (c.command_type, c.status) == (command_type, "accepted")]
    if command_type == "update":
        return [(update_of(c), c.run or 0) for c in commands]
    return [(signal_id(c.resolved_run_id or "", c.sequence or 0), c.run or 0) for c in commands]


def facts(story: Story, kind: str, field: str) -> list[tuple[int, str]]:
    """Every event of a kind, by its run and id."""
    histories = story.flow.histories.items()
    return [(key, getattr(e.event, field)) for key, history in histories for e in history if e.type == kind]


def every_accepted_signal_is_received_and_applied_once(story: Story) -> None:
    flow = story.flow
    if flow.state.run is None:
        return
    received = facts(story, "SignalReceived", "signal_id")
    applied = facts(story, "SignalApplied", "signal_id")
    assert len(set(received)) == len(received), "told twice to one run"
    assert len(set(applied)) == len(applied), "applied twice by one run"
    stands, runs = standing(story)
    counts = Counter(origin(story, id) for id in ids(stands, "SignalApplied", "signal_id"))
    assert set(counts.values()) <= {1}, "applied twice, and neither was taken back"
    held = [event.signal_id for event, _ in flow.state.buffered_events if isinstance(event, SignalReceived)]
    known = accepted(story, "signal")
    assert {origin(story, id) for _, id in received} <= {id for id, _ in known}
    here = [origin(story, id) for key, id in received if key == flow.run.key]
    assert len(set(here)) == len(here), "told twice to one run, under two ids"
    waiting = flow.run.part(Signals).received
    for id, first in known:
        assert not (id in here and id in held)
        if flow.run.is_open and flow.run.key == first:
            assert id in here or id in held, "lost"
        # A signal that arrived during the last task of a run never got into history if the run ended meanwhile.
        never = flow.runs[first].closed_reason not in (None, "rewound", "continued") and (first, id) not in received
        if flow.run.is_open and first in runs and id not in counts and not never:
            assert id in held or id in {origin(story, other) for other in waiting}, "lost on the way to this run"
        if flow.runs[first].closed_reason == "continued" and (first, id) in received and (first, id) not in applied:
            assert any(key > first and origin(story, other) == id for key, other in received), "lost after that run"
    assert all(entry.sequence > flow.state.cursor for entry in waiting.values() if entry.handler)


def signals_are_applied_in_order(story: Story) -> None:
    for history in story.flow.histories.values():
        place = {e.event.signal_id: e for e in history if isinstance(e.event, SignalReceived)}
        applied = [e.event for e in history if e.type == "SignalApplied"]
        for handled in (True, False):
            for name in ("go", "stop", "note"):
                order = [
                    place[event.signal_id].sequence  # type: ignore[attr-defined]
                    for event in applied
                    if (event.sequence is None) == handled and event.signal_name == name  # type: ignore[attr-defined]
                ]
                assert order == sorted(order)


def every_accepted_update_ends_once(story: Story) -> None:
    flow = story.flow
    if flow.state.run is None:
        return
    ended = [id for history in flow.histories.values() for id in ids(own(history), "UpdateCompleted", "update_id")]
    ends = Counter(ended)
    open = [
        *flow.run.part(Updates).pending,
        *(e.update_id for e, _ in flow.state.buffered_events if isinstance(e, UpdateAccepted)),
    ]
    assert len(set(open)) == len(open)
    taken_over = {
        id for history in flow.histories.values() for id in ids(copies(history), "UpdateAccepted", "update_id")
    }
    known = {id for id, _ in accepted(story, "update")}
    for id in known:
        # A run that was continued as new hands it on under its id. If that run is rewound to before the answer, it is
        # handled once more.
        assert ends[id] + (id in open) == (1 + taken_back(story, id))
    assert set(ends) <= known | taken_over
    stands, _ = standing(story)
    for kind in ("UpdateApplied", "UpdateCompleted"):
        once = [origin(story, id) for id in ids(stands, kind, "workflow_command_id")]
        assert len(set(once)) == len(once)
    lived = [entry.event for history in flow.histories.values() for entry in history]
    failed = {
        origin(story, event.workflow_command_id or "")
        for event in lived
        if isinstance(event, UpdateCompleted) and event.terminal_reason is not None
    }
    applied = {origin(story, id) for id in ids(stands, "UpdateApplied", "workflow_command_id")}
    assert not failed & applied, "its sender knows that it failed, and yet it was applied"


def taken_back(story: Story, id: str) -> int:
    """How many rewinds kept the acceptance of an update under this id, and took back the answer of its handler."""
    count = 0
    for key, history in story.flow.histories.items():
        taken = source(story, key)
        if taken is not None and id in ids(copies(history), "UpdateAccepted", "update_id"):
            count += id not in ids(copies(history), "UpdateCompleted", "update_id")
    return count


def a_rewind_keeps_what_was_told_and_answered_before_its_point(story: Story) -> None:
    kinds = {"SignalReceived", "SignalApplied", "UpdateRejected", "UpdateCompleted", "CancelRequested"}
    for key, history in story.flow.histories.items():
        taken = source(story, key)
        if taken is not None:
            before = story.flow.histories[taken[0]][: taken[1].inherited_through]
            kept = [entry.type for entry in copies(history) if entry.type in kinds]
            assert kept == [entry.type for entry in before if entry.type in kinds]


def what_a_worker_leaves_behind_is_recorded_before_what_follows(story: Story) -> None:
    for left, events in story.inferred:
        if any(getattr(entry.event, "structural_limit_kind", None) for entry in events):
            continue  # it asked for too much, and nothing it asked for was done
        steps = [
            e for e in events if hasattr(e.event, "sequence") and e.type not in ("SignalApplied", "FailureHandled")
        ]
        steps = [entry for entry in steps if not is_timeout(entry)]
        said = {step_of(entry): entry.type for entry in steps[: len(left)]}
        assert said == left


LAWS = [
    the_fold_of_the_stored_history_is_the_live_state,
    the_rows_are_exactly_what_is_expected,
    the_wake_is_the_earliest_deadline,
    the_end_is_the_end,
    each_step_opens_once_and_ends_at_most_once,
    history_adds_up,
    the_index_tells_the_truth,
    every_run_numbers_its_own_commands,
    what_is_accepted_is_told_in_the_order_of_the_commands,
    nothing_that_code_was_told_stands_before_what_it_decided_without_it,
    every_accepted_signal_is_received_and_applied_once,
    signals_are_applied_in_order,
    every_accepted_update_ends_once,
    a_rewind_keeps_what_was_told_and_answered_before_its_point,
    what_a_worker_leaves_behind_is_recorded_before_what_follows,
]


@pytest.mark.contract("LEASE-16")
@quick(120)
@given(acts(WILD))
def test_every_law_holds_after_every_message(story_of: list[Act]) -> None:
    story = Story()
    for act in story_of:
        story.live(act)
        for law in LAWS[:3]:
            law(story)
    for law in LAWS[3:]:
        law(story)


@pytest.mark.contract("REC-01", "REC-02", "SIG-08", "UPD-04")
@quick(100)
@given(acts(TALK))
def test_every_law_holds_for_a_run_that_is_talked_to_all_the_time(story_of: list[Act]) -> None:
    story = Story()
    for act in story_of:
        story.live(act)
    for law in LAWS:
        law(story)


@quick(60)
@given(acts(WILD))
def test_two_machines_decide_the_same_for_the_same_input(story_of: list[Act]) -> None:
    one, other = Story(), Story()
    for act in story_of:
        assert plain(one.live(act)) == plain(other.live(act))


@quick(80)
@given(acts(CALM))
def test_an_engine_that_restarts_before_every_message_decides_the_same(story_of: list[Act]) -> None:
    steady, restarted = Story(), Story()
    for act in story_of:
        if restarted.flow.row is not None:
            restarted.flow.reopen()
        assert plain(steady.live(act)) == plain(restarted.live(act))


@quick(60)
@given(acts(WILD), st.lists(st.booleans(), max_size=12))
def test_delivering_the_wake_always_moves_it_on(story_of: list[Act], alone: list[bool]) -> None:
    story = Story()
    flow = story.flow
    for act in story_of:
        story.live(act)
    for _ in alone:
        if flow.state.next_wake is None:
            break
        flow.now = max(flow.now, flow.state.next_wake)
        story.live(Act("due", how=5))
        assert flow.state.next_wake is None or flow.state.next_wake > flow.now


@pytest.mark.contract("REPAIR-01")
@quick(60)
@given(acts(WILD))
def test_reconciling_restores_every_row_that_a_run_needs_to_end(story_of: list[Act]) -> None:
    story = Story()
    flow = story.flow
    for act in story_of:
        story.live(act)
    if flow.state.run is None or not flow.run.is_open:
        return
    flow.when(Unpause())
    flow.now = max(flow.now, flow.run.last_at) + 2 * LEASE  # nobody works on it any more
    flow.lose(*flow.rows)
    flow.when(Reconcile(incarnation="engine-3", force=True))
    assert {task.state for task in flow.rows.values()} <= {"ready"}
    for _ in range(200):
        if not work_once(flow):
            break
    assert flow.rows == {}
    assert not flow.run.is_open or not (flow.run.part(Activities).open or flow.run.part(Timers).pending)


@quick(40)
@given(acts(WILD), st.integers(0, 2**20))
def test_a_fork_at_any_point_is_whole_and_goes_on(story_of: list[Act], which: int) -> None:
    story = Story()
    flow = story.flow
    for act in story_of:
        story.live(act)
    history = flow.history
    fork = Flow(flow.machine, "order-2")
    fork.ids.ulids = flow.ids.ulids + 10  # not the ids of the other one
    fork.now = flow.now
    kept = next((at for at, entry in enumerate(history) if entry.type in CLOSES), len(history))
    fork.when(
        Fork(
            from_workflow_id="order-1",
            at=f"event:{2 + which % (kept - 1)}",
            history=reread(flow.machine, history),
            from_run_id=flow.run.run_id,
            routing=flow.run.routing,
        )
    )
    fork.when(Unpause())
    for _ in range(60):
        assert snapshot(fork, refold(fork)) == snapshot(fork)
        assert set(fork.machine.expect(fork.state).tasks) == set(fork.rows)
        if not work_once(fork):
            break
    failures = [getattr(entry.event, "failure_id", None) for entry in fork.history if entry.type != "FailureHandled"]
    failures = [id for id in failures if id is not None]
    assert len(set(failures)) == len(failures)


def work_once(flow: Flow) -> bool:
    """Do one ready task, or else let the time pass to the next wake. False: there is nothing left to do."""
    ready = [task for task in flow.rows.values() if task.state == "ready" and task.available_at <= flow.now]
    if ready and ready[0].history_limit is not None:
        flow.complete(CompleteUpdate(update_id=ready[0].resume.workflow_update_id or ""))
    elif ready and ready[0].kind == "workflow":
        flow.complete()
    elif ready:
        flow.begin(ready[0].step or 0)
        flow.finish(ready[0].step or 0)
    elif flow.state.next_wake is not None:
        flow.now = max(flow.now, flow.state.next_wake)
        flow.when(Due())
    else:
        return False
    return True
