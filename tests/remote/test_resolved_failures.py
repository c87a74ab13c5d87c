"""What operators see of a failure after a worker has raised it: which class it became, and by what that was found."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay import AsyncClient, AsyncWorker, activity, wait, workflow
from backstay.sdk.author.handlers import Signal
from backstay.sdk.worker.registry import Types

from ..sdk.kit import eventually, names
from .kit import TOKEN, House, Remote, remote

HERE = __name__
go = Signal[str]("go")


class Declined(Exception):
    pass


class Refused(Exception):
    """What `Declined` is called by now."""


@activity
def charges() -> None:
    raise Declined("no money")


@workflow
def pays() -> str:
    try:
        charges()
    except Exception as error:
        return type(error).__name__ + wait(go)
    return ""


async def operators_see(app: Remote, path: str) -> Any:
    return await operators_see_at(app.house.url, path)


RESOLVED = [
    (Types(), Declined, "recorded_class"),
    (Types(exceptions={"card.declined": Declined}), Declined, "exception_type"),
    (Types(exception_class_aliases={f"{HERE}:Declined": Refused}), Refused, "class_alias"),
]


@pytest.mark.contract("FAIL-06", "FAIL-07", "FAIL-10")
@pytest.mark.parametrize(("types", "cls", "source"), RESOLVED, ids=[row[2] for row in RESOLVED])
async def test_a_failure_says_as_which_class_it_was_raised_and_how_that_was_found(
    types: Types, cls: type[Exception], source: str
) -> None:
    async with remote(pays, charges, types=types) as app:
        handle = await app.start(pays, "p")

        async def caught() -> Any:
            found = await operators_see(app, "/detail")
            return found if any(failure["handled"] for failure in found["exceptions"]) else None

        found = await eventually(caught, "the failure is caught")
        (failure,) = found["exceptions"]
        assert (failure["resolved_class"], failure["resolution_source"]) == (f"{HERE}:{cls.__name__}", source)
        assert (failure["exception_class"], failure["exception_replay_blocked"]) == (f"{HERE}:Declined", False)
        exported = await operators_see(app, f"/runs/{found['run_id']}/history/export")
        assert exported["failures"] == found["failures"]
        (described,) = (await app.describe("p")).failures
        assert (described.resolved_class, described.resolution_source) == (failure["resolved_class"], source)
        await handle.signal(go, "!")
        assert await handle.result() == f"{cls.__name__}!"


class NoException:
    pass


UNRESOLVED: dict[str, tuple[Types, str]] = {
    "unresolved": (Types(), "the class is gone, and no alias names another"),
    "misconfigured": (Types(exceptions={"card.declined": NoException}), "the alias names something else"),  # type: ignore[dict-item]
}


@pytest.mark.contract("FAIL-07", "FAIL-08", "FAIL-09")
@pytest.mark.parametrize("source", UNRESOLVED)
async def test_a_failure_that_no_worker_can_restore_blocks_its_run_and_says_so_to_operators(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker has caught the failure. Then it goes, and the next one cannot make the class of it."""
    types, why = UNRESOLVED[source]
    alias: dict[str, Any] = {} if source == "unresolved" else {"types": Types(exceptions={"card.declined": Declined})}
    async with House(str(tmp_path / "app.db")) as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [pays, charges], token=TOKEN, **alias):
            await client.start(pays, "p")
            await eventually(lambda: reached(client, "SignalWaitOpened"), "it has caught the failure")
        if source == "unresolved":
            monkeypatch.delattr(sys.modules[HERE], "Declined")
        shown = partial(operators_see_at, house.url)
        async with AsyncWorker(house.url, [pays, charges], token=TOKEN, types=types, guard="off"):
            await client.handle(pays, "p").signal(go, "!")
            await eventually(lambda: is_blocked(house.url), why)
            found = await shown("/detail")
            (failure,) = found["exceptions"]
            assert (failure["resolution_source"], failure["exception_replay_blocked"]) == (source, True)
            assert (failure["resolved_class"], failure["message"]) == (None, "no money")
            assert failure["resolution_error"]
            block = found["replay_block"]
            assert block["type"] == "UnresolvedWorkflowFailureException"
            assert (block["exception_replay_blocked"], block["resolution_source"]) == (True, source)
            (task,) = [task for task in found["tasks"] if task["type"] == "workflow"]
            assert (task["transport_state"], task["replay_blocked"]) == ("replay_blocked", True)
            assert found["status"] == "waiting", "no broad except has seen it, and the run has not failed"
            assert "WorkflowFailed" not in names(await client.history("p"))
        monkeypatch.undo()
        async with AsyncWorker(house.url, [pays, charges], token=TOKEN, **alias):
            await client.handle(pays, "p").repair()
            assert await client.handle(pays, "p").result() == "Declined!"


async def reached(client: AsyncClient, event: str) -> bool:
    return event in names(await client.history("p"))


async def operators_see_at(url: str, path: str) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:
        return (await http.get(f"/api/workflows/p{path}")).json()


async def is_blocked(url: str) -> bool:
    return (await operators_see_at(url, ""))["liveness_state"] == "workflow_replay_blocked"
