"""Several instances that send each other things: the harness for children.

A `World` holds the send rows that a store would hold: a decision writes those it sends and deletes those it took. Tests say
which row reaches its receiver, when and how often; `settle` delivers everything in order until nothing is on its way.
"""

from __future__ import annotations

from typing import Any

from backstay.kernel.command import Command
from backstay.kernel.decision import CommandRecord, Decision
from backstay.kernel.features.child import StartChildWorkflow
from backstay.kernel.features.child.messages import StartFromParent
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.groups import GroupEntry
from backstay.kernel.machine import Machine
from backstay.kernel.send import OutboxMessage, Send, pack, unpack

from .deciding import Decided, Ids
from .given import MACHINE, Flow, instant


class Member(Flow):
    """An instance of a world."""

    def __init__(self, world: World, workflow_id: str, namespace: str = "default") -> None:
        super().__init__(world.machine, workflow_id, world.ids, namespace)
        self.world = world
        self.now = world.now

    def when(self, *args: Any, **named: Any) -> Decided:
        self.now = max(self.now, self.world.now)
        decision = super().when(*args, **named)
        self.world.now = max(self.world.now, self.now)
        return decision

    def _store(self, decision: Decision) -> None:
        super()._store(decision)
        for send in decision.sends:
            body = pack(send.message)
            assert send.sender == self.state.key
            self.world.rows[send.key] = Send(
                send.key, send.sender, send.namespace, send.workflow_id, unpack(type(send.message), body)
            )
            self.world.log.append(send)
        for key in decision.taken_sends:
            self.world.rows.pop(key, None)


class World:
    def __init__(self, machine: Machine = MACHINE) -> None:
        self.machine = machine
        self.ids = Ids()
        self.now = instant(0)
        self.flows: dict[str, Member] = {}
        self.rows: dict[int, Send] = {}
        self.log: list[Send] = []  # everything ever sent

    def start(self, workflow_id: str = "parent", **options: Any) -> Member:
        flow = self.flow(workflow_id)
        flow.start(**options)
        return flow

    def flow(self, workflow_id: str, namespace: str = "default") -> Member:
        if workflow_id not in self.flows:
            self.flows[workflow_id] = Member(self, workflow_id, namespace)
        assert self.flows[workflow_id].state.namespace == namespace, "a test gives each name to one instance"
        return self.flows[workflow_id]

    def child_of(self, parent: Flow, step: int = 1) -> Member:
        """The instance that a step of the parent called."""
        for entry in parent.history:
            event: Any = entry.event
            if entry.type == "ChildWorkflowScheduled" and event.sequence == step:
                return self.flow(event.child_workflow_instance_id)
        raise AssertionError(f"step {step} called no child")

    def on_their_way(self, kind: type[OutboxMessage] | None = None) -> list[Send]:
        return [send for _, send in sorted(self.rows.items()) if kind is None or isinstance(send.message, kind)]

    def one(self, kind: type[OutboxMessage]) -> Send:
        (send,) = self.on_their_way(kind)
        return send

    def deliver(self, send: Send) -> Decision:
        flow = self.flow(send.workflow_id, send.namespace)
        recorded = {c.request_id for c in flow.commands}
        known = frozenset(request_id for request_id in send.message.asked_request_ids if request_id in recorded)
        return flow.when(Deliver(send=send, retained=self.retained(flow, send), known=known))

    @staticmethod
    def retained(flow: Flow, send: Send) -> CommandRecord | None:
        """As the shell does: the record of the first command that had this request id."""
        request_id = getattr(send.message, "request_id", None)
        return next((c for c in flow.commands if request_id is not None and c.request_id == request_id), None)

    def settle(self) -> None:
        while self.rows:
            for send in self.on_their_way():
                self.deliver(send)


def call(workflow_type: str = "ship", **options: Any) -> StartChildWorkflow:
    return StartChildWorkflow(workflow_type=workflow_type, **options)


def calling(
    *commands: Command, machine: Machine = MACHINE, deliver: bool = True, **options: Any
) -> tuple[World, Member]:
    """A parent whose first task asked for these commands, and by default everything sent has arrived."""
    world = World(machine)
    parent = world.start(**options)
    parent.complete(*(commands or (call(),)))
    if deliver:
        world.settle()
    return world, parent


def group(
    base: int,
    size: int,
    index: int,
    *,
    kind: str = "child",
    limit: int | None = None,
    name: str = "g",
    window: int | None = None,
    settles: bool = False,
) -> GroupEntry:
    return GroupEntry(
        parallel_group_id=f"{name}:{base}:{size}",
        parallel_group_kind=kind,
        parallel_group_base_sequence=base,
        parallel_group_size=size,
        parallel_group_index=index,
        parallel_group_limit=limit,
        parallel_group_window=window,
        parallel_group_settles=settles,
    )


def start_of(send: Send) -> StartFromParent:
    assert isinstance(send.message, StartFromParent)
    return send.message
