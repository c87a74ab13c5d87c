"""What a worker with links to several nodes says that it holds, and what is released because it does not say so."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.protocol.native import worker as wire

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
        first = (await asked(api, wire.OPEN, OPENING)).json()["station"]
        await api.register(supported_activity_types=[])
        await api.start("o-1")
        await api.complete(await api.poll(), CHARGE)
        assert (await exchanged(api, first, wait=5))["deliveries"]
        (task,) = api.server.engine.leases
        second = (await asked(api, wire.OPEN, OPENING)).json()["station"]
        assert (await exchanged(api, second, wait=5))["roll_call"]
        held = [[task.id, task.attempt, task.workflow]] if arrived else []
        await exchanged(api, second, holding=held, elsewhere=[])
        await until(lambda: [lease.attempt for lease in api.server.engine.leases] == [1 if arrived else 2])
        types = await api.types("o-1")
        assert types.count("ActivityStarted") == (1 if arrived else 2)
