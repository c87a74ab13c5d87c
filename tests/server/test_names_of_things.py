"""Names that no database can hold are refused before anything is recorded under them, whichever verb brings them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .kit import TOKEN, Api, serving

NUL, LONG = "a\0b", "x" * 300_000
ACTIVITY = {"type": "schedule_activity", "activity_type": "charge"}
CHILD = {"type": "start_child_workflow", "workflow_type": "part"}
AGAIN = {"type": "continue_as_new"}
PLAN = {"schedule_id": "s", "spec": {"cron_expressions": ["@daily"]}}
ACTION = {"workflow_type": "order", "task_queue": "q"}
OWN = {"Authorization": f"Bearer {TOKEN}", "X-Backstay-Protocol": "1"}

COMMANDS = [
    (ACTIVITY, "activity_type"),
    (ACTIVITY, "queue"),
    (CHILD, "workflow_type"),
    (CHILD, "queue"),
    (AGAIN, "workflow_type"),
    (AGAIN, "queue"),
]


@pytest.fixture(params=["file", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("postgresql_url") if request.param == "postgresql" else f"sqlite:{tmp_path}/n.db"


@pytest.mark.parametrize("bad", [NUL, LONG], ids=["nul", "long"])
async def test_a_command_with_an_impossible_name_is_refused_and_its_run_goes_on(store: str, bad: str) -> None:
    async with serving(store=store, still=False) as api:
        await api.register()
        await api.start()
        task = await api.poll()
        for command, field in COMMANDS:
            answer = await api.complete(task, command | {field: bad})
            assert answer.status_code == 422, (command, field, answer.text[:300])
            assert field in answer.json()["field"]
        assert await api.types() == ["StartAccepted", "WorkflowStarted"]
        assert (await api.complete(task, {"type": "complete_workflow"})).status_code == 200


@pytest.mark.parametrize("bad", [NUL, LONG], ids=["nul", "long"])
async def test_a_start_or_a_schedule_with_an_impossible_name_is_refused(store: str, bad: str) -> None:
    start = {"workflow_type": "order", "workflow_id": "o-1", "task_queue": "q"}
    async with serving(store=store, still=False) as api:
        for field in ("workflow_type", "task_queue", "business_key", "request_id", "fairness_key"):
            await _refused(api, "/workflows", start | {field: bad})
        for field in ("workflow_type", "task_queue"):
            await _refused(api, "/schedules", PLAN | {"action": ACTION | {field: bad}})
        await _refused(api, "/activities", {"activity_type": bad, "task_queue": "q"})
        await api.start()
        await _refused(api, "/workflows/o-1/cancel", {"request_id": bad})
        await _refused(api, "/workflows/o-1/signal/pay", {"request_id": bad})
        name = bad[:1000]  # longer than any name, and shorter than what a registration may be in all
        wrong: list[dict[str, Any]] = [{"worker_id": name}, {"build_id": name}, {"supported_workflow_types": [name]}]
        for registered in wrong:
            answer = await api.register(**registered)
            assert answer.status_code == 422, answer.text[:300]


@pytest.mark.parametrize("bad", [NUL, LONG], ids=["nul", "long"])
async def test_a_worker_of_ours_with_an_impossible_name_is_refused(store: str, bad: str) -> None:
    opening: dict[str, Any] = {"worker_id": "w", "queues": ["q"]}
    name = bad[:1000]
    wrong: list[dict[str, Any]] = [
        {"worker_id": name},
        {"queues": ["q", name]},
        {"build_id": name},
        {"workflows": {name: {}}},
        {"activities": [name]},
    ]
    async with serving(store=store, still=False) as api:
        for more in wrong:
            answer = await api.http.post("/api/worker/station", json=opening | more, headers=OWN)
            assert answer.status_code == 422, (more, answer.text[:300])
            assert answer.json()["field"] == next(iter(more))
        answer = await api.http.post("/api/worker/station", json=opening, headers=OWN)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("bad", ["a%00b", "x" * 1000], ids=["nul", "long"])
async def test_builds_of_a_queue_with_an_impossible_name_are_refused(store: str, bad: str) -> None:
    async with serving(store=store, still=False) as api:
        for verb in ("drain", "resume", "promote"):
            await _refused(api, f"/task-queues/{bad}/build-ids/{verb}", {"build_id": "b"})


async def _refused(api: Api, path: str, body: dict[str, Any]) -> None:
    answer = await api.control("POST", path, body)
    assert answer.status_code == 422, (path, str(body)[:100], answer.status_code, answer.text[:300])
