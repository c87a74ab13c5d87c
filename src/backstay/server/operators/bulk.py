"""Bulk operations: one command to many runs, durable, stoppable, and at most once for each run.

running → (stopping → stopped) | completed. The engine's process does the work, a few runs at a time with pauses in between, so
that the engine stays responsive. After a crash or a takeover the next engine goes on with the page that was begun. The command
to a run has a request id of the operation and that run, so a run that was reached twice has one command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.requests.api import Api
from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.message import Refused
from backstay.kernel.operator_command import REASON
from backstay.kernel.operators import OPERATOR_COMMANDS, command_of
from backstay.kernel.values import partition_of
from backstay.protocol import commands as tell
from backstay.server.http.errors import HttpError
from backstay.server.operators.bulk_records import KIND, PAGE, BulkOperation, BulkPage, BulkProgress, BulkRun
from backstay.server.operators.bulk_selection import select_ids, select_runs_of
from backstay.server.registries.registry import StoredRegistry
from backstay.store import RegistryEntry, Store
from backstay.store.errors import StoreError, Unavailable

log = logging.getLogger("backstay.server")

AT_ONCE = 10  # commands
REST = 1  # the pause after them, as a multiple of their duration
SHORTEST_REST = 0.005
AGAIN = 1.0  # seconds until it is tried again, if the database cannot be used
KEPT = 100  # ended operations of a namespace
MOST_OPEN = 20  # open operations of a namespace
MOST_BYTES = 16 << 20  # of all operations of a namespace, as JSON

_decode_page = msgspec.json.Decoder(BulkPage).decode


class BulkOperations:
    """All bulk operations of a server, and those that it works on. `tell` is called with the namespace and id of an
    operation that has moved, and its progress."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        api: Api,
        tell: Callable[[str, str, dict[str, Any]], None],
    ) -> None:
        self._store = store
        self._engine = engine
        self._api = api
        self._told = tell
        self.kept = StoredRegistry(store, KIND, BulkOperation)
        self._working: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, BulkProgress] = {}
        self._one_at_a_time = asyncio.Lock()
        self._beginning = asyncio.Lock()
        self._stopped = False

    async def load(self) -> None:
        """Read the operations, and go on with those that are open."""
        await self.kept.load()
        self.resume()

    def get(self, namespace: str, id: str) -> BulkOperation | None:
        return self.kept.get(namespace, id)

    def of(self, namespace: str) -> list[BulkOperation]:
        """The operations of a namespace, newest first."""
        return sorted((bulk for _, bulk in self.kept.of(namespace)), key=lambda bulk: bulk.upper, reverse=True)

    async def begin(self, bulk: BulkOperation) -> None:
        """Store an operation and begin it; the oldest that have ended are forgotten. Refused if its namespace has no room."""
        async with self._beginning:  # so that two do not take the same room
            self._check_room(bulk.namespace)
            await self.kept.put(bulk.namespace, bulk.id, bulk)
        self.resume()
        for old in [bulk for bulk in self.of(bulk.namespace) if not bulk.is_open][KEPT:]:
            for number in range(old.pages):
                await self._write(RegistryEntry(_kind(old, number), old.namespace, "", None, counted=False))
            await self.kept.remove(old.namespace, old.id)

    def _check_room(self, namespace: str) -> None:
        """Every server keeps the operations in memory, those that have ended, too."""
        if sum(bulk.is_open for bulk in self.of(namespace)) >= MOST_OPEN:
            raise HttpError(
                429,
                "too_many_bulk_operations",
                f"{MOST_OPEN} bulk operations of this namespace are open; wait until one ends, or stop one",
                retryable=True,
                retry_after_seconds=5,
            )
        if self.kept.bytes_of(namespace) >= MOST_BYTES:
            raise HttpError(
                429,
                "bulk_capacity_exhausted",
                f"the bulk operations of this namespace have {MOST_BYTES} bytes; wait until one ends, or stop one",
                retryable=True,
                retry_after_seconds=5,
            )

    async def stop_one(self, bulk: BulkOperation) -> BulkOperation:
        """Stop an operation after the runs that it is at."""
        current = self.get(bulk.namespace, bulk.id) or bulk
        if current.status == "running":
            current = replace(current, status="stopping")
            await self.kept.put(current.namespace, current.id, current)
            self.resume()
        return current

    def resume(self) -> None:
        """Work on every open operation whose shard this process owns."""
        engine = self._engine
        if self._stopped:
            return
        for bulk in self.kept.all():
            if bulk.is_open and bulk.id not in self._working and self._goes_on(bulk.namespace, bulk.id):
                task = engine.world.spawn(self._work(bulk.namespace, bulk.id), "backstay-bulk")
                self._working[bulk.id] = task
                task.add_done_callback(partial(self._left, bulk.id))

    def _left(self, bulk_id: str, _: asyncio.Task[None]) -> None:
        self._working.pop(bulk_id, None)

    def on_stage(self) -> BulkOperations:
        """These operations, for a rehearsal: nothing is done to runs."""
        self._stopped = True
        return self

    def stop(self) -> None:
        """Begin nothing more: the next engine goes on."""
        self._stopped = True

    async def close(self) -> None:
        self.stop()
        for task in list(self._working.values()):
            task.cancel()
        if self._working:
            await asyncio.wait(list(self._working.values()))

    # -- results

    async def page(self, bulk: BulkOperation, number: int) -> BulkPage | None:
        found = await self._store.kept(_kind(bulk, number))
        return next((_decode_page(entry.body) for entry in found if entry.body is not None), None)

    async def progress(self, bulk: BulkOperation) -> BulkProgress:
        """The outcomes of its runs so far."""
        if not bulk.is_open:
            return BulkProgress(bulk.outcomes, bulk.reasons)
        known = self._progress.get(bulk.id)
        return known if known is not None else (await self._pages(bulk))[1]

    async def _pages(self, bulk: BulkOperation) -> tuple[int, BulkProgress, BulkPage | None]:
        """The number of complete pages, the outcomes of their runs, and the page that was begun or else the last."""
        progress = BulkProgress()
        number, last = 0, None
        while (page := await self.page(bulk, number)) is not None:
            last = page
            if not page.done:
                break
            for run in page.runs:
                progress.add(run)
            number += 1
        return number, progress, last

    # -- the work

    async def _work(self, namespace: str, id: str) -> None:
        """Work on an operation until it has ended. While the database cannot be used, it is tried again."""
        while self._goes_on(namespace, id):
            try:
                await self._work_on(namespace, id)
                return
            except StoreError:
                self._progress.pop(id, None)
                await asyncio.sleep(AGAIN)
            except Exception:
                log.exception("bulk operation %s failed; the next start of the server goes on with it", id)
                return

    def _goes_on(self, namespace: str, id: str) -> bool:
        return self._engine.owns(partition_of(namespace, id)) and not self._stopped

    async def _work_on(self, namespace: str, id: str) -> None:
        bulk = self.get(namespace, id)
        if bulk is None:
            return
        number, progress, page = await self._pages(bulk)
        self._progress[id] = progress
        after: tuple[int, int] | None = (bulk.upper, bulk.upper)
        if page is not None:
            after = page.end
            if page.done:
                page = None
        while self._goes_on(namespace, id):
            if page is None:
                if after is None or self._stops(namespace, id):
                    await self._end(bulk, number, progress)
                    return
                page = await self._next_page(bulk, number, after)
                await self._keep_page(bulk, number, page)
            done = await self._do(bulk, page, progress)
            if not done.done and not self._stops(namespace, id):
                return  # this process is no longer the engine, or ends
            await self._keep_page(bulk, number, done)
            number, after, page = number + 1, page.end, None
            self._tell(bulk, progress)

    def _stops(self, namespace: str, id: str) -> bool:
        bulk = self.get(namespace, id)
        return bulk is None or bulk.status == "stopping"

    async def _next_page(self, bulk: BulkOperation, number: int, after: tuple[int, int]) -> BulkPage:
        if bulk.query is None:
            first = number * PAGE
            chosen = await select_ids(self._store, bulk.namespace, bulk.ids[first : first + PAGE])
            runs = [
                BulkRun(id, "", "failed", "instance_not_found") if row is None else _planned(row) for id, row in chosen
            ]
            return BulkPage(runs, after if first + PAGE < len(bulk.ids) else None)
        found = await select_runs_of(self._api, bulk.query, after, PAGE)
        return BulkPage([_planned(row) for row in found.runs], found.end)

    async def _do(self, bulk: BulkOperation, page: BulkPage, progress: BulkProgress) -> BulkPage:
        """Command the runs of a page, a few at a time. Returns the page with their outcomes, as far as it came."""
        loop = asyncio.get_running_loop()
        runs = list(page.runs)
        for run in runs:
            progress.add(run)  # those that were not found
        todo = [place for place, run in enumerate(runs) if run.outcome is None]
        for first in range(0, len(todo), AT_ONCE):
            if not self._goes_on(bulk.namespace, bulk.id) or self._stops(bulk.namespace, bulk.id):
                break
            places = todo[first : first + AT_ONCE]
            async with self._one_at_a_time:
                began = loop.time()
                outcomes = await asyncio.gather(
                    *(command_run(self._api, bulk, runs[place]) for place in places), return_exceptions=True
                )
                took = loop.time() - began
                await asyncio.sleep(max(REST * took, SHORTEST_REST))
            for place, outcome in zip(places, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                runs[place] = outcome
                progress.add(outcome)
            self._tell(bulk, progress)
        return replace(page, runs=runs)

    async def _end(self, bulk: BulkOperation, pages: int, progress: BulkProgress) -> None:
        current = self.get(bulk.namespace, bulk.id) or bulk
        ended = replace(
            current.without_work(),
            status="stopped" if current.status == "stopping" else "completed",
            ended_at=self._engine.world.now(),
            pages=pages,
            outcomes=dict(progress.outcomes),
            reasons=dict(progress.reasons),
        )
        await self.kept.put(ended.namespace, ended.id, ended)
        self._progress.pop(bulk.id, None)
        self._tell(ended, progress)

    def _tell(self, bulk: BulkOperation, progress: BulkProgress) -> None:
        told = {"status": bulk.status, "done": progress.done, "total": bulk.expected}
        self._told(bulk.namespace, bulk.id, told)

    async def _keep_page(self, bulk: BulkOperation, number: int, page: BulkPage) -> None:
        body = msgspec.json.encode(page)
        await self._write(RegistryEntry(_kind(bulk, number), bulk.namespace, "", body, counted=False))

    async def _write(self, entry: RegistryEntry) -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def written(error: Unavailable | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._store.keep(entry, written)
        await future


async def command_run(api: Api, bulk: BulkOperation, run: BulkRun) -> BulkRun:
    """Send the command of an operation to one run. Returns what became of it."""
    try:
        reply = await api.call(_command(bulk, run))
    except Refused as refusal:
        return replace(run, outcome="failed", reason=refusal.reason)
    except HistoryDamaged:
        return replace(run, outcome="failed", reason="history_damaged")
    done = command_of(reply)
    return replace(
        run,
        outcome=(done.outcome or "accepted") if done.accepted else "rejected",
        reason=done.rejection_reason,
        command_id=done.command_id,
    )


def _command(bulk: BulkOperation, run: BulkRun) -> Any:
    to: dict[str, Any] = {
        "workflow_id": run.workflow_id,
        "run_id": run.run_id,
        "namespace": bulk.namespace,
        "request_id": f"bulk:{bulk.id}:{run.run_id}",
        "source": bulk.source,
        "context": bulk.context | {"bulk": bulk.id},
    }
    if bulk.action == "signal":
        return tell.SignalWorkflow(signal_name=bulk.signal_name or "", arguments=bulk.arguments, named=bulk.named, **to)
    to |= bulk.fields
    if REASON in OPERATOR_COMMANDS[bulk.action].fields:
        to["reason"] = bulk.reason
    return tell.OPERATOR[bulk.action](**to)


def _planned(row: RunRow) -> BulkRun:
    return BulkRun(row.workflow_id, row.run_id)


def _kind(bulk: BulkOperation, number: int) -> str:
    return f"{KIND}:{bulk.id}:{number}"
