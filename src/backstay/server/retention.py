"""Retention: closed runs that are older than the retention of their namespace are removed, after they have been archived.

An instance is removed with its last run. One with open sends, from it or to it, stays until they have arrived.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from backstay.engine.engine import Engine
from backstay.engine.exports import Exports
from backstay.engine.world import Alarm
from backstay.kernel.decision import RunRow
from backstay.kernel.features.stream import StreamClosed
from backstay.kernel.values import SECOND, STREAMS, Micros
from backstay.protocol.export import exporter
from backstay.protocol.export_file import Exporting
from backstay.server.namespaces import Namespaces
from backstay.server.settings import Settings
from backstay.store import RunFilter, Unavailable

log = logging.getLogger("backstay.server")

DAY = 86_400 * SECOND
SCAN = 100
EVERY = 1_000_000  # all of them


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
        found = self._namespaces.get(namespace)
        return self._engine.world.now() - (30 if found is None else found.retention_days) * DAY

    async def expired(self, namespace: str, limit: int = SCAN) -> list[RunRow]:
        return await self._engine.store.expired(namespace, self.cutoff(namespace), limit)

    async def sweep(self, namespace: str, runs: list[RunRow]) -> list[dict[str, Any]]:
        """Remove these runs. Returns the outcome of each."""
        return [{"run_id": row.run_id, "workflow_id": row.workflow_id} | await self._one(row) for row in runs]

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
        return {"run_id": row.run_id, "workflow_id": row.workflow_id, "outcome": "skipped", "reason": reason}

    async def _one(self, row: RunRow) -> dict[str, Any]:
        stays = self.judge(row)
        if stays is not None:
            return stays
        try:
            await self._archive(row)
        except (OSError, ValueError) as error:
            log.error("run %s could not be archived and stays: %s", row.run_id, error)
            return {"outcome": "failed", "reason": "archive_failed", "message": str(error)}
        gone = await self._remove_streams(row)  # first: without the run they cannot be found
        if gone is True:
            gone = await self._remove(row)
        if isinstance(gone, Unavailable):
            return {"outcome": "failed", "reason": "storage_unavailable", "message": str(gone)}
        return {"outcome": "pruned"} if gone else {"outcome": "skipped", "reason": "undelivered_sends"}

    async def _remove_streams(self, row: RunRow) -> bool | Unavailable:
        """Remove the output streams of a run."""
        place = RunFilter(namespace=row.namespace + STREAMS, business_key=row.run_id, limit=EVERY)
        return await self._remove_all(await self._engine.store.runs(place))

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
                await self._remove_all(parts)

    async def _remove_all(self, parts: list[RunRow]) -> bool | Unavailable:
        """Remove the oldest first, so that an interrupted pass leaves a rest that the next one finds."""
        for part in sorted(parts, key=lambda part: part.number):
            gone = await self._remove(part)
            if isinstance(gone, Unavailable):
                return gone
        return True

    async def _remove(self, row: RunRow) -> bool | Unavailable:
        entry = self._engine.cache.get(row.workflow)
        gone = await self._prune(row)
        if gone is True and entry is not None and entry.instance.run is not None and entry.instance.run.key == row.key:
            self._engine.discard_cached(entry)
        return gone

    async def _prune(self, row: RunRow) -> bool | Unavailable:
        done: asyncio.Future[bool | Unavailable] = self._engine.world.future()
        self._engine.store.prune(row.workflow, row.key, lambda gone: None if done.done() else done.set_result(gone))
        return await done

    async def _archive(self, row: RunRow) -> None:
        directory = self._settings.retention_archive
        if directory is None:
            return
        # Signed like an export, but not redacted: the archive replaces the run.
        how = Exporting(signing_key=self._settings.export_signing_key, key_id=self._settings.export_signing_key_id)
        made = await self._exports.of_run(row, exporter(how))
        try:
            path = Path(directory) / f"{row.namespace}-{row.run_id}.json"
            await self._exports.aside(lambda: _write(path, made.file.pieces()))
        finally:
            made.close()

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


def _write(path: Path, content: Iterable[bytes]) -> None:
    """Write the whole file and sync it to disk, or leave none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    try:
        with unfinished.open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink()
