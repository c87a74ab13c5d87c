"""The law of replay for runs that are talked to: signals, updates and cancel requests at any moment.

They come between tasks and in the middle of them, beside activity results and timers. After every task a cold replay of what
that task may see must issue exactly the commands that the live code issued, and a query must see what the live code holds.
"""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backstay import Cancelled, Saga, Signal, continue_as_new, query, shield, signal, spawn, update, wait, workflow
from backstay.codec.exceptions import Exceptions
from backstay.codec.values import dumps, loads
from backstay.kernel.event import Recorded
from backstay.kernel.failure import Handled
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.signal import DeliverSignal as SendSignal
from backstay.kernel.features.update import CompleteUpdate, FailUpdate, Update
from backstay.kernel.features.workflow_task import CompleteWorkflowTask, WorkflowAssignment, events_shown
from backstay.kernel.task import Lease, Task
from backstay.protocol.commands import Inquiry
from backstay.sdk.author.workflow import definition_of
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.queries import answer_from, answer_on
from backstay.sdk.replay.reactions import REACTIONS
from backstay.sdk.worker.registry import Registry

from ..selection import rotating
from .test_replay_laws import MACHINE, Drive, Story, plain, said, simple

letters = Signal[int]("letters")

patience = st.sampled_from([None, None, 0, 1, 3])
talk = st.one_of(
    st.tuples(st.just("hear"), patience),
    st.tuples(st.just("until"), st.tuples(st.integers(1, 5), patience)),
    st.just(("count",)),
    simple,
)


def bodies(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("together"), st.lists(body, min_size=2, max_size=3)),
        st.tuples(st.just("spawn"), body),
        st.tuples(st.just("guarded"), body),
        st.tuples(st.just("shielded"), body),
        st.tuples(st.just("saga"), body),
        st.tuples(st.just("within"), st.tuples(st.sampled_from([0.5, 2]), body)),
        st.tuples(st.just("blocking"), st.lists(talk, min_size=1, max_size=2)),
    )


programs = st.lists(st.recursive(talk, bodies, max_leaves=10), min_size=1, max_size=5)
tapes = st.lists(st.integers(0, 997), min_size=1, max_size=60)


class TalkingStory(Story):
    count = 0

    def play(self, body: Any) -> None:
        for statement in body:
            match statement:
                case ("hear", seconds):
                    self.tell(wait(letters) if seconds is None else wait(letters, timeout=seconds))
                case ("until", (count, seconds)):
                    self.tell(wait(lambda count=count: self.count >= count, timeout=seconds))
                case ("guarded", inner):
                    try:
                        self.play(inner)
                    except Cancelled:
                        self.tell("cancelled")
                case ("shielded", inner):
                    with shield():
                        self.play(inner)
                case ("saga", inner):
                    with Saga() as saga:
                        saga.undo(self.tell, "undone")
                        self.play(inner)
                case ("together", bodies):
                    for branch in [spawn(self.play, one) for one in bodies]:
                        branch.join()
                case ("count",):
                    self.tell(self.count)
                case _:
                    super().play([statement])

    async def play_later(self, body: Any) -> None:
        for statement in body:
            match statement:
                case ("hear", seconds):
                    self.tell(await (wait.step(letters) if seconds is None else wait.step(letters, timeout=seconds)))
                case ("until", (count, seconds)):
                    self.tell(await wait.step(lambda count=count: self.count >= count, timeout=seconds))
                case ("guarded", inner):
                    try:
                        await self.play_later(inner)
                    except Cancelled:
                        self.tell("cancelled")
                case ("shielded", inner):
                    with shield():
                        await self.play_later(inner)
                case ("saga", inner):
                    async with Saga() as saga:
                        saga.undo(self.tell, "undone")
                        await self.play_later(inner)
                case ("count",):
                    self.tell(self.count)
                case _:
                    await super().play_later([statement])


class Talker(TalkingStory):
    @signal
    def add(self, n: int) -> None:
        self.count += n

    @update
    def bump(self, n: int) -> int:
        self.count += n
        return self.count

    @update
    def stumble(self, n: int) -> int:
        self.count += 1000  # half of what it meant to do
        raise LookupError("stumbled")

    @query
    def state(self) -> list[Any]:
        return [self.count, self.lines]

    def end(self, definition: Any) -> Any:
        if len(self.lines) == 7:
            continue_as_new(definition, [("look",)])
        if len(self.lines) == 5:
            raise ValueError("five is enough")
        return self.lines


@workflow(type="program", unchecked=True, signals=[letters], handles_cancel="1000d")
class PlainTalker(Talker):
    def handle(self, program: Any) -> Any:
        self.play(program)
        for branch in self.branches:
            branch.join()
        return self.end(PlainTalker)


@workflow(type="program", unchecked=True, signals=[letters], handles_cancel="1000d")
class AsyncTalker(Talker):
    async def handle(self, program: Any) -> Any:
        await self.play_later(program)
        await asyncio.gather(*self.branches)
        return self.end(AsyncTalker)


class TalkingDrive(Drive):
    """A drive with somebody who talks. `apart` imitates a worker that only takes whole prefixes of history."""

    def __init__(self, definition: Any, program: Any, tape: list[int], *, threaded: bool) -> None:
        self.said_since: list[Any] = []  # by live code, since the last ordinary task
        self.met: set[int] = set()
        self.threaded = threaded
        self.talked = 0
        self.update_tasks = 0
        self.registry = Registry()
        super().__init__(definition, program, tape)

    def play(self) -> None:
        for _ in range(400):
            if self.flow.current.key != self.run or not self.flow.current.is_open:
                return
            tasks = [task for task in self.flow.tasks.values() if task.available_at <= self.now]
            choices: list[Any] = [*tasks, *tasks]
            wake = MACHINE.agenda.next_wake(self.flow)
            if wake is not None and wake < self.now + 10**12:
                choices.append(None)
            if self.talked < 12:
                choices += ["add", "letter", "bump", "stumble", *(["cancel"] if self.talked % 5 == 4 else [])]
            elif not choices:
                choices.append("add" if self.talked % 2 else "letter")  # or it would wait for ever
            choice = choices[next(self.tape) % len(choices)]
            if isinstance(choice, str):
                self.say(choice)
            else:
                self.act(choice)
        raise AssertionError("this never ends")

    def say(self, what: str) -> None:
        self.now += 1
        self.talked += 1
        values = [1 + self.talked % 3]
        named = {"arguments": dumps(values), "values": values}
        match what:
            case "add":
                self.message(SendSignal(name="add", **named))
            case "letter":
                self.message(SendSignal(name="letters", **named))
            case "cancel":
                self.message(Cancel())
            case _:
                self.message(Update(name=what, **named))

    def act(self, task: Task | None) -> None:
        if task is not None and task.state == "ready" and task.kind == "workflow" and next(self.tape) % 2:
            self.now += 1
            self.run_code(task)  # claimed and completed in one
        else:
            super().act(task)

    def run_code(self, task: Task) -> None:
        self.tasks += 1
        lease = Lease(owner="me") if task.state == "ready" else None
        assignment = MACHINE.assign(self.flow, task)
        mine = [entry for entry in self.history if entry.run == self.run]
        live = self.live_code(task)
        fresh = [entry for entry in events_shown(assignment, mine) if entry.sequence not in self.met]
        self.met |= {entry.sequence for entry in fresh}
        first = self.turn(live, fresh, task)
        self.said_since += first.pop("said")
        replay = self.live_run(task)
        cold = self.turn(replay, events_shown(assignment, mine), task)
        assert cold.pop("said") == self.said_since
        assert cold == first
        state = answer_on(live, self.inquiry(assignment))
        assert state == answer_on(replay, self.inquiry(assignment))
        replay.abandon()
        self.complete(task, live, first, lease)
        self.ask(assignment, first["answer"], state)

    def live_code(self, task: Task) -> LiveRun:
        if self.live is not None and (
            next(self.tape) % 11 == 0 or (self.threaded and self.live.consumed != self.live.position)
        ):
            self.live.abandon()
            self.live = None
        if self.live is None:
            self.live = self.live_run(task)
            self.met = set()
            self.said_since = []
        return self.live

    def complete(self, task: Task, live: LiveRun, did: dict[str, Any], lease: Lease | None) -> None:
        attempt = task.attempt if lease is None else task.attempt + 1
        answer = did["answer"]
        commands, handled = ([answer], []) if answer is not None else (did["commands"], did["handled"])
        self.message(
            CompleteWorkflowTask(
                task_id=task.id, owner="me", attempt=attempt, commands=commands, handled_failures=handled, lease=lease
            )
        )
        if answer is None:
            self.said_since = []
            return
        self.update_tasks += 1
        if isinstance(answer, FailUpdate):
            live.abandon()
            self.live = None

    def live_run(self, task: Task) -> LiveRun:
        return LiveRun(
            MACHINE,
            MACHINE.assign(self.flow, task),
            self.definition.main,
            Exceptions(),
            self.definition.fingerprint,
            None,
            REACTIONS,
            self.definition.handlers,
        )

    def turn(self, live_run: LiveRun, events: list[Recorded], task: Task) -> dict[str, Any]:  # type: ignore[override]
        said.clear()
        live_run.assignment = MACHINE.assign(self.flow, task)
        live_run.resume(events, self.flow.cursor)
        while live_run.locals and live_run.block is None and not live_run.answer:
            self.settle(live_run)
        assert live_run.block is None, live_run.block
        answers, live_run.answer = live_run.answer, []
        commands, handled = ([], []) if answers else live_run.take_commands()
        return {
            "said": list(said),
            "answer": _plainly(answers[-1]) if answers else None,
            "commands": [plain(command) for command in commands],
            "handled": [id for id in map(_failure_id, handled) if self.is_news(id)],
            "step": live_run.step,
            "now": live_run.now,
            "length": live_run.length,
        }

    def ask(self, assignment: WorkflowAssignment, answer: Any, state: Any) -> None:
        """A query replays what is committed, and sees what the live code holds.

        What code did in the task of an update is recorded with the next ordinary task; until then only the update shows.
        """
        history = [entry for entry in self.history if entry.run == self.run]
        cursor = self.flow.cursor if self.flow.current.key == self.run else 0
        found = answer_from(MACHINE, self.registry, self.definition, self.inquiry(assignment, cursor), history)
        assert isinstance(found, bytes), found
        if answer is None:
            assert loads(found) == loads(state)
        elif isinstance(answer, CompleteUpdate):
            assert loads(found)[0] == loads(state)[0]

    def inquiry(self, assignment: WorkflowAssignment, cursor: int = 0) -> Inquiry:
        return Inquiry(
            kind="query",
            namespace="default",
            workflow_id="w",
            run_id=assignment.run_id,
            run_key=assignment.run_key,
            run_number=assignment.run_number,
            workflow_type="program",
            cursor=cursor,
            name="state",
            arguments=None,
            at=self.now,
        )


def _plainly(answer: Any) -> Any:
    """Without what names files and lines."""
    if isinstance(answer, FailUpdate):
        return FailUpdate(update_id=answer.update_id, message=answer.message)
    return answer


ENDS = {"WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowContinuedAsNew"}


@pytest.mark.contract("UPD-04")
@pytest.mark.parametrize(
    ("definition", "threaded"),
    rotating(product([PlainTalker, AsyncTalker], [False, True]), 2),
    ids=lambda value: getattr(value, "__name__", "on a thread" if value else "inline"),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs, tape=tapes)
def test_a_cold_replay_of_every_prefix_issues_the_commands_of_the_live_code(
    definition: Any, threaded: bool, program: Any, tape: list[int]
) -> None:
    drive = TalkingDrive(definition, program, tape, threaded=threaded)
    try:
        drive.play()
        assert ENDS & {entry.type for entry in drive.history if entry.run == drive.run}
    finally:
        if drive.live is not None:
            drive.live.abandon()


def test_the_drive_gets_everywhere() -> None:
    """Held intake, tasks apart, satisfied, timed out, cancelled: the law above is about all of them."""
    kinds: set[str] = set()
    updates = 0
    for seed in range(60):
        program = [("hear", 1), ("until", (3, 3)), ("guarded", [("act", "good"), ("hear", None)]), ("count",)]
        drive = TalkingDrive(PlainTalker, program, [seed, 3, 5, 7 * seed, 2, 1, 0, 4 + seed], threaded=False)
        drive.play()
        kinds |= {entry.type for entry in drive.history}
        updates += drive.update_tasks
    assert updates > 20
    assert {
        "SignalApplied",
        "ConditionWaitSatisfied",
        "ConditionWaitTimedOut",
        "UpdateApplied",
        "UpdateCompleted",
        "UpdateRejected",
        "CancelRequested",
        "TimerFired",
        "TimerCancelled",
    } <= kinds


@workflow(type="program", unchecked=True)
class Waiting:
    @update
    def told(self, n: int) -> int:
        return n

    @query
    def state(self) -> list[Any]:
        return [0]

    def handle(self, program: Any) -> None:
        wait(lambda: False, key="never")


@pytest.mark.contract("RESUME-15")
@pytest.mark.parametrize("named", [0, 1, 2])
def test_a_task_is_for_the_update_that_it_names_whatever_history_has_first(named: int) -> None:
    drive = TalkingDrive(Waiting, [], [0], threaded=False)
    drive.act(next(iter(drive.flow.tasks.values())))
    while drive.flow.running_task is not None:
        drive.act(drive.flow.tasks[drive.flow.running_task])
    for n in (5, 6, 7):
        drive.message(Update(name="told", arguments=dumps([n]), values=[n]))
    accepted = [entry for entry in drive.history if entry.type == "UpdateAccepted"]
    (task,) = drive.flow.tasks.values()
    update_id: str = accepted[named].event.update_id  # type: ignore[attr-defined]
    asked = replace(
        task, history_limit=accepted[-1].sequence, resume=replace(task.resume, workflow_update_id=update_id)
    )
    live_run = drive.live_run(task)
    live_run.assignment = replace(live_run.assignment, task=asked)
    live_run.resume(drive.history, drive.flow.cursor)
    answer: Any
    (answer,) = live_run.answer
    assert (answer.update_id, loads(answer.result)) == (update_id, 5 + named)
    live_run.abandon()
    assert drive.live is not None
    drive.live.abandon()


@workflow(type="program", unchecked=True)
class Hurried(Waiting):
    def handle(self, program: Any) -> None:
        continue_as_new(Hurried, program)


@pytest.mark.contract("UPD-04")
def test_code_that_ends_before_a_recorded_update_is_blocked() -> None:
    """Its effect would be lost: the caller has the answer, and what continues knows nothing of it."""
    drive = TalkingDrive(Waiting, [], [0], threaded=False)
    drive.message(Update(name="told", arguments=dumps([5]), values=[5]))
    while (task := next(iter(drive.flow.tasks.values()))).resume.workflow_update_id is not None:
        drive.act(task)
    assert [entry.type for entry in drive.history][-2:] == ["UpdateApplied", "UpdateCompleted"]
    assert drive.live is not None
    drive.live.abandon()
    (task,) = drive.flow.tasks.values()
    drive.definition = definition_of(Hurried)
    hurried = drive.live_run(task)
    hurried.resume(drive.history, drive.flow.cursor)
    assert hurried.block is not None
    assert (hurried.block.reason, hurried.block.message) == (
        "history_shape_mismatch",
        "history has update 'told', which the code does not take before it ends",
    )
    hurried.abandon()


def _failure_id(handled: Handled) -> str:
    return handled if isinstance(handled, str) else handled.failure_id
