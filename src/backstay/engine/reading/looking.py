"""Looking: reads a run for people, however long its history is, and never holds the engine's thread for it.

The rows of an instance are read at one moment. The history of that moment follows in pages, and the event loop runs
other work between them. Long histories are folded on a thread. If the state in memory matches the rows exactly, it is
used instead of folding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from backstay import collector
from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances
from backstay.engine.core.world import turn
from backstay.engine.reading.describe import describe_state, with_history
from backstay.engine.reading.history_pages import read_page
from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.features.close import WorkflowCompleted
from backstay.kernel.features.continue_as_new import WorkflowContinuedAsNew
from backstay.kernel.features.fork import WorkflowRewound
from backstay.kernel.features.start import Identity, WorkflowStarted
from backstay.kernel.message import Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.protocol.requests import Description
from backstay.store import Opening, RunFilter

T = TypeVar("T")

SHORT = 500  # events, tasks or commands that are processed in one turn of the loop
PAGE_BYTES = 256 * 1024  # of a history that are read in one turn
TRIES = 5  # times that an instance is read which changes meanwhile


class Ends(NamedTuple):
    """How a run began, what it returned, when something was last recorded of it, and the runs before and after it."""

    started: WorkflowStarted | None = None
    output: bytes | None = None
    last_at: Micros | None = None
    neighbours: tuple[str, ...] = ()


class Looked(NamedTuple):
    """A run as it was at one moment. `history`: all of it, or empty if only the state was requested."""

    found: Description
    history: list[Recorded]
    ends: Ends = Ends()


class Looking:
    def __init__(self, engine: Engine, instances: Instances) -> None:
        self._engine = engine
        self._instances = instances
        self._one_aside = asyncio.Lock()

    async def current(self, namespace: str, workflow_id: str, *, views: bool = True) -> Looked:
        """The current run of an instance. Without `views`: no history, and no views that are made of it, if the state in
        memory will do."""
        key = await self._instances.key(namespace, workflow_id)
        with collector.resting():  # a collection would look through a long history, and none of it is garbage yet
            looked = await self._current(key, workflow_id, views)
            if not views:
                await self.release(looked)
        return looked

    async def _current(self, key: int, workflow_id: str, views: bool) -> Looked:
        for left in reversed(range(TRIES)):
            opening = await self._opening(key, workflow_id)
            try:
                return await self._described(opening, views)
            except HistoryDamaged:
                again = await self._engine.store.opening(key)
                if not left or (again is not None and again.row == opening.row):
                    self._engine.reload(key)  # so that nothing builds on the state in memory
                    raise
        raise AssertionError("the last try raises")

    async def of_run(self, row: RunRow, *, views: bool = True) -> Looked:
        """Any run of an instance. An earlier run is described from its own history alone. `views` as above."""
        with collector.resting():
            looked = await self._of_run(row, views)
            if not views:
                await self.release(looked)
        return looked

    async def _of_run(self, row: RunRow, views: bool) -> Looked:
        opening = await self._opening(row.workflow, row.workflow_id)
        newest = await self._newest(row.namespace, row.workflow_id)
        if row.key == opening.row.run or newest is None or row.key == newest.key:
            looked = await self.current(row.namespace, row.workflow_id, views=views)
            if looked.found.run is not None and looked.found.run.key == row.key:
                return looked
        history = await self.whole(row)
        if len(history) < row.length:
            missing = HistoryDamaged(row.key, len(history) + 1, "missing, and so is everything after it")
            raise missing.of(row.workflow_id, row.run_id)
        instance = Instance(row.workflow, row.namespace, row.workflow_id)
        instance.exists = True
        run = instance.run = Run(row.key, row.run_id, row.number)
        commands = await self.commands(row.workflow) if views else None
        await self.aside(history, lambda: self._engine.machine.fold(instance, run, history))
        description, _, ends = await self._told(instance, history, commands, current=False)
        drifted = newest is not None and newest.key != opening.row.run
        current = newest if drifted else opening.run
        source = "run_order_fallback" if drifted else description.current_run_source
        id = None if current is None else current.run_id
        return Looked(replace(description, current_run_id=id, current_run_source=source), history, ends)

    async def _newest(self, namespace: str, workflow_id: str) -> RunRow | None:
        """The newest run of an instance, whatever the row of the instance says."""
        where = RunFilter(namespace=namespace, workflow_id=workflow_id, limit=1)
        return next(iter(await self._engine.store.runs(where)), None)

    async def _opening(self, key: int, workflow_id: str) -> Opening:
        try:
            opening = await self._engine.store.opening(key)
        except HistoryDamaged:
            self._engine.reload(key)
            raise
        if opening is None:
            raise Refused("workflow_not_found", f"there is no workflow {workflow_id!r}", workflow_id=workflow_id)
        return opening

    async def _described(self, opening: Opening, views: bool) -> Looked:
        row = opening.row
        if opening.run is None and not row.length:
            commands = await self.commands(row.key)
            return Looked(_reserved(opening, commands), [])
        try:
            if opening.run is None:
                raise _no_run(opening)
            return await self._as_named(opening, opening.run, views)
        except HistoryDamaged:
            # The row may name a wrong run. Then the newest run is taken as the current one, if it fits.
            newest = await self._newest(row.namespace, row.workflow_id)
            if newest is None or (opening.run is not None and newest.key == opening.run.key):
                raise
            run = replace(newest, length=row.length)
            mended = opening._replace(row=replace(row, run=run.key), run=run)
            description, history, ends = await self._as_named(mended, run, views)
            return Looked(replace(description, current_run_source="run_order_fallback"), history, ends)

    async def _as_named(self, opening: Opening, row: RunRow, views: bool) -> Looked:
        commands = await self.commands(opening.row.key) if views else []
        # No await from here to the description: this may be the state that the engine goes on to change.
        instance = self._engine.loading.unchanged(opening) if len(opening.tasks) <= SHORT else None
        if instance is not None:
            description, ends = self.state_of(instance), _ends(instance.current)
            held = list(instance.buffered_events)
            if not views:
                await self._check_end(opening)
                return Looked(description, [], ends)
            history = await self._history(opening, row)
            made = await self.aside(history, lambda: with_history(description, history, commands, held))
            return Looked(made, history, ends)
        history = await self._history(opening, row)
        loading = self._engine.loading
        folded = loading.blank(opening.row, row)
        run = folded.current
        await self.aside(history, lambda: self._engine.machine.fold(folded, run, history))
        loading.add_rows(folded, opening.row, row, opening.tasks)
        return await self._told(folded, history, commands if views else None)

    async def _told(
        self, instance: Instance, history: list[Recorded], commands: list[CommandRecord] | None, *, current: bool = True
    ) -> Looked:
        """Describe a state that belongs to this call alone. Without `commands`: by the state only."""
        definition, deployed = self._code_of(instance.current)
        now = self._engine.world.now()
        machine, is_stranded = self._engine.machine, self._is_stranded()

        def make() -> Description:
            description = describe_state(machine, instance, now, definition, is_stranded, deployed, current=current)
            if commands is None:
                return description
            return with_history(description, history, commands, list(instance.buffered_events))

        rows = history if len(history) >= len(instance.tasks) else list(instance.tasks)
        return Looked(await self.aside(rows, make), history, _ends(instance.current))

    def state_of(self, instance: Instance, *, current: bool = True) -> Description:
        """Describe a run by its state alone."""
        definition, deployed = self._code_of(instance.current)
        now, is_stranded = self._engine.world.now(), self._is_stranded()
        return describe_state(self._engine.machine, instance, now, definition, is_stranded, deployed, current=current)

    def _is_stranded(self) -> Callable[[Task], bool] | None:
        """Whether no live worker could take a task. Only the engine knows workers."""
        return self._engine.matching.is_stranded if self._engine.knows_workers() else None

    def _code_of(self, run: Run) -> tuple[str | None, str | None]:
        """Why the code of a run cannot answer queries, and the fingerprint of the code that is deployed."""
        deployed = self._engine.define(run.routing, run.workflow_type)[1]
        why = self._engine.matching.why_unanswered(run.workflow_type, run.routing)
        return why, None if deployed is None else deployed.fingerprint

    async def _check_end(self, opening: Opening) -> None:
        """Require that the history ends with the event that the row names."""
        row = opening.row
        assert row.run is not None, "it has a state"
        last = await self._engine.store.history(row.run, row.length - 1, 1)
        if not last or last[0].checksum != row.checksum:
            raise _other_end(opening)

    async def _history(self, opening: Opening, row: RunRow) -> list[Recorded]:
        """The history of the moment at which the rows were read."""
        history = await self._pages(row, opening.row.length)
        if len(history) < opening.row.length:
            missing = HistoryDamaged(row.key, len(history) + 1, "missing, and so is everything after it")
            raise missing.of(row.workflow_id, row.run_id)
        if history and history[-1].checksum != opening.row.checksum:
            raise _other_end(opening)
        return history

    async def whole(self, row: RunRow) -> list[Recorded]:
        """Read a whole history. The event loop runs other work between its pages."""
        return await self._pages(row, 1 << 62)

    async def _pages(self, row: RunRow, last: int) -> list[Recorded]:
        history: list[Recorded] = []
        while True:
            after = history[-1].sequence if history else 0
            try:
                page = await read_page(self._engine.store, row.key, after, last, PAGE_BYTES, SHORT)
            except HistoryDamaged as damage:
                raise damage.of(row.workflow_id, row.run_id) from damage.__cause__
            history += page
            if not page or page[-1].sequence >= last:
                return history
            await self.turn()

    async def commands(self, workflow: int) -> list[CommandRecord]:
        """Read all commands of an instance. The event loop runs other work between their pages."""
        commands: list[CommandRecord] = []
        while True:
            page = await self._engine.store.commands(workflow, len(commands), SHORT)
            commands += page
            if len(page) < SHORT:
                return commands
            await self.turn()

    async def release(self, looked: Looked) -> None:
        """Let go of a history bit by bit: to free a long one at once would take long as well."""
        description = looked.found
        lists: list[list[Any]] = [
            looked.history,
            description.waits,
            description.failures,
            description.signals,
            description.updates,
        ]
        for entries in lists:
            while len(entries) > SHORT:
                del entries[-SHORT:]
                await self.turn()

    async def turn(self) -> None:
        """Let the event loop run other work."""
        await turn(self._engine.world)

    async def aside(self, items: Sized, make: Callable[[], T]) -> T:
        """Call `make`. With many items, it runs on a thread, so that other requests do not wait; one at a time, so that
        memory suffices."""
        if len(items) <= SHORT:
            return make()
        async with self._one_aside:
            pool = self._engine.world.pool(1, "backstay-aside")
            future: asyncio.Future[tuple[T | None, Exception | None]] = self._engine.world.future()
            try:
                pool.submit(partial(_tried, make), lambda made: None if future.done() else future.set_result(made))
                made, error = await future
            finally:
                pool.close()
        if error is not None:
            raise error
        return cast(T, made)


def _tried(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        with collector.resting():
            return make(), None
    except Exception as error:
        return None, error


def _ends(run: Run) -> Ends:
    started, ended = run.part(Identity).started, run.ended_by
    output = ended.output if isinstance(ended, WorkflowCompleted) else None
    before = None if started is None else started.continued_from_run_id
    after = ended.continued_to_run_id if isinstance(ended, WorkflowContinuedAsNew | WorkflowRewound) else None
    return Ends(started, output, run.last_at, tuple(id for id in (before, after) if id is not None))


def _reserved(opening: Opening, commands: list[CommandRecord]) -> Description:
    row = opening.row
    return Description(
        workflow_id=row.workflow_id,
        namespace=row.namespace,
        workflow_type=row.workflow_type,
        status="reserved",
        run=None,
        liveness_state="reserved",
        commands=commands,
    )


def _no_run(opening: Opening) -> HistoryDamaged:
    row = opening.row
    if row.run is None:
        return HistoryDamaged(0, 0, f"the row of workflow {row.workflow_id!r} names none of its runs")
    return HistoryDamaged(row.run, 0, f"the row of a run of workflow {row.workflow_id!r} is missing")


def _other_end(opening: Opening) -> HistoryDamaged:
    row, run = opening.row, opening.run
    damage = HistoryDamaged(row.run or 0, row.length, "it is not the event its workflow ended with")
    return damage if run is None else damage.of(run.workflow_id, run.run_id)
