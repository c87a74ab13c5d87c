"""Workers of another process: they poll for activities over the wire, under leases that run out, and report when they do.

Two of them, so that a task whose lease ran out goes to the other while the first still works on it.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from backstay.codec.values import dumps, loads
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.message import Refused
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.protocol import requests as ask
from backstay.store.errors import StoreError

from .clients import Lost, Wire
from .programs import FAR, ledger
from .virtual import EPOCH

if TYPE_CHECKING:
    from .simulation import Simulation

NOT_NOW = (Lost, StoreError, Refused, HistoryDamaged)


def left(sim: Simulation, task: Task) -> float:
    """Seconds until the lease is over, to the microsecond."""
    return max(0.0, ((task.until or 0) - EPOCH) / SECOND - sim.loop.time())


class Worker:
    def __init__(self, sim: Simulation, number: int) -> None:
        self.sim = sim
        self.name = f"far-{number}"
        self.random = Random(f"{sim.seed}:worker {number}")
        self.wire = Wire(sim, self.random)
        self.wire.patience = 40
        self._polls = 0

    async def live(self) -> None:
        while True:
            self._polls += 1
            try:
                task = await self._poll(f"{self.name}.{self._polls}")
            except NOT_NOW:
                await asyncio.sleep(2)
                continue
            if task is None:
                await asyncio.sleep(1)
            elif self.sim.faults.fires("worker dies"):
                await asyncio.sleep(self.random.choice([1, 30]))  # another one with its name begins anew
            else:
                await self._work(task)

    async def _poll(self, call: str) -> ActivityAssignment | None:
        """The same poll again after a lost reply gives the same task."""
        for attempt in range(3):
            try:
                return await self.wire.call(
                    ask.PollActivityTask(
                        worker_id=self.name,
                        activity_types=frozenset({"far", "far_once"}),
                        queue=FAR,
                        wait_seconds=self.random.choice([0, 20, 35]),
                        poll_request_id=call,
                    )
                )
            except Lost:
                if attempt == 2:
                    raise
        return None

    async def _work(self, task: ActivityAssignment) -> None:
        sim = self.sim
        token: str = loads(task.arguments or b"", Any)[0]
        again = ledger.tried.get(task.activity_attempt_id) == self.name
        if not again:  # a poll that is repeated gives the same attempt to the same worker
            ledger.take(task.activity_attempt_id, self.name)
            if task.activity_type == "far_once":
                ledger.begin(task.activity_execution_id, 1)
        sim.operation(f"{self.name} works on {task.activity_attempt_id[-8:]} {token}")
        for _ in range(self.random.choice([0, 0, 1, 3])):
            await asyncio.sleep(self.random.choice([0.1, 5, 60]))
            if not await self._beat(task):
                return
        if sim.faults.fires("lease runs out"):
            await asyncio.sleep(self.random.choice([left(self.sim, task.task), 301, 700]))
        failed = task.activity_type == "far" and sim.faults.fires("worker fails")
        for attempt in range(4):
            try:
                await self._report(task, token, failed)
                sim.done("far activity")
                sim.auditor.thanked(task.activity_attempt_id, self.name)
                return
            except Refused as refusal:
                sim.log(f"{self.name} is told that {task.activity_attempt_id[-8:]} is over: {refusal.reason}")
                sim.auditor.told_over(task.activity_attempt_id, self.name)
                return
            except NOT_NOW:
                await asyncio.sleep(attempt)

    async def _report(self, task: ActivityAssignment, token: str, failed: bool) -> None:
        who: dict[str, Any] = {"activity_attempt_id": task.activity_attempt_id, "lease_owner": self.name}
        if failed:
            await self.wire.call(ask.FailActivityTask(**who, failure=Failure(message="no", exception_type="Flaky")))
        else:
            await self.wire.call(ask.CompleteActivityTask(**who, result=dumps(f"{token}!")))

    async def _beat(self, task: ActivityAssignment) -> bool:
        try:
            reply = await self.wire.call(
                ask.HeartbeatActivityTask(activity_attempt_id=task.activity_attempt_id, lease_owner=self.name)
            )
        except NOT_NOW:
            return True
        if not reply.can_continue:
            self.sim.auditor.told_over(task.activity_attempt_id, self.name)
        return reply.can_continue
