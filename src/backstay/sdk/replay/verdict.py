"""The verdict of code on the open runs of a database or server, before the code is deployed.

Open runs are read page by page, newest first, and each history is forgotten when it has been replayed. So memory is bounded by the
histories of one batch and by the differences that are kept. `position` says how far the verdict has come, so it can go on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.views.run_query import OPEN as OPEN_STATUSES
from backstay.kernel.views.run_query import RunQuery
from backstay.protocol.recorded_run import RecordedRun, of_row
from backstay.protocol.requests import OPEN, ListWorkflows
from backstay.protocol.run_lists import CountRuns
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.errors import WorkflowNotFound
from backstay.sdk.replay.code_place import CodePlace
from backstay.sdk.replay.patch_hint import PatchHint
from backstay.sdk.replay.replayer import BlockedRun, Judge, UnjudgedRun, counted, named_runs, open_runs, unjudged

BATCH = 16  # histories that are read at a time
KEPT = 200  # differences, and reasons why runs could not be judged, that are told apart


class Difference(Struct, kw_only=True):
    """Runs that would be blocked in the same way, with one of them as the example."""

    workflow_type: str
    message: str
    difference: list[tuple[str, str]]
    place: CodePlace | None
    runs: int
    example: str
    example_run_id: str
    hint: PatchHint | None = None


class Reason(Struct, kw_only=True):
    """Runs that could not be judged for the same reason."""

    workflow_type: str
    message: str
    runs: int
    example: str
    example_run_id: str


class Verdict(Struct, kw_only=True):
    """`named`: it is about runs that were named, which may have ended, and not about all open runs. `other_blocked`,
    `other_unjudged`: runs beyond the first differences and reasons that are told apart. `ended`: runs that would have been
    blocked, and ended meanwhile. `position`: the key of the last run that was judged. `code`: what judged them."""

    code: str = ""
    named: bool = False
    runs: int = 0
    blocked: int = 0
    unjudged: int = 0
    ended: int = 0
    differences: list[Difference] = []
    reasons: list[Reason] = []
    other_blocked: int = 0
    other_unjudged: int = 0
    position: int | None = None
    finished: bool = False

    @property
    def fit(self) -> int:
        return self.runs - self.blocked - self.unjudged

    @property
    def fits(self) -> bool:
        """Whether the code fits every run."""
        return self.fit == self.runs

    def __str__(self) -> str:
        told = f" ({counted(len(self.differences), 'difference')})" if self.blocked else ""
        return (
            f"{counted(self.runs, 'run' if self.named else 'open run')}: {self.fit:,} fit, {self.blocked:,} would be blocked{told},"
            f" {self.unjudged:,} could not be judged"
        )

    def add(self, found: BlockedRun | UnjudgedRun) -> Difference | None:
        """Count a run that does not fit. Returns its difference if no earlier run had it."""
        if isinstance(found, UnjudgedRun):
            self._add_unjudged(found)
            return None
        self.blocked += 1
        for known in self.differences:
            if _alike(known, found):
                known.runs += 1
                return None
        if len(self.differences) >= KEPT:
            self.other_blocked += 1
            return None
        made = Difference(
            workflow_type=found.workflow_type,
            message=found.message,
            difference=found.difference,
            place=found.place,
            runs=1,
            example=found.workflow_id,
            example_run_id=found.run_id,
        )
        self.differences.append(made)
        return made

    def _add_unjudged(self, found: UnjudgedRun) -> None:
        self.unjudged += 1
        for known in self.reasons:
            if (known.workflow_type, known.message) == (found.workflow_type, found.message):
                known.runs += 1
                return
        if len(self.reasons) >= KEPT:
            self.other_unjudged += 1
            return
        self.reasons.append(
            Reason(
                workflow_type=found.workflow_type,
                message=found.message,
                runs=1,
                example=found.workflow_id,
                example_run_id=found.run_id,
            )
        )


def _alike(known: Difference, found: BlockedRun) -> bool:
    """Whether a run is blocked in the same way: by the same steps at the same line, whatever their numbers are in a loop."""
    return (known.workflow_type, known.place, _parted(known.message)) == (
        found.workflow_type,
        found.place,
        _parted(found.message),
    )


def _parted(message: str) -> str:
    head, colon, rest = message.partition(": ")
    return rest if colon and head.startswith("replay diverged at step ") else message


async def judge_open_runs(
    client: AsyncClient,
    judge: Judge,
    verdict: Verdict,
    *,
    type: str | None = None,
    ids: Sequence[str] = (),
    after_each: Callable[[Verdict], None] = lambda _: None,
) -> None:
    """Judge the open runs that the verdict has not come to, or the current runs of these ids, also if they have ended. `after_each` is called after each batch."""
    verdict.named = bool(ids)
    rows = named_runs(client, ids) if ids else open_runs(client, verdict.position, type)
    async for batch in _batches(rows):
        await _judge(client, judge, verdict, batch)
        verdict.position = batch[-1].key
        after_each(verdict)
    verdict.finished = True
    after_each(verdict)


async def count_open_runs(client: AsyncClient, type: str | None = None) -> int:
    """How many open runs there are to judge; at least so many if they are very many."""
    fields: dict[str, tuple[str, ...]] = {"status": OPEN_STATUSES}
    if type is not None:
        fields["workflow_type"] = (type,)
    found = await client.call(CountRuns(query=RunQuery(namespace=client.namespace, fields=fields)))
    return found.total


async def _judge(client: AsyncClient, judge: Judge, verdict: Verdict, rows: Sequence[RunRow]) -> None:
    histories = await asyncio.gather(*(_history(client, row) for row in rows))
    readable = [
        (row, of_row(row, history)) for row, history in zip(rows, histories, strict=True) if isinstance(history, list)
    ]
    found = await asyncio.to_thread(lambda: [judge.judge(run) for _, run in readable])
    verdict.runs += len(rows)
    for unread in histories:
        if isinstance(unread, UnjudgedRun):
            verdict.add(unread)
        elif unread is None:
            verdict.runs -= 1
            verdict.ended += 1
    for (row, run), one in zip(readable, found, strict=True):
        if one is None:
            continue
        if isinstance(one, BlockedRun) and not verdict.named and not await _is_open(client, row):
            verdict.runs -= 1
            verdict.ended += 1
            continue
        await _add(judge, verdict, one, run)


async def _add(judge: Judge, verdict: Verdict, found: BlockedRun | UnjudgedRun, run: RecordedRun) -> None:
    difference = verdict.add(found)
    if difference is not None and isinstance(found, BlockedRun):
        difference.hint = await asyncio.to_thread(judge.hint, run, found)


async def _history(client: AsyncClient, row: RunRow) -> list[Recorded] | UnjudgedRun | None:
    """The history of a run; None if it has ended and was removed since it was listed."""
    try:
        return await client.history(row.workflow_id, row.run_id)
    except WorkflowNotFound:
        return None
    except HistoryDamaged as damage:
        return unjudged(row, str(damage))


async def _is_open(client: AsyncClient, row: RunRow) -> bool:
    return bool(await client.call(ListWorkflows(namespace=row.namespace, run_id=row.run_id, statuses=OPEN, limit=1)))


async def _batches(rows: AsyncIterator[RunRow]) -> AsyncIterator[list[RunRow]]:
    batch: list[RunRow] = []
    async for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
