"""What authors import: the same in both forms, with `await` and without."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from tools.sync_client import CLIENT, MODULES, SyncModule, made

import backstay
from backstay import (
    AsyncBackstay,
    AsyncClient,
    AsyncWorker,
    Backstay,
    Client,
    StructuralLimitExceeded,
    Worker,
    WorkflowFailed,
    activity,
    workflow,
)
from backstay.kernel.limits import Limits
from backstay.sdk.client.schedules import AsyncScheduleHandle
from backstay.sdk.client.sync_schedules import ScheduleHandle

from .kit import memory

# What handles and workers use of the async client, and what an app consists of.
INSIDE = {
    "outcome",
    "restored",
    "request_id",
    "update_seconds",
    "reader",
    "exceptions",
    "registry",
    "access",
    "queues",
    "link",
}
INSIDE |= {"drain", "hurry"}  # of a worker, for whoever ends it by a signal


def pairs() -> list[tuple[Any, Any]]:
    client, server = AsyncClient("http://127.0.0.1:1"), "http://127.0.0.1:1"
    app, async_app = Backstay(":memory:"), AsyncBackstay(":memory:")
    handles = app._client.handle(None, "x"), async_app.handle(None, "x")
    sync_handle = app.handle(None, "x")
    return [
        (app, async_app),
        (Client(client, app._bridge), client),
        (sync_handle, handles[1]),
        (sync_handle.submitted("u", "1"), handles[1].submitted("u", "1")),
        (app.schedules, async_app.schedules),
        (ScheduleHandle, AsyncScheduleHandle),
        (Worker(server, [activity(type="a")(print_nothing)]), AsyncWorker(server, [activity(type="a")(print_nothing)])),
    ]


def print_nothing() -> None: ...


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")} - INSIDE


# Opening and running differ: `with` or `async with`, a signal or a cancellation.
OWN_WORDS = {"open", "run"}


@pytest.mark.parametrize("which", range(7))
async def test_both_forms_offer_the_same_methods_with_the_same_signatures_and_docstrings(which: int) -> None:
    plain, awaited = pairs()[which]
    assert public(plain) - {"id"} == public(awaited) - {"id"}
    for name in public(plain) & public(awaited):
        mine, theirs = getattr(plain, name), getattr(awaited, name)
        if callable(mine):
            assert signature_of(mine) == signature_of(theirs), name
            assert name in OWN_WORDS or inspect.getdoc(mine) == inspect.getdoc(theirs), name


def signature_of(method: Any) -> str:
    """Return the signature of a method, the same for both forms: `AsyncHandle[R]` is `Handle[R]` without `await`."""
    return str(inspect.signature(method)).replace("Async", "")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_the_client_without_await_is_the_one_made_from_the_async_client(module: SyncModule) -> None:
    assert (CLIENT / module.name).read_text("utf-8") == made(module), "run `make reference`"


def test_both_apps_take_the_same_options() -> None:
    from backstay.sdk.embedded.app import BackstayOptions

    taken = set(inspect.signature(AsyncBackstay).parameters) - {"path", "register", "world", "unknown"}
    assert taken == set(BackstayOptions.__annotations__)


def test_completion_finds_every_public_name() -> None:
    assert set(dir(backstay)) >= set(backstay.__all__)


async def test_too_much_is_an_error_that_code_and_callers_can_catch() -> None:
    @activity
    def large() -> str:
        return "x" * 2_000

    @workflow
    def catches() -> str:
        try:
            return large()
        except StructuralLimitExceeded as error:
            return str(error)

    @workflow
    def returns_it() -> str:
        return "x" * 2_000

    async with memory(catches, returns_it, large, limits=Limits(payload_size=1_000)) as app:
        assert (await app.execute(catches, "c")).endswith(
            "; store the large value elsewhere, and pass a reference to it"
        )
        with pytest.raises(WorkflowFailed) as caught:
            await app.execute(returns_it, "r")
        assert isinstance(caught.value.__cause__, StructuralLimitExceeded)


@workflow(type="shop.nothing")
def nothing() -> int:
    return 1


async def test_the_repr_of_a_public_object_says_what_it_is() -> None:
    app = AsyncBackstay(":memory:", register=[nothing])
    assert re.fullmatch(r"<AsyncBackstay :memory:: not open; registered: .*shop\.nothing>", repr(app))
    async with app:
        handle = await app.start(nothing, "n-1")
        assert repr(handle) == f"<workflow shop.nothing 'n-1', started as run {handle.run_id}>"
        assert repr(handle.of_run(handle.run_id or "")).endswith(f"only run {handle.run_id}>")
        assert repr(app.handle(None, "n-1")) == "<workflow 'n-1'>"
        assert ": the engine; " in repr(app)
        await handle.result()
        found = await handle.describe()
        assert re.fullmatch(
            r"<workflow shop\.nothing 'n-1': completed, run 1 since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC>", repr(found)
        )
        assert found.run is not None
        assert found.run.closed is not None
        assert found.run.started <= found.run.closed
        assert re.fullmatch(
            r"<run 1 of shop\.nothing 'n-1' \(.*\): completed, started .*, completed .* UTC>", repr(found.run)
        )
    assert repr(Backstay("postgresql://ann:secret@db/x")).startswith("<Backstay postgresql://ann@db/x: not open")
    client = AsyncClient("http://127.0.0.1:1", token="secret")
    assert repr(client) == "<AsyncClient of http://127.0.0.1:1, namespace default>"
