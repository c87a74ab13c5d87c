"""Exports: a run is read slice by slice and written to a file, so its length takes neither memory nor the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from msgspec.structs import replace

from backstay import collector
from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances
from backstay.engine.reading.describe import beside
from backstay.engine.reading.looking import Looking
from backstay.engine.reading.run_remains import remains
from backstay.engine.reading.slices import Slices
from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Context, Event, HistoryDamaged, Recorded
from backstay.kernel.message import Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.values import Micros
from backstay.kernel.views.lineage import continued
from backstay.protocol.remains import Remains
from backstay.protocol.requests import Description
from backstay.store import RunFilter

T = TypeVar("T")

AT_ONCE = 2  # exports that are made at a time; others wait


class FinishedFile(Protocol):
    """A file on disk that is read part by part."""

    @property
    def size(self) -> int: ...
    def pieces(self) -> Iterator[bytes]: ...


class WrittenRun(Protocol):
    """The export of one run while it is written. It decodes payloads, which an engine never does."""

    told: list[Recorded]

    @property
    def file(self) -> FinishedFile: ...
    def add(self, entry: Recorded) -> None: ...
    def finish(
        self,
        description: Description,
        commands: list[CommandRecord],
        held: Sequence[tuple[Event, Context]],
        chain: Mapping[str, RunRow],
        exported_at: Micros,
        sources: Mapping[str, str],
    ) -> Generator[None]: ...
    def finish_damaged(self, remains: Remains, exported_at: Micros) -> Generator[None]: ...
    def close(self) -> None: ...


Exporter = Callable[[RunRow], WrittenRun]
"""Begins the export of a run."""


@asynccontextmanager
async def _rest() -> AsyncGenerator[None]:
    """Pause garbage collection: it would traverse the whole run, of which nothing is garbage yet."""
    with collector.resting():
        yield


class Exports:
    def __init__(self, engine: Engine, instances: Instances, looking: Looking, exporter: Exporter) -> None:
        self._engine = engine
        self._instances = instances
        self._looking = looking
        # A thread of its own: an export takes long, and runs the code of a redactor.
        self._slices = Slices(engine.world, engine.store)
        self._exporter = exporter
        self._room = asyncio.Semaphore(AT_ONCE)
        self.sources: Callable[[RunRow], Awaitable[Mapping[str, str]]] | None = None  # where the views of a run stand

    async def of(self, namespace: str, workflow_id: str, run_id: str | None) -> WrittenRun:
        """Export the current run of an instance, or the run with this id. The caller closes the file."""
        if run_id is None:
            await self._instances.key(namespace, workflow_id)
            row = await self._newest(namespace, workflow_id)
            if row is None:
                raise Refused("instance_not_started", f"workflow {workflow_id!r} has no run yet")
        else:
            row = await self._engine.store.run(namespace, run_id)
            if row is None or row.workflow_id != workflow_id:
                raise Refused("run_not_found", f"there is no run {run_id!r}", run_id=run_id)
        return await self.of_run(row)

    async def of_run(self, row: RunRow, exporter: Exporter | None = None, *, only_whole: bool = False) -> WrittenRun:
        """Export a run; of a damaged one the readable part, unless `only_whole`. `exporter`: used instead of the usual one."""
        begin = exporter or self._exporter
        async with self._room, _rest():
            try:
                return await self._of_run(row, begin(row))
            except HistoryDamaged as damage:
                if only_whole:
                    raise
                return await self._of_damaged(row, begin(row), damage)

    async def _of_damaged(self, row: RunRow, export: WrittenRun, damage: HistoryDamaged) -> WrittenRun:
        try:
            remnant = await remains(self._engine, row, damage)
            steps = export.finish_damaged(remnant, self._engine.world.now())
            while await self._slices.aside(lambda: next(steps, steps)) is not steps:
                pass
        except BaseException:
            export.close()
            raise
        return export

    async def _of_run(self, row: RunRow, export: WrittenRun) -> WrittenRun:
        try:
            opening = await self._engine.store.opening(row.workflow)
            newest = await self._newest(row.namespace, row.workflow_id)
            current = newest is None or newest.key == row.key
            drifted = opening is not None and newest is not None and newest.key != opening.row.run
            loading, machine = self._engine.loading, self._engine.machine
            if opening is not None and current:
                row = replace(row, length=opening.row.length)
                instance = loading.blank(replace(opening.row, run=row.key), row)
            else:
                instance = Instance(row.workflow, row.namespace, row.workflow_id)
                instance.exists = True
                instance.run = Run(row.key, row.run_id, row.number)
            run = instance.current

            def take(events: Sequence[Recorded]) -> None:
                for entry in events:
                    machine.evolve(instance, run, entry)
                    export.add(entry)

            reached = await self._slices.through(row.key, take, last=row.length, inline=0)
            if reached < row.length:
                missing = HistoryDamaged(row.key, reached + 1, "missing, and so is everything after it")
                raise missing.of(row.workflow_id, row.run_id)
            machine.fold(instance, run, ())
            if opening is not None and current:
                loading.add_rows(instance, opening.row, row, opening.tasks)
            description = await self._slices.aside(lambda: self._looking.state_of(instance, current=current))
            description = replace(
                description,
                current_run_id=row.run_id if newest is None else newest.run_id,
                current_run_source="run_order_fallback" if drifted else description.current_run_source,
            )
            commands = await self._looking.commands(row.workflow)
            chain = await beside(self._engine.store, row.namespace, continued(export.told))
            held = list(instance.buffered_events)
            sources: Mapping[str, str] = {} if self.sources is None else await self.sources(row)
            steps = export.finish(description, commands, held, chain, self._engine.world.now(), sources)
            while await self._slices.aside(lambda: next(steps, steps)) is not steps:
                pass
        except BaseException:
            export.close()
            raise
        return export

    def aside(self, make: Callable[[], T]) -> Awaitable[T]:
        """Run long work on a finished export on the thread of the exports."""
        return self._slices.aside(make)

    async def _newest(self, namespace: str, workflow_id: str) -> RunRow | None:
        where = RunFilter(namespace=namespace, workflow_id=workflow_id, limit=1)
        return next(iter(await self._engine.store.runs(where)), None)
