"""The work that a cluster does while things happen to it, and what must be true at the end.

Two clients, ours and the published one, start workflows, send signals and updates, ask queries, and wait for results, each
request through another node. What was acknowledged is written down. At the end every workflow is complete, what was
acknowledged has been applied once, no run is stranded, and no activity ran twice that had no reason to.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import asyncpg
import durable_workflow
import httpx
from durable_workflow.errors import DurableWorkflowError, UpdateFailed, WorkflowFailed
from durable_workflow.errors import WorkflowAlreadyStarted as PublishedAlreadyStarted

from backstay import AsyncClient, BackstayError, WorkflowAlreadyStarted
from backstay.store.postgresql.connection import address

from .cluster import Cluster
from .cluster_worker import OUTAGE, QUEUE, TOKEN, Box, chain

T = TypeVar("T")

STEPS = 3
PACE = 0.03  # seconds between two requests of one lane: the machine has other things to do
PATIENCE = 60.0  # seconds for everything to end once nothing happens any more

_numbers = itertools.count(1)


class Told:
    """What a box was told. `certain`: it was acknowledged. `asked`: it was sent; nobody knows whether it arrived."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.certain: list[str] = []
        self.asked: set[str] = set()

    def check(self, kept: list[str]) -> None:
        counted = Counter(kept)
        doubled = [token for token, times in counted.items() if times > 1]
        lost = [token for token in self.certain if token not in counted]
        strange = counted.keys() - self.asked
        assert (doubled, lost, strange) == ([], [], set()), f"{self.id}: applied twice, lost, never sent"


class Story:
    """So many lanes of each kind of work; what was begun is brought to its end."""

    def __init__(self, cluster: Cluster, lanes: int) -> None:
        self._cluster = cluster
        self._over = False
        self._began = time.monotonic()
        self._lanes = lanes
        self._ledger_before = self._lines()
        self.completed: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.repeated = 0
        self.slowest = 0.0
        """Seconds: the longest time from the start of a workflow to its result."""

    async def run(self, faults: Callable[[Cluster], Awaitable[None]]) -> None:
        """Work while `faults` happen, then let everything come to its end, and check."""
        url = self._cluster.front.url
        async with (
            AsyncClient(url, token=TOKEN) as ours,
            durable_workflow.Client(url, token=TOKEN, retry_policy=OUTAGE) as published,
        ):
            lanes = [
                asyncio.create_task(lane)
                for _ in range(self._lanes)
                for lane in (
                    self._chains(ours),
                    self._boxes(ours),
                    self._published_chains(published),
                    self._published_boxes(published),
                )
            ]
            happening = asyncio.ensure_future(faults(self._cluster))
            try:
                await asyncio.wait([happening, *lanes], return_when=asyncio.FIRST_COMPLETED)
                for task in (happening, *lanes):
                    if task.done():
                        task.result()
                self._over = True
                await asyncio.to_thread(self._cluster.heal)
                await asyncio.wait_for(asyncio.gather(*lanes), PATIENCE)
            finally:
                self._over = True
                for task in (happening, *lanes):
                    task.cancel()
                await asyncio.gather(happening, *lanes, return_exceptions=True)
        await self._check_rows()
        await asyncio.to_thread(self._check_certificate)
        self._check_ledger()

    # -- our own client

    async def _chains(self, client: AsyncClient) -> None:
        while not self._over:
            id = f"chain-{next(_numbers)}"
            began = time.monotonic()

            async def start(id: str = id) -> None:
                with suppress(WorkflowAlreadyStarted):  # the answer to an earlier try was lost
                    await client.start(chain, id, id, STEPS)

            await self._insist("start", start)
            done = await self._insist("result", lambda name=id: client.handle(chain, name).result(timeout=PATIENCE))
            assert done == [*(f"{id}/{step}" for step in range(STEPS)), f"{id}/leaf"]
            self._completed("chain", began)
            await asyncio.sleep(PACE)

    async def _boxes(self, client: AsyncClient) -> None:
        while not self._over:
            told = Told(f"box-{next(_numbers)}")
            began = time.monotonic()

            async def start(id: str = told.id) -> None:
                with suppress(WorkflowAlreadyStarted):
                    await client.start(Box, id)

            await self._insist("start", start)
            box = client.handle(Box, told.id)
            for number in range(12):
                token = f"{told.id}:{number}"
                told.asked.add(token)
                with suppress(BackstayError):  # nobody knows
                    if number % 3 == 2:
                        await box.update(Box.add, token)
                    else:
                        await box.signal(Box.put, token)
                    told.certain.append(token)
                    self.requests["acknowledged"] += 1
                if number % 4 == 3 and told.certain:
                    seen = await self._insist("query", lambda box=box, t=told: box.query(Box.holds, t.certain[-1]))
                    assert seen, f"{told.certain[-1]} was acknowledged; a query does not see it"
                await asyncio.sleep(PACE)
            await self._insist("close", lambda box=box: box.signal(Box.close))
            told.check(await self._insist("result", lambda box=box: box.result(timeout=PATIENCE)))
            self._completed("box", began)

    # -- the published client

    async def _published_chains(self, client: durable_workflow.Client) -> None:
        while not self._over:
            id = f"published-chain-{next(_numbers)}"
            began = time.monotonic()
            await self._start_published(client, "published-chain", id, [id, STEPS])
            done = await self._published_result(client, id)
            assert done == [f"{id}/{step}" for step in range(STEPS)]
            self._completed("published-chain", began)
            await asyncio.sleep(PACE)

    async def _published_boxes(self, client: durable_workflow.Client) -> None:
        while not self._over:
            told = Told(f"published-box-{next(_numbers)}")
            began = time.monotonic()
            await self._start_published(client, "published-box", told.id, [])
            for number in range(6):
                token = f"{told.id}:{number}"
                told.asked.add(token)
                with suppress(DurableWorkflowError, httpx.HTTPError):
                    if number % 3 == 2:
                        await client.update_workflow(told.id, "add", args=[token], wait_for="completed")
                    else:
                        await client.signal_workflow(told.id, "put", args=[token])
                    told.certain.append(token)
                    self.requests["acknowledged"] += 1
                await asyncio.sleep(PACE)
            await self._insist("close", lambda name=told.id: client.signal_workflow(name, "close"))
            told.check(await self._published_result(client, told.id))
            self._completed("published-box", began)

    async def _start_published(self, client: durable_workflow.Client, type: str, id: str, input: list[Any]) -> None:
        async def start() -> None:
            with suppress(PublishedAlreadyStarted):
                await client.start_workflow(workflow_type=type, task_queue=QUEUE, workflow_id=id, input=input)

        await self._insist("start", start)

    async def _published_result(self, client: durable_workflow.Client, id: str) -> Any:
        handle = client.get_workflow_handle(id)
        return await self._insist("result", lambda: handle.result(poll_interval=0.1, timeout=PATIENCE))

    async def _insist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Until it is answered: an outage ends some time."""
        deadline = time.monotonic() + 2 * PATIENCE
        while True:
            self.requests[what] += 1
            try:
                return await call()
            except (WorkflowFailed, UpdateFailed):
                raise
            except (BackstayError, DurableWorkflowError, httpx.HTTPError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"{what} is not answered") from error
                self.requests[f"{what} again"] += 1
            await asyncio.sleep(0.1)

    def _completed(self, kind: str, began: float) -> None:
        self.completed[kind] += 1
        self.slowest = max(self.slowest, time.monotonic() - began)

    # -- the end

    async def _check_rows(self) -> None:
        """Nothing is open, and nothing is left to do or to deliver."""
        place = address(self._cluster.store)
        connection = await asyncpg.connect(place.dsn)
        try:
            # Named in full: behind a pooler, the next statement may be that of another session.
            ended = await connection.fetch(f"select status, count(*) as runs from {place.schema}.run group by status")
            assert {row["status"] for row in ended} == {"completed"}, ended
            for table in ("task", "send"):
                deadline = time.monotonic() + PATIENCE
                while left := await connection.fetchval(f"select count(*) from {place.schema}.{table}"):
                    assert time.monotonic() < deadline, f"{left} rows of {table} are left"
                    await asyncio.sleep(0.05)
        finally:
            await connection.close()

    def _check_certificate(self) -> None:
        for node in self._cluster.ready():
            found = self._cluster.ask("/system/liveness?fresh=1", node)
            assert found["stranded"] in (0, []), found

    def _lines(self) -> list[tuple[str, int, float]]:
        ledger = self._cluster.ledger
        lines = [line.split("\t") for line in ledger.read_text().splitlines()] if ledger.exists() else []
        return [(what, int(pid), float(at)) for what, pid, at in lines]

    def _check_ledger(self) -> None:
        """A repeat has a reason if something was killed or stopped after the earlier execution began, and before it."""
        executions: dict[str, list[float]] = {}
        for what, _, at in self._lines()[len(self._ledger_before) :]:
            executions.setdefault(what, []).append(at)
        assert executions, "no activity ran"
        blows = [blow.at for blow in self._cluster.blows if blow.at >= self._began]
        unexplained = [
            (what, [round(at - self._began, 3) for at in times])
            for what, times in executions.items()
            for first, again in itertools.pairwise(sorted(times))
            if not any(first <= blow <= again for blow in blows)
        ]
        self.repeated = sum(len(times) - 1 for times in executions.values())
        told = [(round(blow.at - self._began, 3), blow.what) for blow in self._cluster.blows if blow.at >= self._began]
        for what, _ in unexplained:
            self._print_history(what.partition("/")[0])
        assert not unexplained, f"repeated without a reason: {unexplained}; {told}"

    def _print_history(self, workflow_id: str) -> None:
        for event in self._cluster.ask(f"/workflows/{workflow_id}/history")["events"]:
            print(workflow_id, json.dumps(event))
