"""Schedules before they exist: when they would fire; and what a list of them says about the next hour."""

from __future__ import annotations

from typing import Any

import pytest

from .kit import Api, serving, sql

ACTION = {"workflow_type": "order", "task_queue": "q"}


async def preview(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.control("POST", "/schedules/preview", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def create(api: Api, name: str, **spec: Any) -> None:
    body = {"schedule_id": name, "spec": spec, "action": ACTION}
    answer = await api.control("POST", "/schedules", body)
    assert answer.status_code == 201, answer.text


async def test_ten_fires_are_told_in_their_zone_and_nothing_is_stored() -> None:
    async with serving() as api:
        seen = await preview(api, spec={"cron_expressions": ["30 2 * * *"], "timezone": "Europe/Berlin"})
        assert (len(seen["fires"]), seen["timezone"]) == (10, "Europe/Berlin")
        first = seen["fires"][0]
        assert first["local_time"] == "2027-01-16T02:30:00+01:00", "the clock of tests stands at 2027-01-15T08:00Z"
        assert (first["fire_at"], first["occurrence_time"]) == ("2027-01-16T01:30:00.000000Z",) * 2
        assert seen["next_action_times"][0] == first["fire_at"]
        assert (await api.control("GET", "/schedules")).json()["schedules"] == []


async def test_a_viewer_may_look_ahead_and_create_nothing() -> None:
    async with serving() as api:
        made = (await api.control("POST", "/tokens", {"role": "viewer"})).json()["token"]
        spec = {"cron_expressions": ["30 2 * * *"]}
        assert (await api.control("POST", "/schedules/preview", {"spec": spec}, token=made)).status_code == 200
        body = {"schedule_id": "s", "spec": spec, "action": ACTION}
        assert (await api.control("POST", "/schedules", body, token=made)).status_code == 403


async def test_a_jump_of_the_clock_is_noted() -> None:
    async with serving() as api:
        spec = {"cron_expressions": ["30 2 * * *"], "timezone": "Europe/Berlin"}
        seen = await preview(api, spec=spec, count=100)
        (noted,) = [fire for fire in seen["fires"] if fire["note"] is not None]
        assert noted["local_time"] == "2027-03-28T03:00:00+02:00"
        assert "goes forward by 1 h" in noted["note"]


async def test_what_is_previewed_is_what_fires_then() -> None:
    async with serving() as api:
        spec = {"cron_expressions": ["*/10 * * * *"]}
        seen = await preview(api, schedule_id="s-1", spec=spec, jitter_seconds=60, count=5)
        body = {"schedule_id": "s-1", "spec": spec, "action": ACTION, "jitter_seconds": 60}
        assert (await api.control("POST", "/schedules", body)).status_code == 201
        made = (await api.control("GET", "/schedules/s-1")).json()
        assert made["next_fire_at"] == seen["next_action_times"][0]
        assert made["next_action_times"] == seen["next_action_times"]
        assert made["next_action_times"] != [fire["occurrence_time"] for fire in seen["fires"]], "jitter delays them"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec"),
        ({"cron_expressions": ["61 * * * *"]}, "spec.cron_expressions[0]"),
        ({"cron_expressions": ["0 0 30 2 *"]}, "spec.cron_expressions[0]"),
        ({"cron_expressions": ["0 0 * * *"], "timezone": "Mars/Olympus"}, "spec.timezone"),
        ({"intervals": [{"every": "PT0S"}]}, "spec.intervals[0].every"),
    ],
)
async def test_a_spec_is_refused_as_its_creation_would_be(spec: dict[str, Any], field: str) -> None:
    async with serving() as api:
        looked = await api.control("POST", "/schedules/preview", {"spec": spec})
        made = await api.control("POST", "/schedules", {"schedule_id": "s", "spec": spec, "action": ACTION})
        assert looked.status_code == made.status_code == 422
        for name in ("reason", "field", "message"):
            assert looked.json()[name] == made.json()[name]
        assert looked.json()["field"] == field


async def test_a_preview_has_at_most_a_hundred_fires_and_a_valid_id() -> None:
    async with serving() as api:
        spec = {"cron_expressions": ["* * * * *"]}
        for body in (
            {"spec": spec, "count": 101},
            {"spec": spec, "count": 0},
            {"spec": spec, "schedule_id": "a b"},
            {},
        ):
            answer = await api.control("POST", "/schedules/preview", body)
            assert answer.status_code == 422, body


async def test_a_schedule_may_still_be_called_preview() -> None:
    async with serving() as api:
        await create(api, "preview", cron_expressions=["0 0 * * *"])
        assert (await api.control("GET", "/schedules/preview")).json()["schedule_id"] == "preview"
        assert (await api.control("DELETE", "/schedules/preview")).status_code == 200
        wrong = await api.control("PATCH", "/schedules/preview", {})
        assert (wrong.status_code, wrong.json()["reason"]) == (405, "method_not_allowed")


async def test_a_list_counts_what_is_due_and_what_is_late() -> None:
    async with serving() as api:
        await create(api, "soon", cron_expressions=["*/10 * * * *"])
        await create(api, "yearly", cron_expressions=["0 0 1 1 *"])
        await create(api, "resting", cron_expressions=["*/10 * * * *"])
        await api.control("POST", "/schedules/resting/pause", {})
        seen = (await api.control("GET", "/schedules")).json()
        counts = seen["counts"]
        assert (counts["active"], counts["paused"], counts["due_next_hour"], counts["overdue"]) == (2, 1, 1, 0)
        times = {one["schedule_id"]: one["next_action_times"] for one in seen["schedules"]}
        assert (len(times["soon"]), len(times["yearly"]), times["resting"]) == (5, 5, [])
        assert counts["next_fire_at"] == times["soon"][0]
        sql(api, "update workflow set next_wake = ? where workflow_id = 'soon'", api.server.now - 60_000_000)
        assert (await api.control("GET", "/schedules")).json()["counts"]["overdue"] == 1


async def test_no_more_times_are_told_than_runs_are_left() -> None:
    async with serving() as api:
        body = {"schedule_id": "s", "spec": {"cron_expressions": ["0 0 * * *"]}, "action": ACTION, "max_runs": 2}
        await api.control("POST", "/schedules", body)
        assert len((await api.control("GET", "/schedules/s")).json()["next_action_times"]) == 2
