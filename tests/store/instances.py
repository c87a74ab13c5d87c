"""Instances as a store meets them: real decisions of the kernel, and what a database must hold after them.

An `StoredFlow` remembers the rows that its decisions amount to; `expected` and `stored` put both sides in one shape.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import HealthCheck
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.decision import Decision
from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.search import UpsertSearchAttributes
from backstay.kernel.features.start import Start
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.state import Instance
from backstay.kernel.task import Block
from backstay.store import Applied, Loaded, RunFilter, Store

from ..kernel.given import T0, Flow, instant

__all__ = ["T0", "UNHURRIED", "StoredFlow", "applied", "apply", "expected", "instant", "stored", "walk"]

UNHURRIED = [
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.too_slow,
    HealthCheck.large_base_example,
    HealthCheck.function_scoped_fixture,
    HealthCheck.differing_executors,
]
"""What hypothesis has to say about tests of a database, whose fixtures are shared by examples and whose steps take time."""


class Numbers:
    """Identity that counts over all instances of a process, and differs between processes."""

    def __init__(self) -> None:
        self._keys = count(1)
        self._runs = count(1)
        self.pid = os.getpid()

    def key(self, partition: int = 0) -> int:
        return next(self._keys) << 22 | self.pid

    serial = key

    def ulid(self) -> str:
        return f"RUN{self.pid:08}{next(self._runs):015}"

    def run_id(self, partition: int) -> str:
        return self.ulid()

    def __deepcopy__(self, memo: dict[int, Any]) -> Numbers:
        return self


NUMBERS = Numbers()


class StoredFlow(Flow):
    def __init__(self, workflow_id: str | None = None, namespace: str = "default") -> None:
        key = NUMBERS.key()
        super().__init__(workflow_id=workflow_id or f"order-{key}")
        self.ids: Any = NUMBERS
        self.state = Instance(key, namespace, workflow_id or f"order-{key}")

    @property
    def key(self) -> int:
        return self.state.key

    @property
    def workflow_id(self) -> str:
        return self.state.workflow_id

    def start(self, workflow_type: str = "order", *, at: float | None = None, **options: Any) -> Decision:
        state = self.state
        start = Start(namespace=state.namespace, workflow_id=state.workflow_id, workflow_type=workflow_type, **options)
        return self.when(start, at)

    def step(self, *commands: Command) -> Sequence[Decision]:
        """Claim the workflow task and complete it with these commands: two decisions."""
        before = len(self.decisions)
        self.complete(*commands)
        return self.decisions[before:]

    @classmethod
    def read(cls, loaded: Loaded) -> StoredFlow:
        """The instance as a process that has just loaded it holds it."""
        instance = cls(loaded.row.workflow_id, loaded.row.namespace)
        instance.row = loaded.row
        instance.rows = {task.id: task for task in loaded.tasks}
        if loaded.run is not None:
            instance.runs = {loaded.run.key: loaded.run}
            instance.histories = {loaded.run.key: loaded.history}
        instance.reopen()
        return instance

    def twin(self) -> StoredFlow:
        """The same instance as another process holds it: equal now, and free to decide differently."""
        return copy.deepcopy(self)

    @property
    def written(self) -> list[Decision]:
        """Every decision so far that writes something."""
        return [decision for decision in self.decisions if not decision.idle]


async def apply(store: Store, *decisions: Decision) -> Applied:
    done: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
    store.apply(decisions, done.set_result)
    return await done


async def applied(store: Store, *instances: StoredFlow) -> None:
    """Write all decisions of these instances, which must go through."""
    result = await apply(store, *(decision for instance in instances for decision in instance.written))
    assert result == Applied()


def expected(instance: StoredFlow) -> dict[str, Any]:
    runs = dict(instance.runs)
    if instance.row is not None and instance.row.run in runs:
        runs[instance.row.run] = replace(runs[instance.row.run], length=instance.row.length)
    return {
        "row": instance.row,
        "tasks": instance.rows,
        "runs": runs,
        "histories": instance.histories,
        "commands": instance.commands,
    }


async def stored(store: Store, instance: StoredFlow) -> dict[str, Any]:
    """Everything of an instance that the store can read back."""
    loaded = await store.load(instance.key)
    runs = await store.runs(RunFilter(namespace=instance.state.namespace, workflow_id=instance.workflow_id))
    histories = {run.key: await store.history(run.key) for run in runs}
    if loaded is not None and loaded.run is not None:
        assert loaded.run in runs
        assert loaded.history == histories[loaded.run.key]
    return {
        "row": None if loaded is None else loaded.row,
        "tasks": {} if loaded is None else {task.id: task for task in loaded.tasks},
        "runs": {run.key: run for run in runs},
        "histories": histories,
        "commands": await store.commands(instance.key),
    }


STEPS = (
    "activity",
    "sleep",
    "label",
    "continue",
    "complete",
    "break",
    "begin",
    "finish",
    "fail",
    "wait",
    "again",
    "heal",
)


def walk(instance: StoredFlow, steps: Sequence[str]) -> None:
    """Lead a started instance through these steps, leaving out what is impossible where it stands."""
    if not instance.decisions:
        instance.start(search_attributes={"stage": 0}, at=0)
    for step in steps:
        if instance.run.is_open:
            _go(instance, step)


def _go(instance: StoredFlow, step: str) -> None:
    at = (instance.now - T0) / 1_000_000 + 1
    ready = [task for task in instance.tasks.values() if task.kind == "activity" and task.state == "ready"]
    running = [task.step or 0 for task in instance.tasks.values() if task.kind == "activity" and task.state == "leased"]
    code = [task for task in instance.tasks.values() if task.kind == "workflow" and task.state != "failed"]
    policy = RetryPolicy(max_attempts=2, backoff_seconds=[3], start_to_close_timeout=60)
    commands: dict[str, Command] = {
        "activity": ScheduleActivity(activity_type="charge", arguments=b"\x00\xff", retry_policy=policy),
        "sleep": StartTimer(delay_seconds=2.5),
        "label": UpsertSearchAttributes(attributes={"stage": instance.run.step + 1}),
        "continue": ContinueAsNew(workflow_type=f"order-{instance.run.number + 1}"),
        "complete": CompleteWorkflow(result=b"done"),
    }
    if step in commands:
        if code:
            if code[0].state == "ready":
                instance.claim(code[0].id, at=at, until=None)  # as in the engine's own process: no wake is moved
            instance.complete(commands[step], at=at)
    elif step == "break" and code:
        instance.break_task(Block(message="no such module"), at=at)
    elif step == "begin" and ready and ready[0].available_at <= instant(at):
        instance.claim(ready[0].id, at=at)
    elif step == "finish" and running:
        instance.finish(running[0], b"\x01", at=at)
    elif step == "fail" and running:
        instance.fail(running[0], at=at)
    elif step == "wait":
        instance.due(at=at + 30)
    elif step == "again":
        instance.start(at=at)
    elif step == "heal":
        instance.when(Reconcile(incarnation="another", force=True), at=at)
