"""Retention: closed runs that are older than the retention of their namespace are removed, after they have been archived.

An instance is removed with its last run. One with open sends, from it or to it, stays until they have arrived.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from backstay.engine.core.engine import Engine
from backstay.engine.core.world import Alarm
from backstay.engine.reading.exports import Exports
from backstay.kernel.decision import RunRow
from backstay.kernel.features.stream import StreamClosed
from backstay.kernel.values import SECOND, STREAMS, Micros
from backstay.private_files import write_private
from backstay.protocol.export import exporter
from backstay.protocol.export_file import Exporting
from backstay.server.registries.namespaces import Namespaces
from backstay.server.settings import Settings
from backstay.store import Located, RunFilter
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.server")

DAY = 86_400 * SECOND
SCAN = 100
EVERY = 1_000_000  # all of them
EVENTS = 1_000  # of all runs that are removed in one commit

T = TypeVar("T")


class Retention:
    def __init__(self, engine: Engine, exports: Exports, namespaces: Namespaces, settings: Settings) -> None:
        self._engine = engine
        self._exports = exports
        self._namespaces = namespaces
        self._settings = settings
        self._alarm: Alarm | None = None
        self._turn: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._settings.retention_interval_seconds:
            world = self._engine.world
            self._alarm = world.at(world.now() + self._settings.retention_interval_seconds * SECOND, self._ring)

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._turn is not None:
            self._turn.cancel()

    def cutoff(self, namespace: str) -> Micros:
        entry = self._namespaces.get(namespace)
        return self._engine.world.now() - (30 if entry is None else entry.retention_days) * DAY

    async def expired(self, namespace: str, limit: int = SCAN) -> list[RunRow]:
        return await self._engine.store.expired(namespace, self.cutoff(namespace), limit, shards=self._engine.shards())

    async def sweep(self, namespace: str, runs: list[RunRow]) -> list[dict[str, Any]]:
        """Remove these runs, some at a time. Returns the outcome of each."""
        outcomes: list[dict[str, Any]] = []
        for some in _together(runs):
            told = [self.judge(row) or await self._make_ready(row) for row in some]
            leaving = [row for row, stays in zip(some, told, strict=True) if stays is None]
            stay = await self._remove(leaving)
            for row, stays in zip(some, told, strict=True):
                outcomes.append(_named(row) | (stays or _outcome(row, stay)))
        return outcomes

    def judge(self, row: RunRow) -> dict[str, Any] | None:
        """The outcome of a run that stays for now; None if a pass would remove it."""
        reason = None
        entry = self._engine.cache.get(row.workflow)
        if row.closed_at is None or row.closed_at >= self.cutoff(row.namespace):
            reason = "not_expired"
        elif entry is not None and (entry.inflight or entry.code_is_busy):
            reason = "instance_busy"
        if reason is None:
            return None
        return _named(row) | {"outcome": "skipped", "reason": reason}

    async def _make_ready(self, row: RunRow) -> dict[str, Any] | None:
        """Archive a run and remove its output streams, which cannot be found without it. The outcome if it stays."""
        try:
            await self._archive(row)
        except (OSError, ValueError) as error:
            log.error("run %s could not be archived and stays: %s", row.run_id, error)
            return {"outcome": "failed", "reason": "archive_failed", "message": str(error)}
        place = RunFilter(namespace=row.namespace + STREAMS, business_key=row.run_id, limit=EVERY)
        gone = await self._remove(await self._engine.store.runs(place))
        return _outcome(row, gone) if isinstance(gone, Unavailable) else None

    async def expire_streams(self, namespace: str) -> None:
        """Remove closed streams whose retention is over."""
        store, now = self._engine.store, self._engine.world.now()
        place = namespace + STREAMS
        for row in await store.runs(RunFilter(namespace=place, statuses=("expiring",), limit=EVERY)):
            last = await store.last_event(row.key)
            if last is None or not isinstance(last.event, StreamClosed):
                continue
            if now >= last.at + (last.event.retention_seconds or 0) * SECOND:
                parts = await store.runs(RunFilter(namespace=place, workflow_id=row.workflow_id, limit=EVERY))
                await self._remove(parts)

    async def _remove(self, rows: list[RunRow]) -> frozenset[int] | Unavailable:
        """Remove runs, the oldest first, so that an interrupted pass leaves a rest that the next one finds."""
        stay: frozenset[int] = frozenset()
        for some in _together(sorted(rows, key=lambda row: row.number)):
            done: asyncio.Future[frozenset[int] | Unavailable] = self._engine.world.future()
            cached = [(row, self._engine.cache.get(row.workflow)) for row in some]
            self._engine.store.prune([Located(row.workflow, row.key) for row in some], partial(_resolve, done))
            told = await done
            if isinstance(told, Unavailable):
                return told
            for row, entry in cached:
                run = None if entry is None or row.key in told else entry.instance.run
                if entry is not None and run is not None and run.key == row.key:
                    self._engine.discard_cached(entry)
            stay |= told
        return stay

    async def _archive(self, row: RunRow) -> None:
        directory = self._settings.retention_archive
        if directory is None:
            return
        # Signed like an export, but not redacted: the archive replaces the run.
        how = Exporting(signing_key=self._settings.export_signing_key, key_id=self._settings.export_signing_key_id)
        export = await self._exports.of_run(row, exporter(how), only_whole=True)
        try:
            path = Path(directory) / f"{row.namespace}-{row.run_id}.json"
            await self._exports.aside(lambda: _write(path, export.file.pieces()))
        finally:
            export.close()

    def _ring(self) -> None:
        self._turn = self._engine.world.spawn(self._everywhere(), "backstay-retention")

    async def _everywhere(self) -> None:
        try:
            if self._engine.holder and self._engine.down is None:
                for namespace in self._namespaces.all():
                    await self._namespace(namespace.name)
                    await self.expire_streams(namespace.name)
        except Exception:
            log.exception("the retention pass failed; it is tried again")
        self.start()

    async def _namespace(self, name: str) -> None:
        while found := await self.expired(name):
            outcomes = [result["outcome"] for result in await self.sweep(name, found)]
            if "pruned" not in outcomes or len(found) < SCAN:
                return  # the next pass goes on


def _together(rows: Iterable[RunRow]) -> Iterator[list[RunRow]]:
    """Runs that are removed in one commit: not so many that other commits would wait for long."""
    some: list[RunRow] = []
    for row in rows:
        if some and sum(one.length for one in some) + row.length > EVENTS:
            yield some
            some = []
        some.append(row)
    if some:
        yield some


def _named(row: RunRow) -> dict[str, Any]:
    return {"run_id": row.run_id, "workflow_id": row.workflow_id}


def _outcome(row: RunRow, stay: frozenset[int] | Unavailable) -> dict[str, Any]:
    if isinstance(stay, Unavailable):
        return {"outcome": "failed", "reason": "storage_unavailable", "message": str(stay)}
    return {"outcome": "skipped", "reason": "undelivered_sends"} if row.key in stay else {"outcome": "pruned"}


def _resolve(future: asyncio.Future[T], told: T) -> None:
    if not future.done():
        future.set_result(told)


def _write(path: Path, content: Iterable[bytes]) -> None:
    """Write the whole file and sync it to disk, or leave none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    try:
        with write_private(unfinished) as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink()
