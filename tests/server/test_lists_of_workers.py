"""What a worker with links to several nodes says that it holds, and what is released because it does not say so."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.task import Task
from backstay.protocol.native import worker as wire
from backstay.server.native import worker_link

from .kit import Api, serving, until
from .test_node_proxy import asked

OPENING: dict[str, Any] = {"worker_id": "w", "queues": ["q"], "activities": ["charge"], "total": [9, 9, 9]}
CHARGE = {"type": "schedule_activity", "activity_type": "charge"}


async def exchanged(api: Api, station: str, **more: Any) -> dict[str, Any]:
    answer = await asked(api, wire.EXCHANGE, {"worker_id": "w", "station": station, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("arrived", [True, False], ids=["it has come", "it was lost"])
async def test_a_task_that_came_while_another_link_was_opened(postgresql_url: str, arrived: bool) -> None:
    """The list of the second link was made before the task came by the first, and both lead to the same node."""
    async with serving(store=postgresql_url, still=False) as api:
        _, task = await given(api)
        second = (await asked(api, wire.OPEN, OPENING)).json()["station"]
        assert (await exchanged(api, second, wait=5))["roll_call"]
        held = [[task.id, task.attempt, task.workflow]] if arrived else []
        await exchanged(api, second, holding=held, elsewhere=[])
        await until(lambda: [lease.attempt for lease in api.server.engine.leases] == [1 if arrived else 2])
        types = await api.types("o-1")
        assert types.count("ActivityStarted") == (1 if arrived else 2)


async def test_a_task_that_came_from_another_node_says_nothing_of_its_next_attempt(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False) as api:
        _, first = await given(api)
        await api.start("o-2")
        await api.complete(await api.poll(), CHARGE)  # no reply has brought it
        (unsent,) = [lease for lease in api.server.engine.leases if lease.id != first.id]
        lists = {
            "holding": [[first.id, first.attempt, first.workflow]],
            "elsewhere": [[unsent.id, unsent.attempt - 1, unsent.workflow]],
        }
        second = (await asked(api, wire.OPEN, {**OPENING, **lists})).json()["station"]
        await delivered(api, second)


async def test_who_dies_before_it_has_said_what_it_holds_holds_nothing(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store=postgresql_url, still=False) as api:
        await given(api)
        monkeypatch.setattr(worker_link, "UNSEEN", 100_000)
        monkeypatch.setattr(worker_link, "LOST", 300_000)
        await asked(api, wire.OPEN, OPENING)
        assert [lease.attempt for lease in api.server.engine.leases] == [1]
        await until(lambda: not list(api.server.engine.leases))


async def given(api: Api) -> tuple[str, Task]:
    """A link, and the task that its worker was given by it."""
    station = (await asked(api, wire.OPEN, OPENING)).json()["station"]
    await api.register(supported_activity_types=[])
    await api.start("o-1")
    await api.complete(await api.poll(), CHARGE)
    await delivered(api, station)
    (task,) = api.server.engine.leases
    return station, task


async def delivered(api: Api, station: str) -> None:
    """A reply brings a task. Others may bring news of nodes before it."""
    for _ in range(5):
        if (await exchanged(api, station, wait=5)).get("deliveries"):
            return
    raise AssertionError("no task has come")
