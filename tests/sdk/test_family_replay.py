"""Replay laws with children, groups and races, under every order in which their ends arrive, ties included.

The live runs are driven by hand on the kernel, as in `test_replay_laws`; a child is whatever the tape says that it reports.
"""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backstay import child, gather, race, sleep, workflow
from backstay.codec.exceptions import Exceptions
from backstay.codec.values import dumps, loads
from backstay.kernel.event import Recorded
from backstay.kernel.features.child import Children
from backstay.kernel.features.child.messages import ChildReport, Close
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.lease import Claim
from backstay.kernel.features.workflow_task import query_refusal
from backstay.kernel.send import Send
from backstay.kernel.task import Lease, Task
from backstay.sdk.author.workflow import definition_of
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.reactions import REACTIONS
from backstay.sdk.replay.recorded_steps import TOPOLOGY

from .test_replay_laws import LOST, MACHINE, Drive, bad, good, moody, plain, tapes


@workflow(type="kid")
def kid(n: int) -> int:
    return n


STEPS = {
    "good": lambda: good.step(1),
    "bad": lambda: bad.step(1),
    "moody": lambda: moody.step(1),
    "kid": lambda: kid.step(1),
    "sleep": lambda: sleep.step(1),
}
leaf = st.sampled_from(["good", "good", "moody", "bad", "kid", "kid", "kid", "sleep"])
tree = st.recursive(leaf, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=6)
limits = st.sampled_from([None, None, 1, 2])
statements = st.one_of(
    st.tuples(st.just("gather"), st.lists(tree, min_size=1, max_size=4), limits),
    st.tuples(st.just("race"), st.lists(leaf, min_size=1, max_size=3)),
    st.tuples(st.just("start"), st.integers(1, 3)),
    st.just(("join",)),
    st.just(("call",)),
    st.just(("tell",)),
    st.tuples(st.just("within"), st.lists(leaf, min_size=1, max_size=3), limits),
)
programs = st.lists(statements, min_size=1, max_size=5)


def built(found: Any, limit: int | None = None) -> Any:
    if isinstance(found, str):
        return STEPS[found]()
    return gather.step([built(one) for one in found], limit=limit)


def shape(found: Any) -> Any:
    """Steps end with their own number; timers with nothing."""
    if isinstance(found, list):
        return [shape(one) for one in found]
    return found if found is None else "value"


class Plain:
    """What both kinds of code do with a statement, and what they saw."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.handles: list[Any] = []

    def saw(self, value: Any) -> None:
        self.lines.append(value)

    def failed(self, error: BaseException) -> None:
        self.lines.append(f"{type(error).__name__}: {error}")


@workflow(type="program", unchecked=True)
def in_plain_code(program: Any) -> Any:
    story = Plain()
    for statement in program:
        try:
            match statement:
                case ["gather" | "within", found, limit]:
                    story.saw(built(found, limit).run())
                case ["race", found]:
                    story.saw(race([STEPS[one]() for one in found]))
                case ["start", count]:
                    story.handles += [child.start(kid, n) for n in range(count)]
                case ["join"]:
                    story.saw([handle.join() for handle in story.handles])
                case ["call"]:
                    story.saw(kid(1))
                case _:
                    for handle in story.handles:
                        handle.signal("go")
        except (LookupError, RuntimeError) as error:
            story.failed(error)
    return story.lines


@workflow(type="program", unchecked=True)
async def in_async_code(program: Any) -> Any:
    story = Plain()
    for statement in program:
        try:
            match statement:
                case ["gather", found, limit]:
                    story.saw(await built(found, limit))
                case ["within", found, limit]:
                    async with asyncio.timeout(0.5):
                        story.saw(await built(found, limit))
                case ["race", found]:
                    story.saw(await race.step([STEPS[one]() for one in found]))
                case ["start", count]:
                    story.handles += [child.start(kid, n) for n in range(count)]
                case ["join"]:
                    story.saw(await asyncio.gather(*(waited(handle) for handle in story.handles)))
                case ["call"]:
                    story.saw(await kid.step(1))
                case _:
                    for handle in story.handles:
                        handle.signal("go")
        except (LookupError, RuntimeError, TimeoutError) as error:
            story.failed(error)
    return story.lines


async def waited(handle: Any) -> Any:
    return await handle


class Parent(Drive):
    """A run whose children report when and what the tape says. Time stands still between some events."""

    def play(self) -> None:
        for _ in range(3000):
            if not self.flow.current.is_open:
                return
            tasks = [task for task in self.flow.tasks.values() if task.available_at <= self.now]
            choices: list[Any] = [*tasks, *self.flow.current.part(Children).open.values()]
            if MACHINE.agenda.next_wake(self.flow) is not None:
                choices.append(None)
            assert choices, "a run that waits for nothing"
            chosen = choices[next(self.tape) % len(choices)]
            self.now += next(self.tape) % 2
            if chosen is None or isinstance(chosen, Task):
                self.act(chosen)
            else:
                self.report(chosen)
        raise AssertionError("this never ends")

    def act(self, task: Task | None) -> None:
        if task is None:
            self.now = max(self.now, MACHINE.agenda.next_wake(self.flow) or 0)
            self.message(Due())
        elif task.state == "ready":
            self.message(Claim(task_id=task.id, lease=Lease(owner="me")))
        elif task.kind == "activity":
            self.end_activity(task)
        else:
            self.run_code(task)

    def report(self, kid: Any) -> None:
        step = kid.scheduled.sequence
        how = ["completed", "completed", "completed", "failed", "cancelled", "continued"][next(self.tape) % 6]
        if how == "continued" and kid.run_number == 3:
            how = "completed"
        close = Close(status=how, closed_reason=how, closed_at=self.now)
        if how == "completed":
            close = Close(status=how, closed_reason=how, closed_at=self.now, output=dumps(step))
        elif how == "failed":
            close = Close(status=how, closed_reason=how, closed_at=self.now, message="lost", exception=LOST)
        elif how == "cancelled":
            close = Close(status=how, closed_reason=how, closed_at=self.now, failure_category=how, message="stopped")
        again = how == "continued"
        parcel = ChildReport(
            child_call_id=kid.scheduled.child_call_id,
            parent_run_id=self.flow.current.run_id,
            run_id=f"{kid.scheduled.child_workflow_run_id}{kid.run_number}",
            run_number=kid.run_number + again,
            close=None if again else close,
        )
        self.message(Deliver(send=Send(self.ids.key(0), 1, "default", "w", parcel)))

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


@pytest.mark.contract("BARRIER-06", "BARRIER-08", "REPLAY-01")
@pytest.mark.parametrize("definition", [in_plain_code, in_async_code], ids=["def", "async def"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs, tape=tapes)
def test_a_cold_replay_of_every_prefix_does_what_the_live_code_did(
    definition: Any, program: Any, tape: list[int]
) -> None:
    drive = Parent(definition, program, tape)
    try:
        drive.play()
    finally:
        if drive.live is not None:
            drive.live.abandon()


@pytest.mark.contract("CHILD-07", "BARRIER-07")
@pytest.mark.parametrize("definition", [in_plain_code, in_async_code], ids=["def", "async def"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs, tape=tapes)
def test_a_finished_history_replays_to_the_same_end(definition: Any, program: Any, tape: list[int]) -> None:
    drive = Parent(definition, program, tape)
    drive.play()
    live = drive.live
    assert live is not None
    again = LiveRun(
        MACHINE,
        live.assignment,
        drive.definition.main,
        Exceptions(),
        drive.definition.fingerprint,
        None,
        REACTIONS,
        drive.definition.handlers,
    )
    again.resume(drive.history, len(drive.history))
    assert again.block is None
    assert live.closing is not None
    assert again.closing is not None
    assert plain(again.closing) == plain(live.closing)
    assert again.commands == [], "everything it asks for is in history"
    live.abandon()
    again.abandon()


# -- the rule of a barrier, by every order of arrival


@workflow(type="program", unchecked=True)
def barrier(program: Any) -> Any:
    try:
        return built(program).run()
    except LookupError as error:
        return str(error)


class Ordered(Parent):
    """Members end in a given order, each well or badly, some of them at the same moment; then the code runs."""

    def __init__(self, ends: list[tuple[int, bool, int]], definition: Any = barrier) -> None:
        super().__init__(definition, ["kid", ["kid", "kid"]], [0])
        self.act_on_code()
        start = self.now
        for step, ok, moment in ends:
            self.now = start + moment
            self.end(step, ok)

    def act_on_code(self) -> None:
        while True:
            found = [task for task in self.flow.tasks.values() if task.kind == "workflow"]
            if not found:
                return
            self.act(found[0])

    def end(self, step: int, ok: bool) -> None:
        kid = self.flow.current.part(Children).open[step]
        close = Close(status="completed", closed_reason="completed", closed_at=self.now, output=dumps(step))
        if not ok:
            failure = type(LOST)(
                message=f"{step}", exception_type="LookupError", exception_class="builtins:LookupError"
            )
            close = Close(
                status="failed", closed_reason="failed", closed_at=self.now, message=f"{step}", exception=failure
            )
        parcel = ChildReport(
            child_call_id=kid.scheduled.child_call_id,
            parent_run_id=self.flow.current.run_id,
            run_id=kid.run_id,
            run_number=1,
            close=close,
        )
        self.message(Deliver(send=Send(self.ids.key(0), 1, "default", "w", parcel)))


def result(history: list[Recorded]) -> Any:
    return loads(history[-1].event.output, Any)  # type: ignore[attr-defined]


@pytest.mark.contract("BARRIER-03", "BARRIER-04", "BARRIER-06")
@pytest.mark.parametrize("moments", [(0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 2)])
@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_the_rule_holds_under_every_order_of_arrival(order: tuple[int, ...], moments: tuple[int, ...]) -> None:
    for bits in range(8):
        ends = [(step, not bits >> (step - 1) & 1, moment) for step, moment in zip(order, moments, strict=True)]
        drive = Ordered(ends)
        drive.act_on_code()
        failed = [(moment, step) for step, ok, moment in ends if not ok]
        assert result(drive.history) == (str(min(failed)[1]) if failed else [1, [2, 3]])
        assert drive.live is not None
        drive.live.abandon()


@workflow(type="program", unchecked=True)
def goes_on(program: Any) -> Any:
    try:
        return built(program).run()
    except LookupError as error:
        good(1)
        return str(error)


@pytest.mark.contract("BARRIER-06", "BARRIER-08")
def test_a_failure_of_the_same_moment_that_the_code_had_not_seen_does_not_replace_the_one_it_saw() -> None:
    """A clock that was set back lets many events stand at one moment; the later one came behind the code's back."""
    drive = Ordered([(2, False, 0)], goes_on)
    (task,) = drive.flow.tasks.values()
    drive.act(task)  # leased: what it sees is settled
    drive.end(1, ok=False)
    while drive.flow.current.is_open:
        drive.act(next(iter(drive.flow.tasks.values())))  # live code and a cold replay do every task, and agree
    assert result(drive.history) == "2"
    assert drive.live is not None
    drive.live.abandon()


# -- drift


@pytest.mark.contract("BARRIER-13")
@pytest.mark.parametrize(
    ("program", "blocks"),
    [
        (["kid", ["kid", "kid"]], False),
        (["kid", "kid", "kid"], True),
        ([["kid", "kid"], "kid"], True),
        ([["kid", ["kid", "kid"]]], True),
        (["kid", ["kid"]], True),
        (["kid", ["kid", "good"]], True),
        (["kid", ["kid", "kid"], "kid"], True),
    ],
)
def test_another_topology_blocks_replay(program: Any, blocks: bool) -> None:
    drive = Ordered([(1, True, 0)])
    assert drive.live is not None

    @workflow(type="program", unchecked=True)
    def changed(_: Any) -> Any:
        return built(program).run()

    again = LiveRun(
        MACHINE, drive.live.assignment, definition_of(changed).main, Exceptions(), None, None, REACTIONS, None
    )
    again.resume(drive.history, len(drive.history))
    assert (again.block is not None) == blocks
    if again.block is not None:
        assert again.block.reason == "history_shape_mismatch"
        assert again.block.replay_blocked
    again.abandon()
    drive.live.abandon()


def replayed(drive: Parent, history: list[Recorded], definition: Any, *, looking: bool = False) -> LiveRun:
    """Code that is shown this history from its beginning; `looking`: as a query does it."""
    assert drive.live is not None
    live_run = LiveRun(
        MACHINE, drive.live.assignment, definition_of(definition).main, Exceptions(), None, None, REACTIONS, None
    )
    live_run.looking = looking
    live_run.resume(history, len(history))
    return live_run


@pytest.mark.contract("BARRIER-13")
@pytest.mark.parametrize("looking", [False, True])
@pytest.mark.parametrize("stripped", [1, 2, 3])
def test_a_leaf_that_does_not_say_where_it_belongs_blocks_replay(stripped: int, looking: bool) -> None:
    drive = Ordered([(1, True, 0)])

    def without_path(entry: Recorded) -> Recorded:
        event: Any = entry.event
        if getattr(event, "sequence", None) != stripped or not getattr(event, "parallel_group_path", None):
            return entry
        return replace(entry, event=replace(event, parallel_group_path=[]))

    whole = replayed(drive, drive.history, barrier, looking=looking)
    assert whole.block is None
    bare = replayed(drive, [without_path(entry) for entry in drive.history], barrier, looking=looking)
    assert bare.block is not None
    assert (bare.block.reason, bare.block.workflow_sequence) == ("history_shape_mismatch", stripped)
    assert bare.block.expected_history_shape == TOPOLOGY
    assert "ChildWorkflowScheduled" in bare.block.recorded_event_types
    for live_run in (whole, bare, drive.live):
        assert live_run is not None
        live_run.abandon()


@workflow(type="program", unchecked=True)
def child_then_activity(_: Any) -> Any:
    return [kid(1), good(2), kid(3)]


@pytest.mark.contract("CHILD-24")
@pytest.mark.parametrize("looking", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_a_child_that_history_has_no_event_of_blocks_replay(ended: bool, looking: bool) -> None:
    """The child is there and has ended; only the parent's own events say so, and they are gone."""
    drive = Ordered([(1, True, 0)], child_then_activity)
    drive.act_on_code()
    while any(task.kind == "activity" for task in drive.flow.tasks.values()):
        drive.act(next(task for task in drive.flow.tasks.values() if task.kind == "activity"))
    drive.act_on_code()
    if ended:
        drive.end(3, ok=True)
        drive.act_on_code()
        assert result(drive.history) == [1, 2, 3]
    whole = replayed(drive, drive.history, child_then_activity, looking=looking)
    assert whole.block is None
    history = [e for e in drive.history if not (e.type.startswith("Child") and e.event.sequence == 1)]  # type: ignore[attr-defined]
    assert len(history) < len(drive.history)
    blind = replayed(drive, history, child_then_activity, looking=looking)
    assert blind.block is not None, "it must not start the child again, and not wait for ever"
    assert (blind.block.reason, blind.block.workflow_sequence) == ("history_shape_mismatch", 1)
    assert blind.block.recorded_event_types == ["no typed history"]
    refused = query_refusal(blind.block).fields
    assert (refused["query_blocked_reason"], refused["replay_blocked_reason"]) == (
        "workflow_replay_blocked",
        "history_shape_mismatch",
    )
    assert refused["recorded_event_types"] == ["no typed history"]
    assert blind.block.replay_blocked
    for live_run in (whole, blind, drive.live):
        assert live_run is not None
        live_run.abandon()


def test_another_bound_does_not_block_replay() -> None:
    """How many may be in flight is a matter of tuning; history keeps what was asked for."""
    drive = Ordered([(1, True, 0)])
    assert drive.live is not None

    @workflow(type="program", unchecked=True)
    def changed(_: Any) -> Any:
        return gather(kid.step(1), gather.step([kid.step(1), kid.step(1)], limit=1), limit=2)

    again = LiveRun(
        MACHINE, drive.live.assignment, definition_of(changed).main, Exceptions(), None, None, REACTIONS, None
    )
    again.resume(drive.history, len(drive.history))
    assert again.block is None
    again.abandon()
    drive.live.abandon()
