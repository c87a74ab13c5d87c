"""A nightly pipeline: fetch all sources at once, clean each as it arrives, join, report what went wrong.

The workflow is `async def`; `TaskGroup`, `Semaphore`, `timeout` are asyncio's own, and every `await` of a step is durable.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from backstay import Backstay, activity, info, upsert_search_attributes, workflow

SOURCES = {"north": [3, 1, 2], "south": [6, 5, 4], "west": [9, 8, 7]}
at_once = 0
most_at_once = 0


@dataclass
class Batch:
    source: str
    numbers: list[int]


@dataclass
class Report:
    night: str
    total: int
    cleaned: list[str]
    missing: list[str] = field(default_factory=list[str])


@activity(retries=1, backoff=0, timeout="1s")
async def fetch(source: str) -> Batch:
    global at_once, most_at_once
    at_once += 1
    most_at_once = max(most_at_once, at_once)
    await asyncio.sleep(0.002)
    at_once -= 1
    return Batch(source, SOURCES[source])


@activity
def clean(batch: Batch) -> Batch:
    return Batch(batch.source, sorted(batch.numbers))


@workflow(type="nightly")
async def nightly(night: str, sources: list[str]) -> Report:
    doors = asyncio.Semaphore(2)
    missing: list[str] = []

    async def prepare(source: str) -> Batch | None:
        async with doors:
            try:
                batch = await fetch(source)
            except KeyError:
                missing.append(source)
                return None
        return await clean.step(batch)

    async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
        tasks = [group.create_task(prepare(source)) for source in sources]
    batches = [batch for task in tasks if (batch := task.result()) is not None]
    upsert_search_attributes(missing=len(missing), night=night)
    return Report(
        night=f"{night} ({info().workflow_id})",
        total=sum(sum(batch.numbers) for batch in batches),
        cleaned=[batch.source for batch in batches],
        missing=missing,
    )


def test_all_sources_are_fetched_two_at_a_time_and_joined(database: str) -> None:
    with Backstay(database, [nightly, fetch, clean]) as app:
        report = app.execute(nightly, "night-1", "Monday", list(SOURCES))
        assert report == Report("Monday (night-1)", 45, ["north", "south", "west"])
        history = [event.type for event in app.history("night-1")]
    assert most_at_once == 2
    assert history.count("ActivityCompleted") == 6
    assert "TimerCancelled" in history, "the hour was not needed"


def test_a_source_that_is_missing_does_not_stop_the_night_and_can_be_searched_for(database: str) -> None:
    with Backstay(database, [nightly, fetch, clean]) as app:
        report = app.execute(nightly, "night-2", "Tuesday", ["north", "atlantis"])
        assert (report.total, report.missing) == (6, ["atlantis"])
        app.execute(nightly, "night-3", "Wednesday", ["west"])
        assert [row.workflow_id for row in app.list(search=("missing", 1))] == ["night-2"]
        assert [row.workflow_id for row in app.list(type="nightly")] == ["night-3", "night-2"]
