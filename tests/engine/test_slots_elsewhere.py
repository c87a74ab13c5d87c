"""A remote worker may report to another node than the one that counts its slots: when the node that gave the task is gone."""

from __future__ import annotations

from typing import Any

from backstay import activity, workflow
from backstay.codec.values import dumps
from backstay.engine.remote_workers import RemoteWorker
from backstay.kernel.features.lease import Claimant
from backstay.protocol import requests as ask
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


def test_the_slot_of_an_attempt_that_was_reported_to_another_node_is_free() -> None:
    async def story(_: object) -> list[str]:
        disk, given = Disk(), list[Any]()
        async with OnDisk(disk, 1, [fetching]) as owner, OnDisk(disk, 2, []) as guest:
            await shared(owner, guest)
            owner.engine.matching.remote_workers.add(worker_with_one_slot(given))
            first, second = of(owner, 1), of(owner, 2)
            handles = [await owner.start(fetching, id, id) for id in (first, second)]
            for number in range(2):
                await eventually(lambda: len(given) > number, "there is a slot for it")  # noqa: B023
                attempt = given[number].activity_attempt_id
                done = dumps(f"done {number}")
                await guest.call(
                    ask.CompleteActivityTask(activity_attempt_id=attempt, lease_owner="remote", result=done)
                )
            return [await handle.result() for handle in handles]

    assert run(1, story) == ["done 0", "done 1"]
