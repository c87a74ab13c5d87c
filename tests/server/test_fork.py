"""Fork and rewind over HTTP: the plan in a dry run, the receipt, the audit trail, the roles, and bulk operations."""

from __future__ import annotations

from typing import Any

from .kit import Api, blob, serving
from .test_bulk import ended

CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
SHIP = {"type": "schedule_activity", "activity_type": "ship"}


async def failed(api: Api, id: str) -> str:
    """A run that has charged and then failed."""
    started = await api.start(id)
    await api.complete(await api.poll(), CHARGE)
    await api.activity("complete", await api.poll("activity"), result=blob("paid"))
    await api.complete(await api.poll(), {"type": "fail_workflow", "message": "no truck"})
    return started["run_id"]


async def test_a_rewind_is_planned_done_once_and_on_record() -> None:
    async with serving() as api:
        await api.register()
        run = await failed(api, "o-1")
        path = "/workflows/o-1/rewind"
        asked: dict[str, Any] = {"at": "charge", "reason": "the truck is back", "request_id": "r1"}
        dry = (await api.control("POST", f"{path}?dry_run=1", asked)).json()
        assert dry["accepted"]
        assert [(one["step"], one["idempotency_key"]) for one in dry["answer"]["repeats"]] == [(1, f"{run}-1")]
        assert (await api.control("GET", "/workflows/o-1")).json()["run_id"] == run, "nothing was done"
        done = await api.control("POST", path, asked)
        said = done.json()
        assert (done.status_code, said["outcome"], said["through_event"]) == (200, "rewound", 2)
        again = (await api.control("POST", path, asked)).json()
        assert (again["retained"], again["run_id"]) == (True, said["run_id"])
        entry = (await api.control("GET", "/audit?command_type=rewind")).json()["entries"][0]
        assert (entry["workflow_id"], entry["outcome"]) == ("o-1", "rewound")
        now = (await api.control("GET", "/workflows/o-1")).json()
        assert (now["run_id"], now["run_number"]) == (said["run_id"], 2)
        event = next(one for one in await api.history() if one["event_type"] == "HistoryInherited")
        assert event["payload"]["from_workflow_run_id"] == run
        assert (await api.poll())["workflow_id"] == "o-1", "its code goes on"


async def test_a_fork_has_results_that_its_body_replaces() -> None:
    async with serving() as api:
        await api.register()
        run = await failed(api, "o-1")
        body = {"at": "charge", "new_id": "o-2", "set": {"1": "paid in cash"}}
        said = (await api.control("POST", f"/workflows/o-1/runs/{run}/fork", body)).json()
        assert (said["workflow_id"], said["outcome"], said["set"]) == ("o-2", "forked", {"1": "paid in cash"})
        again = await api.control("POST", f"/workflows/o-1/runs/{run}/fork", body)
        assert (again.status_code, again.json()["reason"]) == (409, "instance_already_started")
        wrong = await api.control("POST", "/workflows/o-1/fork", {"at": "pay"})
        assert (wrong.status_code, wrong.json()["reason"], wrong.json()["field"]) == (409, "step_not_found", "at")


async def test_every_run_that_failed_is_rewound_to_a_step_in_bulk() -> None:
    async with serving() as api:
        await api.register()
        for number in range(3):
            await failed(api, f"o-{number}")
        body = {"action": "rewind", "filter": {"status": "failed"}, "fields": {"at": "charge"}, "reason": "truck"}
        wrong = await api.control("POST", "/bulk", body | {"fields": {"new_id": "x"}})
        assert (wrong.status_code, wrong.json()["field"]) == (422, "fields.new_id")
        begun = (await api.control("POST", "/bulk", body)).json()
        told = await ended(api, begun["bulk_id"])
        assert told["outcomes"] == {"rewound": 3}
        for number in range(3):
            assert (await api.control("GET", f"/workflows/o-{number}")).json()["run_number"] == 2
