"""What operators see of a failure after a worker has raised it: which class it became, and by what that was found."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from backstay import activity, wait, workflow
from backstay.sdk.author.handlers import Signal
from backstay.sdk.worker.registry import Types

from ..sdk.kit import eventually
from .kit import TOKEN, Remote, remote

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
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
    async with httpx.AsyncClient(base_url=app.house.url, headers=headers) as http:
        return (await http.get(f"/api/workflows/p{path}")).json()


RESOLVED = [
    (Types(), Declined, "recorded_class"),
    (Types(exceptions={"card.declined": Declined}), Declined, "exception_type"),
    (Types(exception_class_aliases={f"{HERE}:Declined": Refused}), Refused, "class_alias"),
]


@pytest.mark.contract("FAIL-07")
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
