"""Replay of recorded histories with the current code, to check that it fits the open runs.

Only workflow code runs, and nothing is written: a read-only live run gets each history as far as its tasks had seen it. The
report shows what would block each run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.start import STANDALONE
from backstay.kernel.machine import Machine
from backstay.protocol.commands import Inquiry
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.replay.queries import replayed
from backstay.sdk.worker.registry import Registry

PAGE = 500


class BlockedRun(Struct, frozen=True, kw_only=True):
    """A run that the current code does not fit. `difference`: the steps of history and of the code, side by side."""

    workflow_id: str
    workflow_type: str
    run_id: str
    message: str
    difference: list[tuple[str, str]] = []

    def __str__(self) -> str:
        lines = [f"workflow {self.workflow_id} ({self.workflow_type}) would be blocked: {self.message}"]
        if self.difference:
            width = max(len("history"), *(len(left) for left, _ in self.difference))
            lines.append(f"  {'history':<{width}} | code")
            lines += [f"  {left:<{width}} | {right}" for left, right in self.difference]
        return "\n".join(lines)


class Replayed(Struct, frozen=True, kw_only=True):
    """The result of a replay: the number of replayed runs, and those that would be blocked."""

    runs: int
    blocked: list[BlockedRun]

    def __str__(self) -> str:
        said = f"{self.runs} runs replayed, {len(self.blocked)} would be blocked"
        return "\n".join([said, *map(str, self.blocked)])


async def replay(client: AsyncClient, registry: Registry, machine: Machine, ids: Sequence[str]) -> Replayed:
    """Replay the open runs, or the current runs of these workflows, also if they have ended."""
    blocked: list[BlockedRun] = []
    runs = 0
    async for row in _named(client, ids) if ids else _open(client):
        if row.workflow_type == STANDALONE:
            continue  # a standalone activity has no workflow code
        runs += 1
        history = await client.history(row.workflow_id, row.run_id)
        found = await asyncio.to_thread(_check, registry, machine, row, history)
        if found is not None:
            blocked.append(found)
    return Replayed(runs=runs, blocked=blocked)


async def _named(client: AsyncClient, ids: Sequence[str]) -> AsyncIterator[RunRow]:
    for id in ids:
        run = (await client.describe(id)).run
        if run is not None:
            yield run


async def _open(client: AsyncClient) -> AsyncIterator[RunRow]:
    before: int | None = None
    while True:
        page = await client.list(status="open", before=before, limit=PAGE)
        for row in page:
            yield row
        if len(page) < PAGE:
            return
        before = page[-1].key


def _check(registry: Registry, machine: Machine, row: RunRow, history: list[Recorded]) -> BlockedRun | None:
    definition = registry.workflows.get(row.workflow_type)
    if definition is None:
        return _blocked(row, f"no workflow of type {row.workflow_type!r} is registered")
    asked = Inquiry(
        kind="query",
        namespace=row.namespace,
        workflow_id=row.workflow_id,
        run_id=row.run_id,
        run_key=row.key,
        run_number=row.number,
        workflow_type=row.workflow_type,
        cursor=0,
        name="",
        arguments=None,
        at=row.started_at,
    )
    try:
        live_run = replayed(machine, registry, definition, asked, history)
    except Exception as error:
        return _blocked(row, f"it could not be replayed: {error!r}")
    block = live_run.block
    live_run.abandon()
    return None if block is None else _blocked(row, block.message, block.difference)


def _blocked(row: RunRow, message: str, difference: Sequence[tuple[str, str]] | None = None) -> BlockedRun:
    return BlockedRun(
        workflow_id=row.workflow_id,
        workflow_type=row.workflow_type,
        run_id=row.run_id,
        message=message,
        difference=list(difference or ()),
    )
