"""Workflows written for the published package, and the customers who start them, talk to them and look at what they bring.

An errand is a list of statements, plain data; values are made of tokens that occur once. What an errand brings is known
before it begins, whoever works on it and however often.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import httpx
from durable_workflow import activity, workflow
from durable_workflow.errors import RuntimeDiscoveryUnavailable, ServerError, WorkflowAlreadyStarted
from durable_workflow.workflow import ActivityRetryPolicy

from .published_client import WireClient

if TYPE_CHECKING:
    from .simulation import LinkSimulation

QUEUE = "published"
ERRAND = "published-errand"
MONTH = 30 * 86400
AGAIN = ActivityRetryPolicy(max_attempts=1000, initial_interval_seconds=1, backoff_coefficient=1)
KINDS = ("plain", "plain", "flaky", "beating", "slow")


@activity.defn(name="carry")
async def carry(token: str, kind: str) -> str:
    """What it does is told by the process that does it."""
    loop: Any = asyncio.get_running_loop()
    await loop.owner.carries(activity.context(), kind)
    return f"{token}!"


@workflow.defn(name=ERRAND)
class Errand:
    def __init__(self) -> None:
        self.heard: list[str] = []

    @workflow.signal("say")
    def say(self, token: str) -> None:
        self.heard.append(token)

    def run(self, ctx: Any, statements: list[list[Any]]) -> Any:
        lines: list[Any] = []
        for statement in statements:
            match statement:
                case ["carry", token, kind]:
                    lines.append((yield _carried(ctx, token, kind)))
                case ["both", *tokens]:
                    lines.append((yield [_carried(ctx, token, "plain") for token in tokens]))
                case ["sleep", seconds]:
                    yield ctx.sleep(seconds)
                case ["hear", count]:
                    yield ctx.wait_condition(lambda count=count: len(self.heard) >= count, key=f"heard-{count}")
                    lines.append(self.heard[:count])
                case _:
                    raise ValueError(statement)
        return lines


def _carried(ctx: Any, token: str, kind: str) -> Any:
    beats = 20 if kind == "beating" else None
    return ctx.schedule_activity("carry", [token, kind], retry_policy=AGAIN, heartbeat_timeout=beats)


class Customer:
    """Starts one errand, says what it waits for, and fetches what it has brought. Whoever is not answered asks again.

    `late`: it comes when all has been calm for a while, and everything goes as fast as it can.
    """

    def __init__(self, sim: LinkSimulation, number: int, dice: Random, late: bool) -> None:
        self._late = late
        self.id = f"errand-{number}"
        self._sim = sim
        self._dice = dice
        self._client = WireClient(sim, sim.people, f"customer-{number}")
        self._token = 0
        self.words: list[str] = []
        self.statements = [self._statement() for _ in range(dice.choice([1, 2, 3, 5]))]
        self.started = False
        self.ended = False

    def _statement(self) -> list[Any]:
        dice = self._dice
        match dice.choice(["carry", "carry", "carry", "both", "sleep", "hear"]):
            case "both":
                return ["both", *(self._fresh() for _ in range(dice.choice([2, 3])))]
            case "sleep":
                return ["sleep", dice.choice([1, 5, 60])]
            case "hear" if not self.words:
                # Once: code of the package that did not have to wait, and then does, is not what its history says.
                self.words += [self._fresh() for _ in range(dice.choice([1, 2]))]
                return ["hear", len(self.words)]
            case _:
                return ["carry", self._fresh(), dice.choice(KINDS)]

    def _fresh(self) -> str:
        self._token += 1
        return f"{self.id}.{self._token}"

    def brings(self) -> list[Any]:
        """What the errand must bring."""
        lines: list[Any] = []
        for statement in self.statements:
            match statement:
                case ["carry", token, _]:
                    lines.append(f"{token}!")
                case ["both", *tokens]:
                    lines.append([f"{token}!" for token in tokens])
                case ["hear", count]:
                    lines.append(self.words[:count])
        return lines

    async def live(self) -> None:
        try:
            await self._go()
        except Exception as error:
            self._sim.violation("nothing unforeseen happens", (self.id, repr(error)))

    async def _go(self) -> None:
        while self._late and self._sim.calm_since is None:
            await asyncio.sleep(10)
        await asyncio.sleep(self._dice.choice([150, 200, 350]) if self._late else self._dice.choice([0, 0, 1, 10, 60]))
        await self._insist("start", self._start)
        self.started = True
        for position, word in enumerate(self.words):
            await asyncio.sleep(self._dice.choice([0, 0.01, 1, 10]))
            await self._insist("say", partial(self._say, position, word))
        while self._sim.goes_on(self.id):
            await asyncio.sleep(1)
        result = await self._insist("fetch", self._fetch)
        self._sim.laws.must(
            result == self.brings(), "a published errand brings what it must", (self.id, result, self.brings())
        )
        self.ended = True
        await self._client.aclose()

    async def _start(self) -> None:
        with suppress(WorkflowAlreadyStarted):  # the answer to an earlier try was lost
            await self._client.start_workflow(
                workflow_type=ERRAND,
                workflow_id=self.id,
                task_queue=QUEUE,
                input=[self.statements],
                execution_timeout_seconds=MONTH,
                run_timeout_seconds=MONTH,
            )
        there = ("default", self.id) in self._sim.disk.names
        self._sim.laws.must(there, "nobody is answered before the commit", (self.id, "start"))

    async def _say(self, position: int, word: str) -> None:
        """An errand waits for all of its words, in order: it cannot be over before this one is heard."""
        await self._client.signal_workflow(self.id, "say", args=[word], request_id=f"{self.id}-{position}")

    async def _fetch(self) -> Any:
        return await self._client.get_result(self._client.get_workflow_handle(self.id), timeout=5)

    async def _insist(self, verb: str, ask: Any) -> Any:
        while True:
            try:
                answer = await ask()
            except (httpx.TransportError, TimeoutError, RuntimeDiscoveryUnavailable):
                pass
            except ServerError as refusal:
                if refusal.status < 500 and refusal.status not in (408, 429):
                    self._sim.violation("customers are not refused", (self.id, verb, repr(refusal)))
                    raise
            else:
                self._sim.done(f"errand {verb}")
                self._sim.log(f"{self.id}: {verb} is done")
                return answer
            await asyncio.sleep(self._dice.choice([0.1, 1, 5]))
