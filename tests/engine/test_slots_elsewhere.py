"""A remote worker may report to another node than the one that counts its slots: when the node that gave the task is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay import activity, workflow
from backstay.codec.values import dumps
from backstay.engine.tasks.remote_workers import RemoteWorker
from backstay.kernel.features.lease import Claimant
from backstay.protocol import requests as ask
from backstay.store.errors import Unavailable
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import run

from .two_processes import OnDisk, of, shared


@activity(queue="far")
def fetch(id: str) -> str:
    raise AssertionError("it runs elsewhere")


@workflow
def fetching(id: str) -> str:
    return fetch(id)


def worker_with_one_slot(given: list[Any]) -> RemoteWorker:
    worker = RemoteWorker(
        "remote",
        "default",
        frozenset({"far"}),
        frozenset(),
        frozenset({fetch.type}),
        frozenset(),
        Claimant(),
        {"workflow": 0, "activity": 1, "async": 0},
        lambda _, assignment: given.append(assignment),
        lambda _: None,
        lambda _: None,
    )
    worker.open = True
    return worker


@pytest.mark.parametrize("unreadable", [0, 1, 3])
def test_the_slot_of_an_attempt_that_was_reported_to_another_node_is_free(unreadable: int) -> None:
    """Also if the owner cannot read the instance at first: the notice of the other node is gone then."""

    async def story(_: object) -> float:
        disk, given, failures = Disk(), list[Any](), [0]
        now = asyncio.get_running_loop().time
        async with OnDisk(disk, 1, [fetching]) as owner, OnDisk(disk, 2, []) as guest:
            await shared(owner, guest)
            owner.engine.matching.remote_workers.add(worker_with_one_slot(given))
            store: Any = owner.engine.store
            load = store.load

            def fail_at_first(key: int) -> Any:
                if failures[0]:
                    failures[0] -= 1
                    raise Unavailable("the disk reports an error on reading")
                return load(key)

            store.load = fail_at_first
            for number in range(2):
                id = of(owner, number)
                await owner.start(fetching, id, id)
            await eventually(lambda: len(given) == 1, "there is a slot for one")
            attempt, began = given[0].activity_attempt_id, now()
            failures[0] = unreadable
            await guest.call(
                ask.CompleteActivityTask(activity_attempt_id=attempt, lease_owner="remote", result=dumps("done"))
            )
            await eventually(lambda: len(given) == 2, "there is a slot for the other")
            return now() - began

    assert run(1, story) < 1, "long before anybody sweeps"
