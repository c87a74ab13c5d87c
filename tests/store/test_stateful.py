"""Any sequence of what processes do to a store, on a file and in a plain model, with the same answers at every point.

Two processes hold the file. They commit decisions in batches of any size, also such as others have overtaken and such as
somebody has made before; they come and go. After each of it every question is answered alike by the file and the model.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from backstay.kernel.decision import Decision
from backstay.store import Applied, RegistryEntry, RunFilter, Store
from backstay.store.sqlite import SqliteStore

from ..kernel.given import MACHINE, T0, instant
from ..sim.disk import Disk, MemoryStore, Seam
from .instances import STEPS, UNHURRIED, StoredFlow, apply, expected, stored, walk


class StoreMachine(RuleBasedStateMachine):
    """`open_store` gives one more process's handle of the database under test."""

    instances: Any = Bundle("instances")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.disk = Disk()
        self.model: Any = MemoryStore(self.disk, MACHINE.kinds, Seam())
        self.crowd: list[StoredFlow] = []
        self.waiting: list[Decision] = []  # decided, and not committed yet
        self.handles: list[Store] = []

    def open_store(self) -> Store:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.handles = [self.open_store(), self.open_store()]

    # -- what processes do

    @rule(target=instances, steps=st.lists(st.sampled_from(STEPS), max_size=4))
    def start(self, steps: list[str]) -> StoredFlow:
        instance = StoredFlow()
        walk(instance, steps)
        self.crowd.append(instance)
        self.waiting += instance.written
        return instance

    @rule(instance=instances, steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
    def go_on(self, instance: StoredFlow, steps: list[str]) -> None:
        before = len(instance.written)
        walk(instance, steps)
        self.waiting += instance.written[before:]

    @rule(handle=st.integers(0, 1), size=st.integers(1, 9))
    def commit(self, handle: int, size: int) -> None:
        batch, self.waiting = self.waiting[:size], self.waiting[size:]
        if batch:
            assert self.both(handle, batch) == Applied()

    @precondition(lambda self: not self.waiting)
    @rule(instance=instances, handle=st.integers(0, 1), step=st.sampled_from(STEPS), first=st.booleans())
    def overtake(self, instance: StoredFlow, handle: int, step: str, first: bool) -> None:
        """Two processes decide on the same state; who comes second has lost, whatever else is in its batch."""
        twin = deepcopy(instance)
        if twin.state.run is not None:  # bound to the parts of the other one, which a copy does not see
            twin.state.run.part = twin.state.run.parts.__getitem__
        before = len(instance.written)
        walk(instance, [step])
        walk(twin, [step, "again"])
        mine, theirs = instance.written[before:], twin.written[before:]
        if not mine or not theirs:
            self.waiting += mine
            return
        assert self.both(handle, mine) == Applied()
        other = StoredFlow()
        other.start(at=0)
        self.crowd.append(other)
        batch = [*other.written, *theirs] if first else [*theirs, *other.written]
        lost = self.both(1 - handle, batch)
        assert lost.stale == frozenset(n for n, decision in enumerate(batch) if decision in theirs)

    @rule(handle=st.integers(0, 1), position=st.integers(0, 200))
    def repeat(self, handle: int, position: int) -> None:
        """A decision that was committed before is committed by nobody again."""
        made = [d for instance in self.crowd for d in instance.written if d not in self.waiting]
        if made:
            assert self.both(handle, [made[position % len(made)]]).stale == frozenset([0])

    @rule(handle=st.integers(0, 1))
    def restart(self, handle: int) -> None:
        self.runner.run(_closed(self.handles[handle]))
        self.handles[handle] = self.open_store()

    @rule(handle=st.integers(0, 1), name=st.sampled_from("ab"), body=st.none() | st.binary(max_size=5))
    def keep(self, handle: int, name: str, body: bytes | None) -> None:
        entry = RegistryEntry("worker", "default", name, body)
        for store in (self.handles[handle], self.model):
            done: list[Any] = []
            store.keep(entry, done.append)
            self.runner.run(_until(done))
            assert done == [None]

    # -- what they are told

    @invariant()
    def every_question_has_one_answer(self) -> None:
        if self.handles:
            self.runner.run(self._compare())

    async def _compare(self) -> None:
        for number, store in enumerate(self.handles):
            theirs, ours = await self._answers(store), await self._answers(self.model)
            for question, answer in ours.items():
                assert theirs[question] == answer, (number, question)
        for instance in self.crowd:
            if not any(decision in self.waiting for decision in instance.written):
                assert await stored(self.handles[0], instance) == expected(instance)

    async def _answers(self, store: Store) -> dict[str, Any]:
        now = instant(40)
        found: dict[str, Any] = {
            "due": await store.due(now, 3),
            "written_in_future": await store.written_in_future(T0, (T0, 0), 3),
            "ready": await store.ready(3),
            "leased": sorted(task.id for task in await store.leased()),
            "endless": await store.endless(3),
            "failed": sorted(task.id for task in await store.failed()),
            "mismatched": await store.mismatched(0, 4),
            "sends": await store.sends(0, 5),
            "awaiting": await store.awaiting(0, 5),
            "kept": await store.kept("worker"),
            "list": await store.runs(RunFilter(namespace="default", limit=4)),
            "closed": await store.runs(RunFilter(namespace="default", status="completed", limit=4)),
        }
        ready = found["ready"]
        if ready:
            first = (ready[0].available_at, ready[0].workflow, ready[0].id)
            found["ready, further"] = await store.ready(3, first)
        for instance in self.crowd[-3:]:
            found[f"last of {instance.key}"] = await store.last(instance.key)
            found[f"moved {instance.key}"] = await store.moved({instance.key: instance.state.last_decision})
            found[f"find {instance.key}"] = await store.find("default", instance.workflow_id)
            for run in instance.runs.values():
                found[f"run {run.run_id}"] = await store.run(run.namespace, run.run_id)
                found[f"locate {run.run_id}"] = await store.locate(run.namespace, run.run_id)
                found[f"history {run.run_id}"] = await store.history(run.key, 1, 2)
                found[f"last {run.run_id}"] = await store.last_event(run.key)
        return found

    def both(self, handle: int, batch: list[Decision]) -> Applied:
        answer = self.runner.run(apply(self.handles[handle], *batch))
        assert self.runner.run(apply(self.model, *batch)) == answer
        return answer

    def teardown(self) -> None:
        for store in self.handles:
            self.runner.run(_closed(store))
        self.runner.close()


async def _closed(store: Store) -> None:
    await store.close()


async def _until(done: list[Any]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not done and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0)


class SqliteMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="backstay-stateful-")

    def open_store(self) -> Store:
        return SqliteStore(str(Path(self.directory) / "any.db"), MACHINE.kinds, None)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory, ignore_errors=True)


TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(
    max_examples=20,
    stateful_step_count=18,
    deadline=None,
    suppress_health_check=UNHURRIED,
    print_blob=True,
)
TestSqlite = pytest.mark.filterwarnings("ignore::ResourceWarning")(TestSqlite)
