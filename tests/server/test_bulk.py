"""Bulk operations, as operators see them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay.server.operators import bulk as bulks
from backstay.server.operators.bulk_records import BulkOperation

from ..store.seam import connection_of
from .kit import Api, serving


async def many(api: Api, count: int, *, queue: str = "q", first: int = 0) -> None:
    for number in range(first, first + count):
        await api.start(f"o-{number}", task_queue=queue, business_key="even" if number % 2 == 0 else "odd")


async def ended(api: Api, bulk_id: str) -> dict[str, Any]:
    """The operation once it has ended."""
    async with asyncio.timeout(60):
        while True:
            told = (await api.control("GET", f"/bulk/{bulk_id}")).json()
            if told["ended_at"] is not None:
                return told
            await asyncio.sleep(0.01)


async def begin(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.control("POST", "/bulk", body)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def results(api: Api, bulk_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token: str | None = ""
    while token is not None:
        page = (await api.control("GET", f"/bulk/{bulk_id}", params={"next_page_token": token})).json()
        found += page["results"]
        token = page["next_page_token"]
    return found


async def statuses(api: Api, count: int) -> list[str]:
    return [(await api.describe(f"o-{number}"))["status"] for number in range(count)]


async def test_a_bulk_operation_takes_the_runs_of_its_filter_and_no_others() -> None:
    async with serving() as api:
        await many(api, 250)
        begun = await begin(
            api, action="terminate", filter={"business_key": "even"}, reason="too many", expected_count=125
        )
        assert (begun["status"], begun["total"], begun["done"]) == ("running", 125, 0)
        told = await ended(api, begun["bulk_id"])
        assert (told["status"], told["done"], told["accepted"], told["remaining"]) == ("completed", 125, 125, 0)
        assert told["outcomes"] == {"terminated": 125}
        done = await results(api, begun["bulk_id"])
        assert sorted(int(run["workflow_id"][2:]) for run in done) == list(range(0, 250, 2))
        assert all(run["command_id"] for run in done)
        found = await statuses(api, 250)
        assert [status == "terminated" for status in found] == [number % 2 == 0 for number in range(250)]
        listed = (await api.control("GET", "/bulk")).json()
        assert [one["bulk_id"] for one in listed["bulk_operations"]] == [begun["bulk_id"]]


async def test_operations_are_listed_page_by_page_the_newest_first() -> None:
    async with serving() as api:
        await many(api, 1)
        begun = [(await begin(api, action="pause", ids=["o-0"]))["bulk_id"] for _ in range(5)]
        found: list[str] = []
        token: str | None = ""
        while token is not None:
            page = (await api.control("GET", "/bulk", params={"page_size": 2, "next_page_token": token})).json()
            assert page["bulk_count"] == 5
            found += [one["bulk_id"] for one in page["bulk_operations"]]
            token = page["next_page_token"]
        assert found == begun[::-1]
        assert (await api.control("GET", "/bulk", params={"next_page_token": "x"})).status_code in (400, 422)


async def test_each_command_says_which_operation_it_is_of_and_who_asked() -> None:
    async with serving() as api:
        await many(api, 2)
        begun = await begin(api, action="pause", filter={"queue": "q"}, reason="why")
        await ended(api, begun["bulk_id"])
        key = await api.server.store.find("default", "o-1")
        assert key is not None
        command = (await api.server.store.commands(key))[-1]
        assert (command.command_type, command.context["bulk"]) == ("pause", begun["bulk_id"])
        assert command.context["request"]["route"] == "/api/bulk"
        assert command.request_id is not None
        assert begun["bulk_id"] in command.request_id


async def test_a_dry_run_counts_and_shows_ten_examples_and_stores_nothing() -> None:
    async with serving() as api:
        await many(api, 30)
        before = everything(api)
        body = {"action": "cancel", "filter": {"business_key": "odd"}}
        for path, more in (("/bulk?dry_run=1", {}), ("/bulk", {"dry_run": True})):
            told = (await api.control("POST", path, body | more)).json()
            assert (told["dry_run"], told["count"], len(told["examples"])) == (True, 15, 10)
            assert told["examples"][0]["would_write"] == ["CancelRequested", "WorkflowCancelled"]
            assert everything(api) == before
        assert (await api.control("GET", "/bulk")).json()["bulk_count"] == 0


def everything(api: Api) -> list[str]:
    connection = connection_of(api.server.store)
    tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall()]
    return [repr(row) for table in tables for row in connection.execute(f"select * from {table}").fetchall()]


async def test_a_wrong_expected_count_is_refused_with_the_true_one() -> None:
    async with serving() as api:
        await many(api, 5)
        answer = await api.control("POST", "/bulk", {"action": "cancel", "filter": {"queue": "q"}, "expected_count": 4})
        assert (answer.status_code, answer.json()["reason"]) == (409, "expected_count_mismatch")
        assert (answer.json()["count"], answer.json()["field"]) == (5, "expected_count")
        assert (await api.control("GET", "/bulk")).json()["bulk_count"] == 0


async def test_an_operation_above_the_limit_is_refused_and_nothing_is_stored() -> None:
    async with serving(max_bulk_runs=3) as api:
        await many(api, 5)
        for body in ({"filter": {"queue": "q"}}, {"ids": [f"o-{n}" for n in range(4)]}):
            answer = await api.control("POST", "/bulk", {"action": "cancel", **body})
            assert (answer.status_code, answer.json()["reason"]) == (422, "bulk_too_large")
            assert "max_bulk_runs is 3" in answer.json()["message"]
        assert (await api.control("GET", "/bulk")).json()["bulk_count"] == 0
        begun = await begin(api, action="cancel", ids=["o-0", "o-1", "o-2"])
        assert (await ended(api, begun["bulk_id"]))["accepted"] == 3


async def test_named_workflows_are_taken_and_what_is_unknown_or_closed_is_told() -> None:
    async with serving() as api:
        await many(api, 3)
        await api.control("POST", "/workflows/o-1/terminate", {})
        begun = await begin(api, action="signal", ids=["o-0", "o-1", "nobody", "o-0"], signal_name="go", input=[7])
        told = await ended(api, begun["bulk_id"])
        assert (told["total"], told["done"], told["accepted"]) == (3, 3, 1)
        assert told["reasons"] == {"run_not_active": 1, "instance_not_found": 1}
        assert (told["rejected"], told["failed"]) == (1, 1)
        assert "SignalReceived" in await api.types("o-0")


@pytest.mark.parametrize(
    ("action", "more", "outcome"),
    [
        ("cancel", {}, "cancelled"),
        ("repair", {}, "repair_not_needed"),
        ("signal", {"signal_name": "go"}, "signal_received"),
        ("pause", {}, "paused"),
        ("unpause", {}, "unpause_not_needed"),
        ("retry_now", {}, "no_activity_backs_off"),
    ],
)
async def test_every_action_is_that_of_its_route(action: str, more: dict[str, Any], outcome: str) -> None:
    async with serving() as api:
        await many(api, 2)
        begun = await begin(api, action=action, filter={"queue": "q"}, **more)
        told = await ended(api, begun["bulk_id"])
        assert told["done"] == 2
        alone = await api.control("POST", f"/workflows/o-x/{action}", {})
        assert alone.status_code == 404
        assert outcome in {*told["outcomes"], *told["reasons"]}, told


async def test_archiving_takes_closed_runs_only() -> None:
    async with serving() as api:
        await many(api, 4)
        for number in (0, 1):
            await api.control("POST", f"/workflows/o-{number}/terminate", {})
        begun = await begin(api, action="archive", filter={"queue": "q"}, expected_count=2)
        assert (await ended(api, begun["bulk_id"]))["outcomes"] == {"archived": 2}
        again = (await api.control("POST", "/bulk?dry_run=1", {"action": "archive", "filter": {"queue": "q"}})).json()
        assert again["count"] == 0


async def test_a_repeated_request_gets_the_same_operation() -> None:
    async with serving() as api:
        await many(api, 3)
        body = {"action": "terminate", "filter": {"queue": "q"}, "request_id": "r-1", "expected_count": 3}
        first = await api.control("POST", "/bulk", body)
        assert first.status_code == 202
        await ended(api, first.json()["bulk_id"])
        again = await api.control("POST", "/bulk", body)  # by now no run matches
        assert (again.status_code, again.json()["bulk_id"]) == (200, first.json()["bulk_id"])
        assert (again.json()["repeated"], again.json()["done"]) == (True, 3)
        other = await api.control("POST", "/bulk", body | {"action": "cancel"})
        assert (other.status_code, other.json()["reason"]) == (409, "request_id_conflict")


async def test_an_operation_is_stopped_and_what_was_done_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    reached = asyncio.Event()
    original = bulks.command_run

    async def slow(*args: Any) -> Any:
        done = await original(*args)
        reached.set()
        await gate.wait()
        return done

    monkeypatch.setattr(bulks, "command_run", slow)
    async with serving() as api:
        await many(api, 150)
        begun = await begin(api, action="terminate", filter={"queue": "q"})
        await reached.wait()
        stopping = await api.control("POST", f"/bulk/{begun['bulk_id']}/stop")
        assert (stopping.status_code, stopping.json()["status"]) == (200, "stopping")
        gate.set()
        told = await ended(api, begun["bulk_id"])
        assert (told["status"], told["done"], told["accepted"]) == ("stopped", bulks.AT_ONCE, bulks.AT_ONCE)
        done = await results(api, begun["bulk_id"])
        assert sum(run["outcome"] == "not_done" for run in done) == 100 - bulks.AT_ONCE
        assert (await statuses(api, 150)).count("terminated") == bulks.AT_ONCE
        again = await api.control("POST", f"/bulk/{begun['bulk_id']}/stop")
        assert again.json()["status"] == "stopped"


async def test_an_operation_goes_on_after_its_server_was_lost_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page that was begun is done again for the same runs, and no run gets a second command."""
    store = f"sqlite:{tmp_path / 'bulk.db'}"
    original = bulks.command_run
    stuck = asyncio.Event()
    calls = 0

    async def lost(api: Any, bulk: BulkOperation, run: Any) -> Any:
        nonlocal calls
        calls += 1
        done = await original(api, bulk, run)
        if calls > 130:
            stuck.set()
            await asyncio.Event().wait()  # its answer never comes
        return done

    async with serving(store=store) as api:
        await many(api, 300)
        monkeypatch.setattr(bulks, "command_run", lost)
        begun = await begin(api, action="terminate", filter={"queue": "q"})
        await stuck.wait()
    monkeypatch.setattr(bulks, "command_run", original)
    async with serving(store=store) as api:
        told = await ended(api, begun["bulk_id"])
        assert (told["status"], told["done"], told["outcomes"]) == ("completed", 300, {"terminated": 300})
        done = await results(api, begun["bulk_id"])
        assert len({run["workflow_id"] for run in done}) == len(done) == 300
        rows = (
            connection_of(api.server.store)
            .execute("select count(*) from command where command_type = 'terminate'")
            .fetchone()
        )
        assert rows == (300,)


async def test_operations_that_are_too_large_together_are_refused_until_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as api:
        await many(api, 30)
        monkeypatch.setattr(bulks, "MOST_BYTES", 5_000)
        monkeypatch.setattr(bulks, "SHORTEST_REST", 0.2)
        named = [f"o-{number}" for number in range(30)]
        first = await begin(api, action="signal", signal_name="go", ids=named, input=["x" * 5_000])
        refused = await api.control("POST", "/bulk", {"action": "cancel", "ids": named})
        assert (refused.status_code, refused.json()["reason"]) == (429, "bulk_capacity_exhausted")
        stopped = await api.control("POST", f"/bulk/{first['bulk_id']}/stop", {})
        assert stopped.status_code == 200, "an operation can be stopped, however much room there is"
        told = await ended(api, first["bulk_id"])
        assert (told["id_count"], told["total"]) == (30, 30)
        await begin(api, action="cancel", ids=named)


async def test_a_run_that_was_started_later_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    original = bulks.command_run

    async def slow(*args: Any) -> Any:
        await gate.wait()
        return await original(*args)

    monkeypatch.setattr(bulks, "command_run", slow)
    async with serving() as api:
        await many(api, 120)
        begun = await begin(api, action="terminate", filter={"queue": "q"})
        await many(api, 5, first=120)
        await api.control("POST", "/workflows/o-0/cancel", {})  # has left the filter when its page is selected
        gate.set()
        told = await ended(api, begun["bulk_id"])
        assert told["outcomes"] == {"terminated": 119}
        assert (await api.describe("o-0"))["status"] == "cancelled"
        assert "terminated" not in [(await api.describe(f"o-{number}"))["status"] for number in range(120, 125)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"action": "cancel"}, "filter"),
        ({"action": "cancel", "filter": {}}, "filter"),
        ({"action": "cancel", "filter": {"queue": "q"}, "ids": ["a"]}, "filter"),
        ({"action": "explode", "filter": {"queue": "q"}}, "action"),
        ({"action": "signal", "filter": {"queue": "q"}}, "signal_name"),
        ({"action": "cancel", "filter": {"quue": "q"}}, "quue"),
        ({"action": "cancel", "filter": {"is_terminal": True}}, "filter.is_terminal"),
        ({"action": "cancel", "filter": {"queue": "q"}, "expected": 3}, "expected"),
    ],
)
async def test_a_wrong_request_is_refused_with_the_field(body: dict[str, Any], field: str) -> None:
    async with serving() as api:
        answer = await api.control("POST", "/bulk", body)
        assert answer.status_code == 422, answer.text
        assert field in str(answer.json().get("field")) or field in answer.json()["message"]
        assert (await api.control("GET", "/bulk")).json()["bulk_count"] == 0


async def test_an_unknown_operation_is_not_found() -> None:
    async with serving() as api:
        for method, path in (("GET", "/bulk/x"), ("POST", "/bulk/x/stop")):
            answer = await api.control(method, path)
            assert (answer.status_code, answer.json()["reason"]) == (404, "bulk_not_found")


async def test_the_progress_of_an_operation_is_heard_live() -> None:
    async with serving() as api:
        await many(api, 3)
        begun = await begin(api, action="terminate", filter={"queue": "q"})
        await ended(api, begun["bulk_id"])
        headers = {"Authorization": "Bearer secret"}
        topic = f"bulk:{begun['bulk_id']}"
        async with api.http.stream("GET", "/api/live", params={"topic": topic}, headers=headers) as response:
            assert response.status_code == 200
        missing: httpx.Response = await api.http.get("/api/live", params={"topic": "bulk:x"}, headers=headers)
        assert (missing.status_code, missing.json()["reason"]) == (404, "bulk_not_found")


async def test_the_engine_stays_responsive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands are answered in between, long before the operation ends."""
    async with serving() as api:
        await many(api, 200)
        begun = await begin(api, action="terminate", filter={"queue": "q"})
        await api.start("other", task_queue="other")
        told = (await api.control("GET", f"/bulk/{begun['bulk_id']}")).json()
        assert told["done"] < 200
        assert (await ended(api, begun["bulk_id"]))["done"] == 200


async def test_old_operations_are_forgotten_with_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulks, "KEPT", 1)
    async with serving() as api:
        await many(api, 1)
        ids: list[str] = []
        for _ in range(4):
            begun = await begin(api, action="unpause", ids=["o-0"])
            await ended(api, begun["bulk_id"])
            ids.append(begun["bulk_id"])
        kept = [one["bulk_id"] for one in (await api.control("GET", "/bulk")).json()["bulk_operations"]]
        assert kept == [ids[3], ids[2]]
        assert not await api.server.store.kept(f"bulk:{ids[0]}:0")
        assert await api.server.store.kept(f"bulk:{ids[3]}:0")
