"""Code that changed while its runs were open, with a server between: old and new workers, queries, renamed classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay import (
    AsyncClient,
    AsyncWorker,
    Types,
    activity,
    continue_as_new,
    gather,
    info,
    query,
    signal,
    update,
    wait,
    workflow,
)

from ..sdk.kit import events, eventually, names
from .kit import TOKEN, House

HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}


@activity(queue="nobody")
def far(n: int) -> int:
    return n


class Box:
    def __init__(self) -> None:
        self.value = 0

    @signal
    def put(self, value: int) -> None:
        self.value = value

    @query
    def look(self) -> int:
        return self.value


@workflow(type="box")
class First(Box):
    def handle(self) -> int:
        wait(lambda: self.value > 1)
        return self.value


@workflow(type="box")
class OtherPredicate(Box):
    def handle(self) -> int:
        wait(lambda: self.value > 2)
        return self.value


@workflow(type="group")
class Two(Box):
    def handle(self) -> list[int]:
        return gather([far.step(1), far.step(2)])


@workflow(type="group")
class Three(Box):
    def handle(self) -> list[int]:
        return gather([far.step(1), far.step(2), far.step(3)])


@workflow(type="group")
class Nested(Box):
    def handle(self) -> list[Any]:
        return gather(far.step(1), gather.step([far.step(2)]))  # type: ignore[return-value]


async def seen(url: str, path: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, headers=HEADERS) as http:
        return (await http.get(f"/api/workflows/{path}")).json()


async def asked(url: str, path: str) -> tuple[int, dict[str, Any]]:
    async with httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=30) as http:
        answer = await http.post(f"/api/workflows/{path}", json={})
        return answer.status_code, answer.json()


@pytest.mark.needs_links("a question is asked at the node that was reached, and its answer goes back there")
@pytest.mark.contract("COND-06", "QRY-17")
async def test_a_predicate_that_was_changed_blocks_the_run_and_its_queries_until_the_old_one_is_back() -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [First], token=TOKEN):
            run = await client.start(First, "b")

            async def waits() -> bool:
                return "ConditionWaitOpened" in names(await run.history())

            await eventually(waits, "it waits")
        async with AsyncWorker(house.url, [OtherPredicate], token=TOKEN):
            before = await run.history()
            status, refused = await asked(house.url, "b/query/look")
            assert (status, refused["query_blocked_reason"]) == (409, "workflow_replay_blocked")
            assert "predicate has changed" in refused["message"]
            assert await run.history() == before, "a query writes nothing"
            await run.signal("put", 2)

            async def blocked() -> bool:
                return (await seen(house.url, "b/detail"))["liveness_state"] == "workflow_replay_blocked"

            await eventually(blocked, "its task is blocked")
            found = await seen(house.url, "b/detail")
            assert found["replay_block"]["reason"] == "condition_wait_definition_mismatch"
            assert "predicate has changed" in found["replay_block"]["message"]
            (task,) = [task for task in found["tasks"] if task["type"] == "workflow"]
            assert task["transport_state"] == "replay_blocked"
            assert "WorkflowFailed" not in names(await run.history())
        async with AsyncWorker(house.url, [First], token=TOKEN):
            assert await run.result() == 2


@pytest.mark.needs_links("a question is asked at the node that was reached, and its answer goes back there")
@pytest.mark.contract("QRY-17", "BARRIER-02")
@pytest.mark.parametrize("changed", [Three, Nested], ids=["its number", "its nesting"])
async def test_a_query_of_a_run_whose_group_has_another_shape_is_refused(changed: Any) -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [Two, far], token=TOKEN):
            run = await client.start(Two, "g")

            async def scheduled() -> bool:
                return names(await run.history()).count("ActivityScheduled") == 2

            await eventually(scheduled, "all leaves are scheduled though nobody works on the first")
            assert await run.query(Two.look) == 0
        async with AsyncWorker(house.url, [changed, far], token=TOKEN):
            before = await run.history()
            status, refused = await asked(house.url, "g/query/look")
            assert (status, refused["query_blocked_reason"]) == (409, "workflow_replay_blocked")
            assert refused["replay_blocked_reason"] == "history_shape_mismatch"
            assert await run.history() == before


@pytest.mark.needs_links("a worker that another node has registered is known within a second")
@pytest.mark.contract("TYPE-05")
async def test_a_run_that_continues_after_a_rename_is_recorded_under_the_class_as_it_is_now(tmp_path: Path) -> None:
    @workflow
    class Before:
        @signal
        def go(self) -> None: ...

        def handle(self, n: int) -> str:
            wait("next")
            return f"{n}"

    @workflow
    class Shop:
        @signal
        def ring(self, times: int) -> None: ...

        def handle(self, n: int) -> str:
            if n < 2:
                wait("next")
                continue_as_new(Shop, 2)
            return f"{n} {info().type}"

    async with House(str(tmp_path / "app.db")) as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [], types=Types(workflows={"shop.order": Before}), token=TOKEN):
            continuing = await client.start("shop.order", "continuing", 1)

            async def waits() -> bool:
                return "SignalWaitOpened" in names(await continuing.history())

            await eventually(waits, "it waits under its old class")
            (old,) = events(await continuing.history(), "WorkflowStarted")
            assert old.workflow_class.endswith(Before.__qualname__)
        async with AsyncWorker(house.url, [], types=Types(workflows={"shop.order": Shop}), token=TOKEN):
            await continuing.signal("next")
            assert await continuing.result() == "2 shop.order"
            shown = await seen(house.url, "continuing/detail")
            (new,) = events(await continuing.history(), "WorkflowStarted")
            assert (shown["run_number"], shown["workflow_type"]) == (2, "shop.order")
            assert new.workflow_class.endswith(Shop.__qualname__)
            assert shown["declared_signals"] == ["ring", "next"], "the contract is that of the class as it is now"
            contract = shown["declared_signal_contracts"][0]
            assert [one["name"] for one in contract["parameters"]] == ["times"]


@workflow(type="declaring")
class Declaring:
    @signal
    def note(
        self, text: str, number: int, price: float, sure: bool, more: dict[str, Any], maybe: int | None
    ) -> None: ...

    @update(name="set-it")
    def change(self, value: int = 3) -> int:
        return value

    @query
    def look(self, key: str) -> str:
        return key

    def handle(self) -> None:
        wait("end")


@pytest.mark.contract("DECL-02")
async def test_a_contract_lists_parameters_in_order_with_their_types_and_whether_null_is_one_of_them() -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [Declaring], token=TOKEN):
            run = await client.start(Declaring, "d")

            async def waits() -> bool:
                return "SignalWaitOpened" in names(await run.history())

            await eventually(waits, "it waits")
        async with httpx.AsyncClient(base_url=house.url, headers=HEADERS) as http:
            history = (await http.get("/api/workflows/d/history")).json()["events"]
            (payload,) = [e["payload"] for e in history if e["event_type"] == "WorkflowStarted"]
            contract = next(one for one in payload["declared_signal_contracts"] if one["name"] == "note")
            told = [(one["name"], one["type"], one["allows_null"]) for one in contract["parameters"]]
            assert told == [
                *(("text", "string", False), ("number", "int", False), ("price", "float", False)),
                *(("sure", "bool", False), ("more", "object", False), ("maybe", "int", True)),
            ]
            assert all(one["required"] for one in contract["parameters"])
            (changes,) = payload["declared_update_contracts"]
            assert (changes["name"], changes["parameters"][0]["required"]) == ("set-it", False)
            (looks,) = payload["declared_query_contracts"]
            assert (looks["name"], [one["name"] for one in looks["parameters"]]) == ("look", ["key"])
            good: dict[str, Any] = {"text": "a", "number": 1, "price": 1.5, "sure": True, "more": {}, "maybe": None}
            for name, wrong in (("text", 1), ("number", "x"), ("price", "x"), ("sure", 3), ("more", 4), ("text", None)):
                body = {"arguments": good | {name: wrong}}
                refused = await http.post("/api/workflows/d/signal/note", json=body)
                assert refused.status_code == 422, (name, wrong)
                assert name in refused.json()["validation_errors"]
            assert (await http.post("/api/workflows/d/signal/note", json={"arguments": good})).status_code == 202
