"""The law of replay, on random programs under random orders of events.

Live code and a cold replay of the same prefix of history must ask for the same things, say the same things, see the same
time, and end the same way: after every task of every run. The live runs are driven by hand on the kernel alone, so that the
order in which activities end, timers fire and leases overlap with them is the test's to choose.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import cycle
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backstay import (
    activity,
    continue_as_new,
    info,
    logger,
    now,
    patched,
    rng,
    side_effect,
    sleep,
    spawn,
    upsert_memo,
    version,
    workflow,
)
from backstay.codec.exceptions import Exceptions
from backstay.codec.values import dumps
from backstay.engine.core.world import Minted
from backstay.kernel.command import Command
from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure, Handled
from backstay.kernel.feature import Thrown, Value
from backstay.kernel.features.activity import CompleteActivity, FailActivity
from backstay.kernel.features.close import FailWorkflow
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.lease import Claim
from backstay.kernel.features.local_activity import LocalAttempt, RecordLocalActivity
from backstay.kernel.features.start import Start
from backstay.kernel.features.workflow_task import CompleteWorkflowTask
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message
from backstay.kernel.state import Instance
from backstay.kernel.task import Lease, Task
from backstay.kernel.values import SECOND
from backstay.sdk.author.workflow import definition_of
from backstay.sdk.replay.live_run import LiveRun

from ..kernel.deciding import decide

MACHINE = Machine()
LOST = Failure(message="lost", exception_type="LookupError", exception_class="builtins:LookupError")

# -- programs: a body is a list of statements, and statements may hold bodies


@activity
def good(n: int) -> int:
    return n


@activity
def bad(n: int) -> int:
    raise LookupError("lost")


@activity(retries=1, backoff=1)
def moody(n: int) -> int:
    return n


@activity(local=True)
def near(n: int) -> int:
    return n


@activity(local=True)
def near_bad(n: int) -> int:
    raise LookupError("lost")


ACTIVITIES = {"good": good, "bad": bad, "moody": moody, "near": near, "near_bad": near_bad}

simple = st.one_of(
    st.tuples(st.just("act"), st.sampled_from(["good", "good", "moody", "near"])),
    st.tuples(st.just("sleep"), st.sampled_from([0, 1, 3])),
    st.just(("effect",)),
    st.tuples(st.just("version"), st.sampled_from("abc")),
    st.just(("memo",)),
    st.tuples(st.just("risky"), st.sampled_from(["bad", "near_bad"])),
    st.just(("look",)),
)


def bodies(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        st.tuples(st.just("together"), st.lists(body, min_size=2, max_size=3)),
        st.tuples(st.just("spawn"), body),
        st.tuples(st.just("catch"), st.tuples(st.sampled_from(["bad", "near_bad"]), body)),
        st.tuples(st.just("within"), st.tuples(st.sampled_from([0.5, 2]), body)),
        st.tuples(st.just("blocking"), st.lists(simple, min_size=1, max_size=2)),
    )


programs = st.lists(st.recursive(simple, bodies, max_leaves=12), min_size=1, max_size=5)
tapes = st.lists(st.integers(0, 997), min_size=1, max_size=40)

said: list[Any] = []
"""What the code that is running now has logged."""


class Story:
    """What one run's code has seen, in order."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.branches: list[Any] = []

    def tell(self, what: Any) -> None:
        self.lines.append([what, now().timestamp(), rng().random(), info().history_length])
        if logger().isEnabledFor(logging.CRITICAL):
            said.append(what)

    def plainly(self, statement: Any) -> None:
        """The statements that are the same in both kinds of code."""
        match statement:
            case ("effect",):
                self.tell(side_effect(lambda: len(self.lines)))
            case ("version", change):
                self.tell([version(change, max=2), patched("p" + change)])
            case ("memo",):
                upsert_memo(seen=len(self.lines))
            case ("look",):
                self.tell("look")
            case _:
                raise AssertionError(statement)

    def play(self, body: Any) -> None:
        for statement in body:
            match statement:
                case ("act", name):
                    self.tell(ACTIVITIES[name](len(self.lines)))
                case ("risky", name):
                    self.risk(name)
                case ("sleep", seconds):
                    sleep(seconds)
                    self.tell("woke")
                case ("together", bodies):
                    for branch in [spawn(self.play, one) for one in bodies]:
                        branch.join()
                case ("spawn", inner):
                    self.branches.append(spawn(self.play, inner))
                case ("catch", (name, inner)):
                    try:
                        ACTIVITIES[name](0)
                    except LookupError:
                        self.play(inner)
                case ("within", (_, inner)) | ("blocking", inner):
                    self.play(inner)
                case _:
                    self.plainly(statement)

    def risk(self, name: str) -> None:
        try:
            ACTIVITIES[name](0)
        except LookupError as error:
            self.tell(str(error))

    async def play_later(self, body: Any) -> None:
        for statement in body:
            match statement:
                case ("act", name):
                    self.tell(await ACTIVITIES[name].step(len(self.lines)))
                case ("risky", name):
                    try:
                        await ACTIVITIES[name].step(0)
                    except LookupError as error:
                        self.tell(str(error))
                case ("sleep", seconds):
                    await sleep.step(seconds)
                    self.tell("woke")
                case ("together", bodies):
                    await asyncio.gather(*(self.play_later(one) for one in bodies))
                case ("spawn", inner):
                    self.branches.append(asyncio.create_task(self.play_later(inner)))
                case ("catch", (name, inner)):
                    try:
                        await ACTIVITIES[name].step(0)
                    except LookupError:
                        await self.play_later(inner)
                case ("within", (seconds, inner)):
                    try:
                        async with asyncio.timeout(seconds):
                            await self.play_later(inner)
                    except TimeoutError:
                        self.tell("too late")
                case ("blocking", inner):
                    self.play(inner)
                case _:
                    self.plainly(statement)


@workflow(type="program", unchecked=True)
def in_plain_code(program: Any) -> Any:
    story = Story()
    story.play(program)
    for branch in story.branches:
        branch.join()
    if len(story.lines) == 7:
        continue_as_new(in_plain_code, [("look",)])
    if len(story.lines) == 5:
        raise ValueError("five is enough")
    return story.lines


@workflow(type="program", unchecked=True)
async def in_async_code(program: Any) -> Any:
    story = Story()
    await story.play_later(program)
    await asyncio.gather(*story.branches)
    if len(story.lines) == 7:
        continue_as_new(in_async_code, [("look",)])
    if len(story.lines) == 5:
        raise ValueError("five is enough")
    return story.lines


# -- the world around them


class Drive:
    """One instance on the bare kernel. A tape of numbers says what happens next whenever several things could."""

    def __init__(self, definition: Any, program: Any, tape: list[int]) -> None:
        self.definition = definition_of(definition)
        self.tape = cycle(tape)
        self.now = 1_800_000_000 * SECOND
        self.ids = Minted(lambda: self.now, Random(0))
        self.flow = Instance(self.ids.key(0), "default", "w")
        self.history: list[Recorded] = []
        self.live: LiveRun | None = None
        self.tasks = 0
        self.message(
            Start(
                namespace="default",
                workflow_id="w",
                workflow_type="program",
                arguments=self.definition.signature.pack([program], {}),
                definition=self.definition.snapshot,
            )
        )
        self.run = self.flow.current.key

    def message(self, message: Message) -> None:
        decision = decide(MACHINE, self.flow, message, self.now, self.ids)
        self.history += decision.events

    def play(self) -> None:
        """Until the first run of the instance is closed."""
        for _ in range(3000):
            if self.flow.current.key != self.run or not self.flow.current.is_open:
                return
            actions = [task for task in self.flow.tasks.values() if task.available_at <= self.now]
            choices: list[Task | None] = list(actions)
            if MACHINE.agenda.next_wake(self.flow) is not None:
                choices.append(None)
            assert choices, "a run that waits for nothing"
            self.act(choices[next(self.tape) % len(choices)])
        raise AssertionError("this never ends")

    def act(self, task: Task | None) -> None:
        self.now += 1
        if task is None:
            self.now = max(self.now, MACHINE.agenda.next_wake(self.flow) or 0)
            self.message(Due())
        elif task.state == "ready":
            self.message(Claim(task_id=task.id, lease=Lease(owner="me")))
        elif task.kind == "activity":
            self.end_activity(task)
        else:
            self.run_code(task)

    def end_activity(self, task: Task) -> None:
        assert task.step is not None
        who = {"step": task.step, "attempt": task.attempt, "owner": "me", "run_id": self.flow.current.run_id}
        if task.type == "bad" or (task.type == "moody" and task.attempt == 1):
            self.message(FailActivity(failure=LOST, **who))
        else:
            self.message(CompleteActivity(result=dumps(task.step), **who))

    def run_code(self, task: Task) -> None:
        """Both the code that stayed and a cold replay do this task; they must agree in everything."""
        self.tasks += 1
        assert task.seen is not None
        seen = [entry for entry in self.history if entry.sequence <= task.seen and entry.run == self.run]
        if self.live is None:
            self.live = self.live_run(task)
        live = self.turn(self.live, [entry for entry in seen if entry.sequence > self.live.position], task)
        replay = self.live_run(task)
        cold = self.turn(replay, seen, task)
        replay.abandon()
        for mine, other in zip(cold, live, strict=True):
            assert mine == other
        commands, handled = live[0], live[1]
        self.message(
            CompleteWorkflowTask(
                task_id=task.id, owner="me", attempt=task.attempt, commands=commands, handled_failures=handled
            )
        )

    def live_run(self, task: Task) -> LiveRun:
        return LiveRun(
            MACHINE, MACHINE.assign(self.flow, task), self.definition.main, Exceptions(), self.definition.fingerprint
        )

    def turn(self, live_run: LiveRun, events: list[Recorded], task: Task) -> tuple[Any, ...]:
        said.clear()
        live_run.assignment = MACHINE.assign(self.flow, task)
        live_run.resume(events, self.flow.cursor)
        while live_run.locals and live_run.block is None:
            self.settle(live_run)
        assert live_run.block is None, live_run.block
        commands, handled = live_run.take_commands()
        news = [id for id in map(_failure_id, handled) if self.is_news(id)]
        return [plain(command) for command in commands], news, list(said), live_run.step, live_run.now, live_run.length

    def is_news(self, failure_id: str) -> bool:
        """Whether history does not say yet that this failure was handled."""
        mine = [entry for entry in self.history if getattr(entry.event, "failure_id", None) == failure_id]
        return not any(entry.type == "FailureHandled" for entry in mine)

    @staticmethod
    def settle(live_run: LiveRun) -> None:
        step = min(live_run.locals)
        call = live_run.locals[step]
        failed = call.definition.type == "near_bad"
        record = RecordLocalActivity(
            sequence=step,
            activity_type=call.definition.type,
            outcome="failed" if failed else "completed",
            attempts=[LocalAttempt(failure=LOST if failed else None)],
            arguments=call.packed(),
            result=None if failed else dumps(step),
        )
        if failed:
            live_run.settle_local(step, record, Thrown(LOST, live_run.delivered.add_local(step), "activity"))
        else:
            live_run.settle_local(step, record, Value(dumps(step)))


def plain(command: Command) -> Command:
    """Without what names files and lines: the two stand on different stacks."""
    if isinstance(command, FailWorkflow):
        return replace(command, exception=None)
    return command


@pytest.mark.parametrize("definition", [in_plain_code, in_async_code], ids=["def", "async def"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs, tape=tapes)
def test_a_cold_replay_of_every_prefix_does_what_the_live_code_did(
    definition: Any, program: Any, tape: list[int]
) -> None:
    drive = Drive(definition, program, tape)
    try:
        drive.play()
        assert drive.history[-1].type in (
            "WorkflowCompleted",
            "WorkflowFailed",
            "WorkflowStarted",  # it went on as a new run
        )
    finally:
        if drive.live is not None:
            drive.live.abandon()


@pytest.mark.parametrize("definition", [in_plain_code, in_async_code], ids=["def", "async def"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs, tape=tapes)
def test_a_finished_history_replays_to_the_same_end(definition: Any, program: Any, tape: list[int]) -> None:
    drive = Drive(definition, program, tape)
    drive.play()
    live = drive.live
    assert live is not None
    history = [entry for entry in drive.history if entry.run == drive.run]
    again = LiveRun(MACHINE, live.assignment, drive.definition.main, Exceptions(), drive.definition.fingerprint)
    again.resume(history, len(history))
    assert again.block is None
    assert again.closing is not None
    assert live.closing is not None
    assert plain(again.closing) == plain(live.closing)
    assert again.commands == [], "everything it asks for is in history"
    live.abandon()
    again.abandon()


def _failure_id(handled: Handled) -> str:
    return handled if isinstance(handled, str) else handled.failure_id
