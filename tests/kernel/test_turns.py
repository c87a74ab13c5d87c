"""Messages that share a turn: they come to what they come to one by one, and only what is written is less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.kernel.command import Command
from backstay.kernel.decision import CommandRecord, Decision
from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import CompleteActivity, ScheduleActivity
from backstay.kernel.features.cancel import Terminate
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.lease import Claim, Offer
from backstay.kernel.features.pause import Pause
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.signal import DeliverSignal
from backstay.kernel.features.update import Update
from backstay.kernel.features.workflow_task import CompleteWorkflowTask, FailWorkflowTask
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Instance
from backstay.kernel.task import Block, Lease
from backstay.kernel.turn import Turn

from .deciding import Deployed, Ids, match
from .given import MACHINE, T0, started
from .test_laws import LIMITS, TALK, WILD, Act, Story, acts


class Counted(Ids):
    """Decisions are counted apart, so that fewer of them leave all other ids as they are."""

    def serial(self) -> int:
        self.serials = getattr(self, "serials", 0) + 1
        return self.serials


class Shared(Story):
    """A story told twice: message by message, and with several messages to a turn."""

    def __init__(self, cuts: int) -> None:
        super().__init__()
        self.flow.ids = Counted()
        self.flow.state = Instance(self.flow.ids.key(0), "default", "order-1")
        self.cuts = cuts
        self.ids = Counted()
        self.together = Instance(self.ids.key(0), "default", "order-1")
        self.machine = Machine(limits=LIMITS)
        self.turn: Turn | None = None
        self.events: list[Recorded] = []
        self.commands: list[CommandRecord] = []
        self.decisions = 0

    def decide(self, message: Message, act: Act) -> Decision | Refused:
        outcome = super().decide(message, act)
        other = self.take(message, act)
        if isinstance(outcome, Refused):
            assert isinstance(other, Refused), f"refused as {outcome.reason} only on its own"
            assert other.reason == outcome.reason
        elif isinstance(message, Offer):
            assert (other is None) == (outcome.reply is None), "the reply is a decision, of which there are fewer here"
        else:
            assert other == outcome.reply
        self.cuts = (self.cuts >> 1) | ((self.cuts & 1) << 40)
        if self.cuts & 1 or (self.turn is not None and self.turn.closed):
            self.seal()
        return outcome

    def take(self, message: Message, act: Act) -> Any:
        turn = self.turn or self.machine.begin(self.together, self.ids, Deployed(self.flow.deployed))
        try:
            reply = self.machine.decide(turn, message, self.flow.now)
        except Refused as refusal:
            return refusal
        match(self.machine, turn, self.taker(act))
        if self.turn is None and not self.machine.idle(turn):
            self.turn = turn
        return reply

    def seal(self) -> None:
        if self.turn is not None:
            decision = self.machine.seal(self.turn)
            self.turn = None
            self.decisions += 1
            self.events += decision.events
            self.commands += decision.commands

    def compare(self) -> None:
        self.seal()
        one, other = self.flow.state, self.together
        decided = [entry for decision in self.flow.decisions for entry in decision.events]
        assert self.events == decided
        assert self.commands == self.flow.commands
        assert other.tasks == one.tasks
        assert (other.cursor, other.running_task, other.buffered_events) == (
            one.cursor,
            one.running_task,
            one.buffered_events,
        )
        assert self.machine.agenda.next_wake(other) == self.machine.agenda.next_wake(one)
        assert self.machine.expect(other) == self.machine.expect(one)


@settings(max_examples=60, deadline=None)
@given(st.one_of(acts([verb for verb in WILD if verb != "lose"]), acts(TALK)), st.integers(0, 2**41 - 1))
def test_messages_that_share_a_turn_come_to_the_same_as_one_by_one(story_of: list[Act], cuts: int) -> None:
    story = Shared(cuts)
    for act in story_of:
        story.live(act)
    story.compare()


# -- code that runs before its turn is sealed

HERE = Lease(owner="engine-1/worker")


def begun() -> tuple[Instance, Turn]:
    """An instance whose code runs here, in the turn that started it."""
    ids = Ids()
    flow = Instance(ids.key(0), "default", "order-1")
    turn = MACHINE.begin(flow, ids)
    MACHINE.decide(turn, started(), T0)
    return flow, turn


def ran(turn: Turn, *commands: Command) -> None:
    assert turn.due_task is not None
    message = CompleteWorkflowTask(
        task_id=turn.due_task.id, owner=HERE.owner, attempt=1, commands=list(commands), lease=HERE
    )
    MACHINE.decide(turn, message, T0)


def due(turn: Turn) -> str | None:
    return None if turn.due_task is None else turn.due_task.id


def kinds(turn: Turn) -> list[str]:
    return [type(entry.event).__name__ for entry in turn.events]


def test_code_that_ran_before_the_commit_leaves_no_task() -> None:
    flow, turn = begun()
    assert (due(turn), flow.tasks) == ("RUN1-w2", {})
    ran(turn, ScheduleActivity(activity_type="charge", arguments=b""))
    decision = MACHINE.seal(turn)
    assert [change.task_id for change in decision.tasks] == ["RUN1-a1.1"]
    assert kinds(turn)[-1] == "ActivityScheduled"
    assert turn.events[-1].context.task_id == "RUN1-w2"
    assert (flow.cursor, decision.instance.expects) == (2, 1)


def test_several_wakes_and_runs_of_the_code_share_a_turn() -> None:
    flow, turn = begun()
    ran(turn, ScheduleActivity(activity_type="charge", arguments=b""))
    assert turn.due_task is None
    MACHINE.decide(turn, Claim(task_id="RUN1-a1.1", lease=HERE), T0)
    done = CompleteActivity(run_id="RUN1", step=1, attempt=1, owner=HERE.owner, result=b"r")
    MACHINE.decide(turn, done, T0)
    assert due(turn) == "RUN1-w5"
    ran(turn, CompleteWorkflow(result=b"r"))
    decision = MACHINE.seal(turn)
    assert not any(change.task or change.stored for change in decision.tasks), "nothing touches the disk"
    assert kinds(turn)[-4:] == ["ActivityScheduled", "ActivityStarted", "ActivityCompleted", "WorkflowCompleted"]
    assert decision.ended is not None
    assert flow.tasks == {}


def created(turn: Turn) -> None:
    MACHINE.create_task(turn)
    assert list(turn.ready) == ["RUN1-w2"]


def claimed(turn: Turn) -> None:
    MACHINE.decide(turn, Claim(task_id="RUN1-w2", lease=HERE), T0)


def failed(turn: Turn) -> None:
    block = Block(message="no such code")
    MACHINE.decide(turn, FailWorkflowTask(task_id="RUN1-w2", owner=HERE.owner, attempt=1, block=block, lease=HERE), T0)


def reconciled(turn: Turn) -> None:
    MACHINE.decide(turn, Reconcile(incarnation="engine-1"), T0)


@pytest.mark.parametrize(
    ("what", "state"), [(created, "ready"), (claimed, "leased"), (failed, "failed"), (reconciled, "ready")]
)
def test_a_task_whose_code_did_not_run_gets_a_row(what: Callable[[Turn], None], state: str) -> None:
    flow, turn = begun()
    what(turn)
    assert turn.due_task is None
    assert [(task.id, task.state, task.repair_count) for task in flow.tasks.values()] == [
        ("RUN1-w2", state, 1 if state == "failed" else 0)
    ]
    assert MACHINE.seal(turn).instance.expects == 1


def test_a_completion_that_is_refused_leaves_its_task_due() -> None:
    flow, turn = begun()
    with pytest.raises(Refused, match="terminal"):
        ran(turn, CompleteWorkflow(result=b"r"), CompleteWorkflow(result=b"r"))
    assert (due(turn), flow.tasks) == ("RUN1-w2", {})


def test_the_end_of_a_run_takes_its_due_task_away() -> None:
    flow, turn = begun()
    MACHINE.decide(turn, Terminate(), T0)
    assert (turn.due_task, flow.tasks) == (None, {})
    assert MACHINE.seal(turn).ended is not None


def test_the_task_of_an_update_goes_ahead_of_code_that_is_due() -> None:
    flow, turn = begun()
    MACHINE.decide(turn, Update(name="add"), T0)
    assert turn.due_task is None
    (task,) = flow.tasks.values()
    assert task.resume.workflow_update_id is not None


def test_code_of_a_paused_run_is_not_due_here() -> None:
    flow, turn = begun()
    MACHINE.decide(turn, Pause(), T0)
    ran(turn)
    MACHINE.decide(turn, DeliverSignal(name="go"), T0)
    assert turn.due_task is None
    assert [task.state for task in flow.tasks.values()] == ["ready"]
