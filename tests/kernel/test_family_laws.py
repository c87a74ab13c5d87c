"""Laws of parents and children: whatever they do, however late, often and out of order what they send arrives.

What a parent records of a child is what became of it; a chain of runs never forks; everything sent has its effect once;
folding the stored history gives the live state at every point; and when all is said, nobody waits for anybody.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backstay.kernel.command import Command
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.cancel import Cancel, Terminate
from backstay.kernel.features.child import CancelChild, Children, SignalChild, StartChildWorkflow
from backstay.kernel.features.child.messages import AskAfterSignals, SignalFromParent, SignalsArrived
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow, WorkflowCompleted
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.fork import Rewind
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.message import Refused
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.values import SECOND, child_call_id

from .given import TALKING
from .stored import refold, snapshot
from .world import Member, World, group

POLICIES = ["abandon", "request_cancel", "terminate"]
RETRIES = [None, None, RetryPolicy(max_attempts=2), RetryPolicy(max_attempts=3, backoff_seconds=[5.0])]
LOST = (SignalFromParent, AskAfterSignals, SignalsArrived)
MOST = 9  # instances in one world
CLOSED = ("ChildRunCompleted", "ChildRunFailed", "ChildRunCancelled", "ChildRunTerminated")
EVENT = {"completed": CLOSED[0], "failed": CLOSED[1], "cancelled": CLOSED[2], "terminated": CLOSED[3]}


class Family:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World()
        self.lost: set[str] = set()  # signals, each of which may have had its sender close before it was asked after
        self.world.start("root", definition=TALKING)
        self.check()

    def step(self) -> None:
        random = self.random
        self.world.now += random.choice([0, 0, SECOND, 6 * SECOND])
        match random.choice(
            ["work"] * 8 + ["deliver"] * 8 + ["again", "due", "due", "stop", "rewind", "ask", "restart", "lose"]
        ):
            case "work":
                self.work()
            case "deliver" if self.world.rows:
                self.deliver(random.choice(self.world.on_their_way()))
            case "again" if self.world.log:
                self.deliver(random.choice(self.world.log))
            case "stop":
                flow = self.anyone()
                flow.when(random.choice([Cancel(), Cancel(), Terminate()]))
            case "rewind":
                self.rewind()
            case "lose":
                self.lose()
            case "ask":
                self.anyone().when(Reconcile(incarnation="e", ask=True))
            case "restart":
                self.anyone().reopen()
            case _:
                self.anyone().when(Due())
        self.check()

    def lose(self) -> None:
        found = [send for send in self.world.on_their_way() if isinstance(send.message, LOST)]
        if found:
            send = self.random.choice(found)
            del self.world.rows[send.key]
            self.lost.add(getattr(send.message, "request_id", ""))

    def rewind(self) -> None:
        flow = self.anyone()
        point = self.random.randrange(2, len(flow.history) + 1)
        history = list(flow.history)
        with suppress(Refused):  # behind the end, or over an open child
            flow.when(
                Rewind(at=f"event:{point}", history=history, from_run_id=flow.run.run_id, routing=flow.run.routing)
            )

    def anyone(self) -> Member:
        return self.random.choice([flow for flow in self.world.flows.values() if flow.state.run is not None])

    def deliver(self, send: Any) -> None:
        try:
            self.world.deliver(send)
        except Refused as refusal:
            if refusal.reason != "workflow_not_found":  # it overtook the start; its row stays
                raise

    def work(self, ending: bool = False) -> None:
        """Code comes to its next wait, or a worker to its end."""
        random = self.random
        flow = self.anyone()
        ready = [task for task in flow.tasks.values() if task.state == "ready" and task.available_at <= self.world.now]
        if not ready:
            return
        task = random.choice(ready)
        if task.kind == "activity":
            flow.begin(task.step or 0)
            flow.finish(task.step or 0) if random.random() < 0.7 else flow.fail(task.step or 0)
            return
        flow.complete(*self.decisions(flow, ending))

    def decisions(self, flow: Member, ending: bool) -> list[Command]:
        random = self.random
        chosen = "end" if ending else random.choice(["call", "group", "signal", "give up", "end", "end", "wait"])
        run = flow.run
        room = len(self.world.flows) < MOST
        match chosen:
            case "call" if room:
                return [self.call() for _ in range(random.choice([1, 1, 2]))]
            case "group" if room:
                size = random.choice([2, 3])
                limit = random.choice([None, 1, 2])
                paths = [[group(run.step + 1, size, index, limit=limit)] for index in range(size)]
                return [self.leaf(path) for path in paths]
            case "signal" if run.part(Children).steps:
                step = random.choice(list(run.part(Children).steps.values()))
                return [
                    SignalChild(child_call_id=child_call_id(run.run_id, step), signal_name="note"),
                    StartTimer(delay_seconds=3),
                ]
            case "give up" if run.part(Children).open:
                return [CancelChild(step=random.choice(list(run.part(Children).open))), StartTimer(delay_seconds=3)]
            case "end":
                ends = [CompleteWorkflow(result=b"%d" % random.randrange(9)), FailWorkflow(message="no")]
                return [random.choice(ends if ending else [*ends, ContinueAsNew()])]
            case _:
                return [StartTimer(delay_seconds=float(random.choice([1, 5])))]

    def call(self, path: Any = ()) -> StartChildWorkflow:
        return StartChildWorkflow(
            workflow_type="ship",
            definition=TALKING,
            parent_close_policy=self.random.choice(POLICIES),
            retry_policy=self.random.choice(RETRIES),
            execution_timeout_seconds=self.random.choice([None, None, 20.0]),
            parallel_group_path=list(path),
        )

    def leaf(self, path: Any) -> Command:
        if self.random.random() < 0.6:
            return self.call(path)
        if self.random.random() < 0.5:
            return ScheduleActivity(activity_type="a", parallel_group_path=path)
        return StartTimer(delay_seconds=4, parallel_group_path=path)

    def finish(self) -> None:
        """From here on everybody comes to an end, and everything arrives."""
        for _ in range(400):
            self.world.now += 2 * SECOND
            for flow in list(self.world.flows.values()):
                if flow.state.run is not None:
                    flow.when(Due())
            self.work(ending=True)
            for send in self.world.on_their_way():
                self.deliver(send)
            if not self.world.rows and not any(flow.tasks or self.waits(flow) for flow in self.world.flows.values()):
                break
        self.check()

    def ask(self) -> None:
        """That a child had closed by itself is no fact of its parent's: after a restart it may be asked once more."""
        for flow in self.world.flows.values():
            if flow.row is not None and flow.row.unanswered:
                flow.when(Reconcile(incarnation="e", ask=True))
        self.world.settle()

    @staticmethod
    def waits(flow: Member) -> bool:
        return flow.state.run is not None and flow.run.is_open and bool(flow.run.agenda or flow.run.part(Children).open)

    # -- what always holds

    def check(self) -> None:
        for flow in self.world.flows.values():
            if flow.row is None:
                continue
            again = refold(flow)
            live, folded = snapshot(flow), snapshot(flow, again)
            assert live == folded
            expected = flow.machine.expect(flow.state)
            assert expected.tasks.keys() == flow.rows.keys()
            anew = flow.machine.expect(again)
            assert anew.tasks == expected.tasks
            if anew.next_wake != expected.next_wake:  # a backoff that is over is announced once more
                assert anew.next_wake is not None
                assert anew.next_wake <= flow.latest
            self.no_fork(flow)

    def no_fork(self, flow: Member) -> None:
        runs = sorted(flow.runs.values(), key=lambda row: row.number)
        assert [row.number for row in runs] == list(range(1, len(runs) + 1))
        for before, after in pairwise(runs):
            assert before.closed_reason is not None
            began: Any = flow.histories[after.key][1].event
            assert before.run_id in (began.continued_from_run_id, began.retry_of_child_workflow_run_id)
            first: Any = flow.histories[runs[0].key][1].event
            assert began.child_call_id == first.child_call_id

    def outcomes(self) -> None:
        for flow in self.world.flows.values():
            for history in flow.histories.values():
                ends: dict[str, Any] = {}
                numbers: dict[str, list[int]] = {}
                for entry in history:
                    event: Any = entry.event
                    if entry.type == "ChildRunStarted":
                        assert event.child_call_id not in ends, "no news after the end"
                        numbers.setdefault(event.child_call_id, []).append(event.child_run_number)
                    elif entry.type in CLOSED:
                        assert event.child_call_id not in ends, "one outcome for one call"
                        ends[event.child_call_id] = event
                        self.same(entry.type, event)
                assert all(found == sorted(set(found)) for found in numbers.values())

    def same(self, kind: str, event: Any) -> None:
        child = self.world.flows.get(event.child_workflow_instance_id)
        if child is None or child.state.run is None:
            assert kind == "ChildRunCancelled", "given up before it was sent"
            return
        (run,) = (run for run in child.runs.values() if run.run_id == event.child_workflow_run_id)
        later: Any = [child.histories[key] for key, row in child.runs.items() if row.number > run.number]
        assert all(any(entry.type == "HistoryInherited" for entry in history) for history in later[:1]), (
            "it was the last one until it was rewound"
        )
        assert (run.number, run.status) == (event.child_run_number, event.child_status)
        assert EVENT[run.status] == kind
        assert run.closed_reason == event.closed_reason
        if kind == "ChildRunCompleted":
            (ended,) = (e.event for e in child.histories[run.key] if isinstance(e.event, WorkflowCompleted))
            assert event.output == ended.output

    def signals_once(self) -> None:
        sent = {send.message.request_id for send in self.world.log if isinstance(send.message, SignalFromParent)}
        for request_id in sent:
            found = [c for flow in self.world.flows.values() for c in flow.commands if c.request_id == request_id]
            assert len(found) == 1 or (request_id in self.lost and not found), "only its sender can make up for a loss"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(10, 60))
def test_a_family_stays_in_order(seed: int, length: int) -> None:
    family = Family(seed)
    for _ in range(length):
        family.step()
        family.outcomes()
    family.finish()
    family.ask()
    family.outcomes()
    assert not family.world.rows
    family.signals_once()
    for flow in family.world.flows.values():
        if flow.state.run is not None:
            assert flow.row is not None
            assert not flow.run.is_open or flow.run.part(Children).open == {}, "everybody's children have reported"
            assert flow.row.unanswered == 0
