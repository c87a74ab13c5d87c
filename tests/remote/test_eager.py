"""Code that goes on ahead of the server with a result that the server does not record: what it did is never recorded either."""

from __future__ import annotations

import pytest

from backstay import Signal, WorkflowFailed, activity, wait, workflow
from backstay.sdk.remote.bounds import Bounds

from ..sdk.kit import events, names
from .kit import Remote

ran: list[str] = []
go = Signal[None]("go")


@activity
def large(size: int) -> str:
    return "x" * size


@activity
def pay(text: str) -> str:
    ran.append("pay")
    return "paid"


@activity
def refund() -> str:
    ran.append("refund")
    return "refunded"


@workflow(type="ahead-of-large")
def buys(size: int, waits: bool) -> str:
    try:
        text = large(size)
    except Exception:
        done = refund()
    else:
        done = pay(text[:1])
    if waits:
        wait(go)
    return done


@workflow(type="ahead-and-done")
def ends(size: int) -> int:
    return len(large(size))


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    # As if this worker knew nothing of the server's limits.
    monkeypatch.setattr(Bounds, "breach", lambda self, result: None)


async def test_a_result_that_is_recorded_as_a_failure_takes_what_the_code_did_with_it_along() -> None:
    async with Remote(buys, large, pay, refund) as app:
        handle = await app.start(buys, "b", 3_000_000, True)
        assert await app.execute(buys, "other", 10, False) == "paid"
        await handle.signal(go, None)
        assert await handle.result() == "refunded"
        history = await handle.history()
        assert [event.activity_type for event in events(history, "ActivityScheduled")] == ["large", "refund"]
        (failed,) = events(history, "ActivityFailed")
        assert (failed.failure_category, failed.structural_limit_kind) == ("structural_limit", "payload_size")
    assert sorted(ran) == ["pay", "refund"], (
        "money moved for the other run alone; which of them is first nobody promises"
    )


async def test_a_run_does_not_end_with_a_result_that_was_refused() -> None:
    async with Remote(ends, large) as app:
        with pytest.raises(WorkflowFailed, match="payload_size"):
            await app.execute(ends, "e", 3_000_000)
        assert names(await app.history("e"))[-2:] == ["ActivityFailed", "WorkflowFailed"]
