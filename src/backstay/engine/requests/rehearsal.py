"""Rehearsals (dry runs): a throw-away engine decides a request and writes nothing.

The engine of a rehearsal is a guest beside the real one: it has a cache of its own, so it folds every instance from
disk and decides exactly as the real one would, and it hands out no tasks and delivers no messages. Its store reads the
disk and keeps the rows that would be written. Nothing that it does is seen outside of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks
from backstay.engine.core.world import World
from backstay.engine.reading.slices import Slices
from backstay.engine.requests.api import Api, Exporter
from backstay.engine.requests.workflow_commands import Payloads
from backstay.engine.tasks.matching import Matching
from backstay.engine.views.damaged_runs import DamagedRuns
from backstay.engine.views.projector import Projector
from backstay.kernel.decision import Decision
from backstay.kernel.event import Recorded
from backstay.kernel.task import Task
from backstay.store import ALL, Applied, Loaded, Ready, RegistryEntry, Store
from backstay.store.errors import Unavailable
from backstay.store.views import ViewChanges

SHORT = 500  # events of a history that is read and folded at once


class RehearsalStore:
    """A store that is read as usual and never written: `decisions` and `entries` are the rows that would have been
    written."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self.decisions: list[Decision] = []
        self.entries: list[RegistryEntry] = []
        self.run_ids: dict[int, str] = {}  # of the runs that were read or would be written

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)  # it reads

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        self.decisions += decisions
        for decision in decisions:
            self.run_ids.update((row.key, row.run_id) for _, row in decision.runs)
        self._world.soon(lambda: done(ALL))

    def keep(self, entry: RegistryEntry, done: Callable[[Unavailable | None], None]) -> None:
        self.keep_all([entry], done)

    def keep_all(self, entries: Sequence[RegistryEntry], done: Callable[[Unavailable | None], None]) -> None:
        self.entries += entries
        self._world.soon(lambda: done(None))

    async def keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool:
        self.entries.append(entry)
        return True

    def put_views(self, changes: ViewChanges, done: Callable[[Unavailable | None], None]) -> None:
        self._world.soon(lambda: done(None))

    def prune(self, workflow: int, run: int, done: Callable[[bool | Unavailable], None]) -> None:
        self._world.soon(lambda: done(False))

    def load(self, key: int) -> Awaitable[Loaded | None]:
        answer = self._store.load(key)
        if not isinstance(answer, Ready):
            return self._load(answer)
        self._note(answer.value)
        return answer

    async def _load(self, answer: Awaitable[Loaded | None]) -> Loaded | None:
        loaded = await answer
        self._note(loaded)
        return loaded

    def _note(self, loaded: Loaded | None) -> None:
        if loaded is not None and loaded.run is not None:
            self.run_ids[loaded.run.key] = loaded.run.run_id

    def find(self, namespace: str, workflow_id: str) -> Awaitable[int | None]:
        """The key of an instance, also of one that this rehearsal would create or send a start to."""
        for decision in self.decisions:
            row = decision.instance
            if (row.namespace, row.workflow_id) == (namespace, workflow_id):
                return Ready(row.key)
            for send in decision.sends:
                if send.message.creates and (send.namespace, send.workflow_id) == (namespace, workflow_id):
                    return Ready(send.key)
        return self._store.find(namespace, workflow_id)

    def acquire(self) -> Awaitable[bool]:
        return Ready(False)

    def close(self) -> Awaitable[None]:
        return Ready(None)


class Rehearsal:
    """A throw-away engine with its API, beside a live one. Its waits end at once, because their results never come."""

    def __init__(
        self,
        live: Engine,
        payloads: Payloads,
        exporter: Exporter,
        *,
        unoffered: Callable[[Task], bool],
        over: Callable[[], Exception],
    ) -> None:
        """`over` makes the error of a wait that cannot be answered with the present state."""
        self.store = RehearsalStore(live.store, live.world)
        self.engine = Engine(
            live.world,
            cast("Store", self.store),
            live.machine,
            matching=Matching(live.world.now, remote=live.matching.remote, fleet=live.matching.fleet),
            define=live.define,
        )
        self.engine.leases = live.leases  # to read; what the engine itself leases goes elsewhere
        damaged = DamagedRuns(self.engine, stores=False)
        projector = Projector(self.engine, EngineHooks(), damaged, active=False)
        self.api = Api(self.engine, payloads, exporter, guest=True, unoffered=unoffered, projector=projector)
        self.api.stop_waiting(over)
        self._slices = Slices(live.world, live.store)

    async def prepare(self, namespace: str, workflow_id: str) -> None:
        """Fold an instance whose history is long beside the engine's thread, before something is decided for it."""
        store, engine = self.store, self.engine
        key = await store.find(namespace, workflow_id)
        opening = None if key is None else await engine.store.opening(key)
        if opening is None or opening.run is None or opening.row.length <= SHORT:
            return
        row, run_row = opening.row, opening.run
        instance = engine.loading.blank(row, run_row)
        run = instance.current

        def fold(page: Sequence[Recorded]) -> None:
            for entry in page:
                engine.machine.evolve(instance, run, entry)

        await self._slices.through(run.key, fold, last=row.length)
        if (run.length, run.checksum) != (row.length, row.checksum):
            return  # the usual read reports the error
        engine.machine.fold(instance, run, ())
        engine.loading.add_rows(instance, row, run_row, opening.tasks)
        engine.cache.add(CachedInstance(instance, None))
        store.run_ids[run.key] = run.run_id
