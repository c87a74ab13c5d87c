"""The definition of a run is that of the code that runs it: clients, workers and deploys in any order, over HTTP."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

from backstay import (
    AsyncClient,
    AsyncWorker,
    RequestRefused,
    Signal,
    activity,
    patched,
    query,
    signal,
    update,
    version,
    wait,
    workflow,
)
from backstay.kernel.features.signal_rejection import SignalRejected
from backstay.kernel.features.start import WorkflowDefinitionAdopted, started_of
from backstay.sdk.client.handle import AsyncHandle

from ..sdk.kit import eventually, names
from .kit import TOKEN, House

go = Signal[str]("go")


@activity(type="definitions.pack")
def pack(order: str) -> str:
    return f"old path of {order}"


@activity(type="definitions.fixed")
def fixed(order: str) -> str:
    return f"new path of {order}"


def shop(release: str) -> Any:
    """The same workflow in three releases: before a change, with it, and without what was before."""

    @workflow(type="definitions.order", signals=[go])
    def old(order: str) -> str:
        packed = pack(order)
        wait(go)
        return packed

    @workflow(type="definitions.order", signals=[go])
    def new(order: str) -> str:
        packed = fixed(order) if patched("fix") else pack(order)
        wait(go)
        return packed

    @workflow(type="definitions.order", signals=[go])
    def newest(order: str) -> str:
        version("fix", min=1, max=1)
        packed = fixed(order)
        wait(go)
        return packed

    return {"old": old, "new": new, "newest": newest}[release]


@dataclass
class Note:
    text: str
    stars: int


@workflow(type="definitions.claim")
class Claim:
    def __init__(self) -> None:
        self.by: str | None = None
        self.cents = 0
        self.notes: list[str] = []
        self.title = "claim"

    @signal
    def paid(self, by: str) -> None:
        self.by = by

    @signal
    def note(self, note: Note) -> None:
        self.notes.append(f"{note.text} {note.stars}")

    @update
    def amend(self, cents: int) -> int:
        before, self.cents = self.cents, cents
        return before

    @amend.validator
    def _positive(self, cents: int) -> None:
        if cents <= 0:
            raise ValueError("must be positive")

    @update
    def rename(self, title: str) -> str:
        before, self.title = self.title, title
        return before

    @query
    def told(self) -> list[str]:
        return self.notes

    def handle(self, cents: int) -> str:
        self.cents = cents
        wait(lambda: self.by)
        return f"{self.by} {self.cents} {','.join(self.notes)}"


class Place(SimpleNamespace):
    client: AsyncClient

    @asynccontextmanager
    async def worker(self, *things: Any) -> AsyncIterator[AsyncWorker]:
        async with AsyncWorker(self.house.url, things, token=TOKEN, drain=0.3) as worker:
            await eventually(lambda: any(list(server.worker_links) for server in self.house.servers), "a link")
            yield worker


@asynccontextmanager
async def opened(patience: float = 0.5) -> AsyncIterator[Place]:
    async with House(query_timeout_seconds=patience) as house, AsyncClient(house.url, token=TOKEN) as client:
        yield Place(house=house, client=client)


def at_a_place(test: Any) -> Any:
    """The test, with a server and a client of it as its first argument."""
    signature = inspect.signature(test)

    @wraps(test)
    async def run(**given: Any) -> None:
        async with opened() as place:
            await test(place, **given)

    run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return run


async def begun(run: AsyncHandle[Any]) -> list[str]:
    """The history of a run whose first task is done."""

    async def found() -> list[str]:
        told = names(await run.history())
        return told if len(told) > 2 else []

    return await eventually(found, "the first task")


async def adoptions(run: AsyncHandle[Any]) -> list[WorkflowDefinitionAdopted]:
    return [entry.event for entry in await run.history() if isinstance(entry.event, WorkflowDefinitionAdopted)]


@pytest.mark.contract("VER-03", "DECL-01")
@pytest.mark.parametrize("release", ["new", "newest"])
@pytest.mark.parametrize("first", ["client", "worker"])
@at_a_place
async def test_a_run_that_an_old_client_starts_takes_the_path_of_the_new_worker(
    place: Place, release: str, first: str
) -> None:
    old, new = shop("old"), shop(release)
    if first == "client":
        run = await place.client.start(old, "o", "7")
        await run.signal(go, "x")
    async with place.worker(new, pack, fixed):
        if first == "worker":
            run = await place.client.start(old, "o", "7")
            await run.signal(go, "x")
        assert await run.result(timeout=10) == "new path of 7"
        # The snapshot is that of the live worker, so nothing is left to adopt.
        assert len(await adoptions(run)) == (1 if first == "client" else 0)


@pytest.mark.contract("VER-03", "VER-04")
@at_a_place
async def test_a_run_that_an_old_worker_has_begun_stays_on_the_old_path_with_every_caller(place: Place) -> None:
    old, new = shop("old"), shop("new")
    run = await place.client.start(new, "o", "7")
    async with place.worker(old, pack):
        await begun(run)
        await eventually(lambda: _is(run, "SignalWaitOpened"), "the code waits")
    async with place.worker(new, pack, fixed):
        await run.signal(go, "x")
        assert await run.result(timeout=10) == "old path of 7"
        (event,) = await adoptions(run)
        assert event.workflow_definition_fingerprint == old.definition.fingerprint
        assert event.declared_change_ids == []


async def _is(run: AsyncHandle[Any], name: str) -> bool:
    return name in names(await run.history())


@at_a_place
async def test_the_same_definition_is_recorded_once(place: Place) -> None:
    new = shop("new")
    async with place.worker(new, pack, fixed):
        run = await place.client.start(new, "o", "7")
        await run.signal(go, "x")
        assert await run.result(timeout=10) == "new path of 7"
        assert await adoptions(run) == []


@at_a_place
async def test_a_run_without_a_definition_is_defined_by_its_worker(place: Place) -> None:
    run = await place.client.start("definitions.claim", "c", 5)
    started = started_of(await run.history())
    assert started is not None
    assert started.declared_signals is None
    async with place.worker(Claim):
        await begun(run)
        started = started_of(await run.history())
        assert started is not None
        assert started.declared_signals == ["paid", "note"]
        assert started.declared_update_validators == ["amend"]
        with pytest.raises(RequestRefused, match="declared are: paid, note"):
            await run.signal("nope")
        await run.signal("paid", "ann")
        assert await run.result(timeout=10) == "ann 5 "


@pytest.mark.contract("SIG-01", "SIG-04", "SIG-05")
@at_a_place
async def test_signals_that_do_not_fit_the_code_are_rejected_when_it_comes_and_stop_nothing(place: Place) -> None:
    run = await place.client.start("definitions.claim", "c", 5)
    await run.signal("nope")
    await run.signal("paid")
    await run.signal("note", {"text": "good"})
    await run.signal("note", {"text": "better", "stars": 5})
    await run.signal("paid", "ann")
    async with place.worker(Claim):
        assert await run.result(timeout=10) == "ann 5 better 5"
    rejected = {
        entry.event.signal_name: (entry.event.rejection_reason, entry.event.validation_errors)
        for entry in await run.history()
        if isinstance(entry.event, SignalRejected)
    }
    assert rejected["nope"] == ("unknown_signal", {})
    assert rejected["paid"] == ("invalid_signal_arguments", {"by": ["is missing"]})
    assert rejected["note"][0] == "invalid_signal_arguments"
    assert "stars" in rejected["note"][1]["arguments"][0]
    shown = [(view.signal_name, view.status) for view in (await run.describe()).signals]
    assert shown == [
        ("nope", "rejected"),
        ("paid", "rejected"),
        ("note", "rejected"),
        ("note", "applied"),
        ("paid", "applied"),
    ]


@at_a_place
async def test_a_signal_of_a_class_that_does_not_fit_is_rejected_and_a_replay_leaves_it_out(place: Place) -> None:
    async with place.worker(Claim):
        run = await place.client.start(Claim, "c", 5)
        await begun(run)
        await run.signal("note", {"stars": "many"})
        await run.signal("note", {"text": "fine", "stars": 1})
        assert await run.query(Claim.told) == ["fine 1"]
    async with place.worker(Claim):
        assert await run.query(Claim.told) == ["fine 1"]
        await run.signal(Claim.paid, "bo")
        assert await run.result(timeout=10) == "bo 5 fine 1"


@pytest.mark.parametrize("known", [False, True], ids=["started by type", "started by code"])
@at_a_place
async def test_no_update_is_accepted_that_its_validator_was_not_asked_about(place: Place, known: bool) -> None:
    run = await place.client.start(Claim if known else "definitions.claim", "c", 5)
    with pytest.raises(
        RequestRefused, match=r"no worker that runs 'definitions.claim' is alive on queue 'default'"
    ) as no:
        await run.submit("amend", -7)
    assert no.value.fields["outcome"] == "rejected_workflow_definition_unavailable"
    told = (await run.describe()).actions
    assert told is not None
    assert (told.can_query, told.can_update) == (False, known), "one of the recorded updates has no validator"
    if known:  # the run has recorded that this one has no validator
        renamed = await run.submit("rename", "cy")
    async with place.worker(Claim):
        with pytest.raises(RequestRefused, match="must be positive"):
            await run.submit("amend", -7)
        assert await run.update(Claim.amend, 7) == 5
        if known:
            assert await renamed.result(timeout=10) == "claim"
        await run.signal(Claim.paid, "ann")
        assert await run.result(timeout=10) == "ann 7 "


@at_a_place
async def test_an_update_waits_for_the_worker_that_comes_in_time(place: Place) -> None:
    for server in place.house.servers:
        server.questions._timeout = 10.0
    run = await place.client.start("definitions.claim", "c", 5)
    bad, good, free = (
        asyncio.ensure_future(run.submit(name, said)) for name, said in (("amend", -7), ("amend", 7), ("rename", "di"))
    )
    await eventually(lambda: sum(len(server.questions.waiting) for server in place.house.servers) == 3, "the questions")
    async with place.worker(Claim):
        with pytest.raises(RequestRefused, match="must be positive"):
            await bad
        assert await (await good).result(timeout=10) == 5
        assert await (await free).result(timeout=10) == "claim"
