"""Replay of recorded histories with the current code, to see whether it fits them.

Only workflow code runs, and nothing is written: a read-only live run gets the whole history, as the next task of the run would.
The report shows what would block each run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial

from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.start import STANDALONE
from backstay.kernel.machine import Machine
from backstay.protocol.commands import Inquiry
from backstay.protocol.recorded_run import RecordedRun, of_row
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.replay.code_place import CodePlace, code_place
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.patch_hint import Change, PatchedRun, PatchHint, likely_changes, lines_of
from backstay.sdk.replay.queries import replayed
from backstay.sdk.worker.registry import Registry
from backstay.sdk.worker.watchdog import WORKFLOW_DEADLINE, Interruption, QueryReplay, Watchdog

PAGE = 500


class BlockedRun(Struct, frozen=True, kw_only=True):
    """A run that the current code does not fit. `difference`: the steps of history and of the code, side by side. `place`: the
    line of the code at which they part."""

    workflow_id: str
    workflow_type: str
    run_id: str
    message: str
    difference: list[tuple[str, str]] = []
    step: int | None = None
    place: CodePlace | None = None

    def __str__(self) -> str:
        lines = [f"workflow {self.workflow_id} ({self.workflow_type}) would be blocked: {self.message}"]
        if self.place is not None:
            lines.append(f"  {self.place}: {self.place.text}")
        if self.difference:
            width = max(len("history"), *(len(left) for left, _ in self.difference))
            lines.append(f"  {'history':<{width}} | code")
            lines += [f"  {left:<{width}} | {right}" for left, right in self.difference]
        return "\n".join(lines)


class UnjudgedRun(Struct, frozen=True, kw_only=True):
    """A run that could not be replayed: its code is not here, its history is damaged, or its code does not end."""

    workflow_id: str
    workflow_type: str
    run_id: str
    message: str

    def __str__(self) -> str:
        return f"workflow {self.workflow_id} ({self.workflow_type}) could not be judged: {self.message}"


class Replayed(Struct, frozen=True, kw_only=True):
    """The result of a replay: the number of replayed runs, those that would be blocked, and those that could not be judged."""

    runs: int
    blocked: list[BlockedRun] = []
    unjudged: list[UnjudgedRun] = []

    @property
    def fits(self) -> bool:
        """Whether the code fits every run."""
        return not self.blocked and not self.unjudged

    def __str__(self) -> str:
        said = f"{counted(self.runs, 'run')} replayed, {len(self.blocked)} would be blocked"
        if self.unjudged:
            said += f", {len(self.unjudged)} could not be judged"
        return "\n".join([said, *map(str, self.blocked), *map(str, self.unjudged)])


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class Judge:
    """Replays histories with the code of a registry. It is called on one thread at a time, and closed at the end."""

    def __init__(self, registry: Registry, machine: Machine | None = None) -> None:
        self._registry = registry
        self.machine = machine or Machine()
        self._watchdog = Watchdog(WORKFLOW_DEADLINE)

    def close(self) -> None:
        self._watchdog.stop()

    def all(self, runs: Iterable[RecordedRun]) -> Replayed:
        """Replay each of these runs."""
        count, blocked, unjudged = 0, list[BlockedRun](), list[UnjudgedRun]()
        for run in runs:
            count += 1
            found = self.judge(run)
            if isinstance(found, BlockedRun):
                blocked.append(found)
            elif found is not None:
                unjudged.append(found)
        return Replayed(runs=count, blocked=blocked, unjudged=unjudged)

    def hint(self, run: RecordedRun, blocked: BlockedRun) -> PatchHint | None:
        """Return the `patched()` line that would keep a run that would be blocked; None if no such line is known."""
        if not blocked.difference or blocked.step is None:
            return None
        parted = next(row for row in blocked.difference if row[0].startswith(f"{blocked.step}: "))
        has, asked = parted[0].partition(": ")[2], parted[1]

        def tried(change: Change) -> bool:
            if blocked.place is None:
                return False
            return self.judge(run, partial(PatchedRun.made, change, blocked.place, has)) is None

        change = next(filter(tried, likely_changes(has, asked)), None)
        lines = lines_of(change, run.workflow_type, blocked.place, has, asked)
        return PatchHint(lines, change is not None)

    def judge(self, run: RecordedRun, make: Callable[..., LiveRun] = LiveRun) -> BlockedRun | UnjudgedRun | None:
        """Replay a run. None: the code fits it."""
        definition = self._registry.workflows.get(run.workflow_type)
        if definition is None:
            return unjudged(run, f"no workflow of type {run.workflow_type!r} is registered")
        asked = Inquiry(
            kind="query",
            namespace=run.namespace,
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            run_key=run.key,
            run_number=run.run_number,
            workflow_type=run.workflow_type,
            cursor=0,
            name="",
            arguments=None,
            at=run.history[0].at,
        )

        def replay_it() -> LiveRun:
            return replayed(self.machine, self._registry, definition, asked, run.history, whole=True, make=make)

        try:
            live_run = self._watchdog.here().run(QueryReplay(asked), replay_it)
        except Exception as error:
            return unjudged(run, f"it could not be replayed: {error!r}")
        if isinstance(live_run, Interruption):
            return unjudged(run, live_run.message)
        try:
            block = live_run.block
            if block is None:
                return None
            message = block.message
            if live_run.parked is None and live_run.fatal is not None:
                message += f": it raised {type(live_run.fatal).__name__}: {live_run.fatal}"
            return BlockedRun(
                workflow_id=run.workflow_id,
                workflow_type=run.workflow_type,
                run_id=run.run_id,
                message=message,
                difference=list(block.difference),
                step=block.workflow_sequence,
                place=code_place(live_run, definition),
            )
        finally:
            live_run.abandon()


def unjudged(run: RecordedRun | RunRow, message: str) -> UnjudgedRun:
    return UnjudgedRun(workflow_id=run.workflow_id, workflow_type=run.workflow_type, run_id=run.run_id, message=message)


async def replay(client: AsyncClient, registry: Registry, machine: Machine, ids: Sequence[str]) -> Replayed:
    """Replay the open runs, or the current runs of these workflows, also if they have ended."""
    found, runs = list[BlockedRun | UnjudgedRun](), 0
    judge = Judge(registry, machine)
    try:
        async for row in named_runs(client, ids) if ids else open_runs(client):
            runs += 1
            verdict = await judged(client, judge, row)
            if verdict is not None:
                found.append(verdict)
    finally:
        judge.close()
    return Replayed(
        runs=runs,
        blocked=[run for run in found if isinstance(run, BlockedRun)],
        unjudged=[run for run in found if isinstance(run, UnjudgedRun)],
    )


async def judged(client: AsyncClient, judge: Judge, row: RunRow) -> BlockedRun | UnjudgedRun | None:
    """Read the history of a run and replay it on another thread."""
    try:
        history = await client.history(row.workflow_id, row.run_id)
    except HistoryDamaged as damage:
        return unjudged(row, str(damage))
    return await asyncio.to_thread(judge.judge, of_row(row, history))


async def named_runs(client: AsyncClient, ids: Sequence[str]) -> AsyncIterator[RunRow]:
    for id in ids:
        run = (await client.describe(id)).run
        if run is not None and run.workflow_type != STANDALONE:
            yield run


async def open_runs(client: AsyncClient, before: int | None = None, type: str | None = None) -> AsyncIterator[RunRow]:
    """The open runs of workflow code, newest first: a standalone activity has none."""
    while True:
        page = await client.list(status="open", type=type, before=before, limit=PAGE)
        for row in page:
            if row.workflow_type != STANDALONE:
                yield row
        if len(page) < PAGE:
            return
        before = page[-1].key
