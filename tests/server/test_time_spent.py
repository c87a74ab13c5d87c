"""Where the time of workflow types goes."""

from __future__ import annotations

from typing import Any

from .kit import Api, serving

CHARGE = {
    "type": "schedule_activity",
    "activity_type": "charge",
    "retry_policy": {"max_attempts": 3, "backoff_seconds": [8]},
}
NONE = {"code": 0, "activities": 0, "backoff": 0, "queue": 0, "timers": 0, "waiting": 0}


async def spent(api: Api, **params: Any) -> list[dict[str, Any]]:
    answer = await api.control("GET", "/time-spent", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["types"]


def seconds(one: dict[str, Any]) -> dict[str, int]:
    """Rounded: the clock of tests goes on a little with every request."""
    return {name: round(length / 1000) for name, length in one["milliseconds"].items()}


async def test_each_second_of_a_run_counts_once_for_what_went_on_in_it() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.world.advance(1)  # for a worker
        task = await api.poll()
        await api.world.advance(2)  # its code runs
        await api.complete(task, CHARGE)
        await api.world.advance(3)  # for a worker of the activity
        activity = await api.poll("activity")
        await api.world.advance(4)
        assert (await api.activity("fail", activity, failure={"message": "no"})).status_code == 200
        await api.world.advance(8)  # before the next attempt
        activity = await api.poll("activity")
        await api.world.advance(5)
        assert (await api.activity("complete", activity)).status_code == 200
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 20})
        await api.world.advance(20)
        await api.complete(await api.poll(), {"type": "open_signal_wait", "signal_name": "go"})
        await api.world.advance(30)
        await api.control("POST", "/workflows/o-1/signal/go", {})
        await api.complete(await api.poll(), {"type": "complete_workflow", "result": None})
        (one,) = await spent(api, workflow_type="order")
        assert (one["workflow_type"], one["runs"], one["sampled"]) == ("order", 1, False)
        assert seconds(one) == {"code": 2, "activities": 9, "backoff": 8, "queue": 4, "timers": 20, "waiting": 30}


async def test_the_newest_runs_are_looked_at_and_the_answer_says_so() -> None:
    async with serving() as api:
        await api.register()
        for number in range(3):
            await api.start(f"o-{number}")
            await api.control("POST", f"/workflows/o-{number}/terminate", {})
        await api.start("open")
        (one, none) = await spent(api, workflow_type=["order", "unknown"], sample=2)
        assert (one["runs"], one["sampled"]) == (2, True)
        assert none == {"workflow_type": "unknown", "runs": 0, "sampled": False, "milliseconds": NONE}
        (all_of_them,) = await spent(api, workflow_type="order")
        assert (all_of_them["runs"], all_of_them["sampled"]) == (3, False)


async def test_a_question_without_a_type_is_refused() -> None:
    async with serving() as api:
        answer = await api.control("GET", "/time-spent")
        assert (answer.status_code, answer.json()["field"]) == (422, "workflow_type")
