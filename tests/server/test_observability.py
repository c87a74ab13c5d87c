"""What operators read comes through one object: a setting replaces it, and everything changes. The dashboard of a namespace."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from backstay.server.http.boundary import BOUNDARY
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.operators.observability import METHODS, Answer, Read, StandardObservability
from backstay.server.routes import ROUTES
from backstay.server.server import Server
from backstay.server.settings import Settings, WrongSetting

from .kit import Api, serving
from .test_metrics import load, settled

HERE = "tests.server.test_observability"


class Stamped:
    """Answers by itself, but for exports and details, which it asks for and stamps."""

    def __init__(self, standard: StandardObservability) -> None:
        self.standard = standard

    async def dashboard_summary(self, namespace: str) -> dict[str, Any]:
        return {"flows": -1, "operator_metrics": await self.metrics(namespace)}

    async def metrics(self, namespace: str) -> dict[str, Any]:
        return {"runs": {"total": -1}, "of": namespace}

    async def health(self, request: HttpRequest, read: Read) -> Answer:
        return {"status": "as we say"}

    async def overview(self, request: HttpRequest, read: Read) -> Answer:
        return {"overview": request.path}

    async def runs(self, request: HttpRequest, read: Read) -> Answer:
        return {"flows": [], "filtered": dict(request.query)}

    async def detail(self, request: HttpRequest, read: Read) -> Answer:
        found = await read()
        assert not isinstance(found, HttpResponse)
        return {**found, "stamped": True}

    async def export(self, request: HttpRequest, read: Read) -> Answer:
        found = await self.standard.export(request, read)
        assert isinstance(found, HttpResponse)
        assert found.parts is not None
        return HttpResponse({"size": sum([len(part) async for part in found.parts])})


def stamped(standard: StandardObservability) -> Stamped:
    return Stamped(standard)


def half(standard: StandardObservability) -> object:
    return object()


class Editing(StandardObservability):
    """Changes an answer in place, for its caller alone."""

    async def runs(self, request: HttpRequest, read: Read) -> Answer:
        found = await read()
        assert not isinstance(found, HttpResponse)
        changed = cast("dict[str, Any]", found)
        changed["read_by"] = [*changed.get("read_by", []), request.headers["x-request-id"]]
        return found


def editing(standard: StandardObservability) -> Editing:
    return Editing(standard._metrics, standard._dashboard)


nothing_callable = 5


async def read(api: Api, path: str) -> dict[str, Any]:
    answer = await api.control("GET", path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.json()


@pytest.mark.contract("METRIC-01")
async def test_the_boundary_is_replaced_by_a_setting_and_all_change() -> None:
    async with serving(observability=f"{HERE}:stamped") as api:
        run_id = (await api.start("o-1"))["run_id"]
        assert (await read(api, "/stats"))["flows"] == -1
        for path in ("/system/operator-metrics", "/system/metrics", "/stats"):
            assert (await read(api, path))["operator_metrics"] == {"runs": {"total": -1}, "of": "default"}
        assert (await read(api, "/system/health"))["status"] == "as we say"
        for path in ("/overview", "/wakes", "/task-queues"):
            assert (await read(api, path))["overview"] == f"/api{path}"
        assert (await read(api, "/flows/running?queue=q"))["filtered"] == {"queue": "q"}
        assert (await read(api, "/workflows"))["flows"] == []
        for path in ("", "/detail", "/why", "/summary", f"/runs/{run_id}", f"/runs/{run_id}/detail"):
            found = await read(api, f"/workflows/o-1{path}")
            assert found["stamped"] is True, path
        assert (await read(api, f"/workflows/o-1/runs/{run_id}/history/export"))["size"] > 500


async def test_what_a_boundary_changes_in_an_answer_no_other_caller_gets() -> None:
    async with serving(observability=f"{HERE}:editing") as api:
        answers = await asyncio.gather(
            *(api.control("GET", "/flows/running", headers={"x-request-id": f"r-{n}"}) for n in range(20))
        )
    assert [answer.json()["read_by"] for answer in answers] == [[f"r-{n}"] for n in range(20)]


async def test_without_the_setting_the_server_answers() -> None:
    async with serving() as api:
        await api.start("o-1")
        assert "stamped" not in await read(api, "/workflows/o-1/detail")
        assert (await read(api, "/stats"))["flows"] == 1


def test_every_route_of_the_boundary_exists_and_keeps_its_description() -> None:
    routes = {route.path: route for route in ROUTES if route.method == "GET"}
    assert BOUNDARY.keys() <= routes.keys()
    assert set(BOUNDARY.values()) | {"metrics", "dashboard_summary"} == set(METHODS)
    assert routes["/api/overview"].handler.__doc__


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.at.all:boundary", "No module named"),
        (f"{HERE}:nobody", "no attribute 'nobody'"),
        (f"{HERE}:nothing_callable", "is not a function"),
        (HERE, "name it as package.module:function"),
    ],
)
def test_a_wrong_name_is_told_before_the_server_starts(name: str, said: str) -> None:
    with pytest.raises(WrongSetting) as told:
        Server(Settings(token="t", store="sqlite::memory:", observability=name))
    assert said in str(told.value)
    assert "observability is" in str(told.value)


async def test_a_boundary_that_lacks_methods_is_refused_with_their_names() -> None:
    with pytest.raises(WrongSetting, match="without dashboard_summary, metrics, health"):
        async with serving(observability=f"{HERE}:half"):
            pass


# -- the dashboard


@pytest.mark.contract("METRIC-01", "METRIC-02")
async def test_the_dashboard_has_totals_recent_counts_and_extremes(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'd.db'}"
    async with serving(store=store) as api:
        await load(api)  # one archived, one that retries, one leased, two ready
        await api.world.advance(60)
        await api.start("late")
        await settled(api)
        found = await read(api, "/stats")
        assert (found["flows"], found["flows_past_hour"], found["flows_per_minute"]) == (6, 6, 0.1)
        assert (found["exceptions_past_hour"], found["failed_flows_past_week"]) == (1, 0)
        assert found["max_exceptions_workflow"]["workflow_id"] == "retrying"
        assert found["max_exceptions_workflow"]["exceptions"] == 1
        longest = found["max_duration_workflow"]
        assert (longest["workflow_id"], longest["open"], longest["duration_ms"] >= 60_000) == ("retrying", True, True)
        wait = found["max_wait_time_workflow"]
        assert (wait["workflow_id"] in ("retrying", "leased", "ready-1"), wait["wait_ms"] >= 60_000) == (True, True)
        (order,) = found["workflow_type_health"]
        assert (order["workflow_type"], order["started"], order["completed"]) == ("order", 6, 1)
        assert order["health"] == "healthy"
        assert "retrying" in [one["name"] for one in found["needs_attention"]["causes"]]
        assert found["fleet_overview"]["active_workers"] == 1
        assert sum(point["started"] for point in found["fleet_trends_series"]["points"]) == 6
        assert found["operator_metrics"]["runs"]["total"] == 6
    async with serving(store=store) as api:
        after = await read(api, "/stats")
        for name in ("flows", "exceptions_past_hour", "failed_flows_past_week", "max_exceptions_workflow"):
            assert after[name] == found[name], name


async def test_the_dashboard_tells_of_types_that_fail_and_of_long_closed_runs() -> None:
    async with serving() as api:
        await api.register()
        empty = await read(api, "/stats")
        assert (empty["flows"], empty["max_duration_workflow"], empty["max_wait_time_workflow"]) == (0, None, None)
        await api.start("sad")
        await api.world.advance(5)
        await api.complete(await api.poll(), {"type": "fail_workflow", "message": "no"})
        await settled(api)
        found = await read(api, "/stats")
        assert found["max_duration_workflow"]["workflow_id"] == "sad"
        assert (found["max_duration_workflow"]["open"], found["failed_flows_past_week"]) == (False, 1)
        assert 5000 <= found["max_duration_workflow"]["duration_ms"] < 5100
        assert found["workflow_type_health"][0]["health"] == "failing"
        assert found["exceptions_past_hour"] == 1


async def test_the_dashboard_of_a_postgresql_server(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False) as api:
        await load(api)
        found = await read(api, "/stats")
        assert (found["flows"], found["exceptions_past_hour"]) == (5, 1)
        assert found["max_exceptions_workflow"]["workflow_id"] == "retrying"
        assert found["max_duration_workflow"]["workflow_id"] == "retrying"
