"""Decide one message as the engine does: decide, match, seal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backstay.kernel.decision import Decision
from backstay.kernel.fleet import NO_DEFINITIONS, NO_FLEET, Definitions, LiveFleet, WorkerIdentity, definition_id
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message
from backstay.kernel.rows import instance_row
from backstay.kernel.state import Instance
from backstay.kernel.task import Lease, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros


class Ids:
    """Ids that count, so that two runs of a test have the same ids."""

    def __init__(self) -> None:
        self.keys = 0
        self.ulids = 0

    def key(self, partition: int) -> int:
        self.keys += 1
        return self.keys

    def serial(self) -> int:
        return self.key(0)

    def ulid(self) -> str:
        self.ulids += 1
        return f"RUN{self.ulids}"

    def run_id(self, partition: int) -> str:
        return self.ulid()


Offering = Callable[[Task], Lease | None]
"""The lease of the worker that takes a ready task; None if no worker takes it."""


def nobody(task: Task) -> None:
    """No worker takes a task."""


def to(owner: str, until: Micros | None = None) -> Offering:
    """This worker takes every ready task."""
    return lambda task: Lease(owner=owner, until=until)


class Deployed:
    """A fleet that has one definition of each of these workflow types, by its fingerprint."""

    def __init__(self, fingerprints: Mapping[str, str | None]) -> None:
        self._fingerprints = fingerprints

    def definitions(self, task: Task) -> Definitions:
        if task.type not in self._fingerprints:
            return NO_DEFINITIONS
        return Definitions(frozenset({definition_id(self._fingerprints[task.type], None)}))

    def worker(self, task: Task) -> WorkerIdentity | None:
        fingerprints = self._fingerprints
        return WorkerIdentity("host", None, fingerprints[task.type]) if task.type in fingerprints else None


class Decided(Decision):
    """A decision with the ready tasks that no worker took, and whether it has nothing to write."""

    unassigned: list[Task] = []
    idle: bool = False


def decide(
    machine: Machine,
    state: Instance,
    message: Message,
    now: Micros,
    ids: Any,
    offer: Offering = nobody,
    fleet: LiveFleet = NO_FLEET,
) -> Decided:
    """Decide one message in a turn of its own."""
    turn = machine.begin(state, ids, fleet)
    machine.decide(turn, message, now)
    unassigned = match(machine, turn, offer)
    idle = machine.idle(turn)
    sealed = Decision(instance_row(state, 0, False), turn.after, reply=turn.reply) if idle else machine.seal(turn)
    return Decided(**vars_of(sealed, Decision.__struct_fields__), unassigned=unassigned, idle=idle)


def match(machine: Machine, turn: Turn, offer: Offering = nobody) -> list[Task]:
    """Offer the ready tasks of a turn. Returns those that no worker took."""
    machine.create_task(turn)
    unassigned: list[Task] = []
    while turn.ready:
        ready, turn.ready = turn.ready, {}
        for task in ready.values():
            lease = offer(task)
            if lease is None:
                unassigned.append(task)
            else:
                machine.grant(turn, task, lease)
    return unassigned


def vars_of(thing: object, fields: Iterable[str]) -> dict[str, Any]:
    return {field: getattr(thing, field) for field in fields}
