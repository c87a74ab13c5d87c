"""Clients: they start programs, talk to them, and try again with the same request id whenever an answer stays away."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.update import PENDING
from backstay.protocol.commands import SignalWorkflow
from backstay.protocol.requests import AwaitResult, PollActivityTask, PollWorkflowTask, Request
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.errors import RequestRefused, UpdateFailed, WorkflowAlreadyStarted
from backstay.store.errors import StoreError

from .disk import RecordedAlready
from .programs import AWAY, BUILDS, Grammar, Program

if TYPE_CHECKING:
    from .nodes import Node
    from .simulation import Simulation

PATIENCE = 20.0
COMMANDS = {"note", "letter", "add", "pause", "unpause", "cancel", "terminate", "repair", "archive"}
"""What leaves a record."""


class Lost(Exception):
    """No answer came."""


class Wire:
    """The way from one client to whichever node serves. Requests and replies get lost, late and doubled on it."""

    def __init__(self, sim: Simulation, random: Random) -> None:
        self._sim = sim
        self._random = random
        # On a bad line to a far database one request takes a dozen ways of seconds each.
        self.patience = 3 * PATIENCE if sim.far else PATIENCE
        self._place = random.randrange(sim.places) if sim.sticky else None

    async def call(self, request: Request[Any]) -> Any:
        sim, faults = self._sim, self._sim.faults
        nodes = [node for node in sim.nodes if node.serving]
        if not nodes or faults.fires("request lost"):
            await asyncio.sleep(1)
            raise Lost
        if faults.fires("request late"):
            await asyncio.sleep(faults.dice("request late").choice([0.001, 0.1, 2]))
        answer: asyncio.Future[Any] = sim.loop.create_future()
        self._ask(self._choose(nodes), request, answer)
        once = isinstance(request, SignalWorkflow) and request.request_id is None
        if not once and faults.fires("request twice"):
            self._ask(self._random.choice(nodes), request, answer)  # whoever answers first is believed
        try:
            return await asyncio.wait_for(answer, self.patience)
        except TimeoutError:
            raise Lost from None

    def _choose(self, nodes: list[Node]) -> Node:
        """The node that one talks to if it is there; or any one, request by request."""
        return next((node for node in nodes if node.place == self._place), None) or self._random.choice(nodes)

    def _ask(self, node: Node, request: Request[Any], answer: asyncio.Future[Any]) -> None:
        lost = self._sim.faults.fires("reply lost")

        async def serve() -> None:
            asked = self._sim.loop.time()
            try:
                operations = node.app._engine_room.api
                if operations is None:
                    return
                value, error = await operations.call(request), None
            except Exception as raised:
                value, error = None, raised
            if isinstance(error, RecordedAlready):
                self._sim.violation("I7 who asks twice is answered by the record", (type(request).__name__, error))
            if isinstance(request, AwaitResult) and value is not None and value.status is None and node.serving:
                waited = self._sim.loop.time() - asked
                early = request.wait_seconds is None or waited < request.wait_seconds - 0.001
                self._sim.auditor.must(not early, "S13 who waits is not sent away early", (node.name, request, waited))
            if lost or answer.done():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        if node.serving:
            serving = node.world.spawn(serve(), "request")
            if isinstance(request, AwaitResult):
                self._sim.auditor.waits(node, request, serving)
            if isinstance(request, PollWorkflowTask | PollActivityTask):
                self._sim.loop.call_later(
                    request.wait_seconds + self._slack(), self._poll_is_over, node, serving, request, node.life.pauses
                )

    def _slack(self) -> float:
        """What reading and writing may take, on top of the time that a poll has."""
        return 120.0 if self._sim.far else 10.0

    def _poll_is_over(self, node: Node, serving: asyncio.Task[Any], request: Any, pauses: int) -> None:
        over = serving.done() or not node.serving or node.life.paused or node.life.pauses > pauses
        self._sim.auditor.must(over, "no poll outlives its time", (node.name, request))


class Told:
    """What a client knows of an instance it has started."""

    def __init__(self, id: str, definition: Any, program: Program, arguments: tuple[Any, ...]) -> None:
        self.id = id
        self.definition = definition
        self.program = program
        self.arguments = arguments
        self.started = False
        self.stops: set[str] = set()  # cancel, terminate: asked for, whether or not an answer came
        self.stopped: str | None = None  # what the first acknowledged stop said
        self.notes: dict[str, bool] = {}  # token -> acknowledged
        self.letters: dict[str, bool] = {}
        self.adds: dict[int, bool] = {}
        self.added: dict[int, Any] = {}  # what acknowledged updates answered
        self.paused = False
        self.damaged = False
        self.forgotten = False  # the database has lost something of it that clients may have been told
        self.away = False  # its code runs in workers elsewhere


class Client:
    def __init__(self, sim: Simulation, number: int) -> None:
        self.sim = sim
        self.name = f"c{number}"
        self.random = Random(f"{sim.seed}:client {number}")
        self.wire = Wire(sim, self.random)
        self._serial = 0

    def client(self, request_id: str | None = None) -> AsyncClient:
        client = AsyncClient(self.wire)
        return client if request_id is None else client.options(request_id=request_id)

    async def live(self) -> None:
        while self.sim.operations < self.sim.target:
            await asyncio.sleep(self.random.choice(self.sim.swarm.pace))
            await self.act()

    async def act(self) -> None:
        sim, pick = self.sim, self.random
        mine = [told for told in sim.told if told.started]
        verbs = ["start"] * 4 + ["note"] * 4 + ["letter"] * 4 + ["add"] * 4 + ["query"] * 3 + ["result"] * 2
        verbs += ["describe", "list", "pause", "pause", "cancel", "terminate", "repair", "archive", "unpause"]
        verb = "start" if not mine or len(mine) < 2 else pick.choice(sim.swarm.likes(verbs))
        told = pick.choice(mine[-6:]) if mine else None
        sim.operation(f"{self.name} {verb} {'' if verb == 'start' or told is None else told.id}")
        if verb == "start" or told is None:
            await self.start()
            return
        done = await self.insist(verb, told)
        sim.done(verb if done else f"{verb} in vain")

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    async def start(self) -> None:
        sim, pick = self.sim, self.random
        if len(sim.told) >= sim.instances:
            return
        definition = pick.choice(BUILDS[sim.newest_build()])
        place = BUILDS[sim.newest_build()].index(definition)
        grammar = Grammar(Random(f"{sim.seed}:program {len(sim.told)}"), sim.swarm)
        program = grammar.program(is_async=place == 1, careful=place == 2)
        id = f"w{len(sim.told)}"
        told = Told(id, definition, program, (program, []))
        told.away = pick.random() < sim.swarm.away
        grammar_used = sorted(grammar.used)
        sim.told.append(told)
        sim.log(f"{self.name} starts {id}: {program}")
        first = self._value("note", told) if pick.random() < 0.35 else None
        for attempt in range(60):
            try:
                client = self.client(f"start-{id}")
                if told.away:
                    client = client.options(queue=AWAY)
                if first is None:
                    await client.start(definition, id, *told.arguments)
                else:
                    await client.signal_with_start(definition, id, told.arguments, definition.note, first)
                    told.notes[first] = True
                break
            except WorkflowAlreadyStarted:
                sim.violation("a repeated start with its request id was refused", told.id)
            except (Lost, StoreError):
                await asyncio.sleep(min(attempt, 5))
            except HistoryDamaged:
                return
        else:
            return
        told.started = True
        sim.auditor.answered(told, "start", f"start-{id}")
        sim.features.update(grammar_used)
        sim.done("start" if first is None else "signal with start")
        for verb in pick.choice(sim.swarm.at_once):
            sim.operation(f"{self.name} {verb} {id} at once")
            sim.done(verb if await self.insist(verb, told) else f"{verb} in vain")

    async def insist(self, verb: str, told: Told) -> bool:
        """Say it until an answer comes. The same request id each time, so that it is done once."""
        request_id = f"{self.name}-{self.serial()}"
        value = self._value(verb, told)
        if self.sim.links is not None and verb in ("note", "letter") and self.random.random() < 0.4:
            return await self.say_once(verb, told, value)
        for attempt in range(6):
            asked = self.sim.loop.time()
            try:
                await self.say(verb, told, request_id, value)
                if verb in COMMANDS:
                    self.sim.auditor.answered(told, verb, request_id)
                return True
            except (Lost, StoreError, TimeoutError) as error:
                if isinstance(error, Lost) and verb in COMMANDS and verb != "add" and not self.sim.lossy():
                    self.sim.violation("every request is answered", (told.id, verb, request_id))
                if verb in ("query", "result", "describe", "list"):
                    return False
                await asyncio.sleep(min(attempt, 5))
            except HistoryDamaged as damage:
                if not told.damaged:
                    self.sim.violation("nothing but what is damaged is unreadable", damage)
                return False
            except UpdateFailed:
                told.adds[value] = True
                return True
            except RequestRefused as refusal:
                self.sim.log(f"{self.name} {verb} {told.id} refused: {refusal.reason}")
                return self.refused(verb, told, value, refusal, self.sim.loop.time() - asked)
        return False

    async def say_once(self, verb: str, told: Told, value: Any) -> bool:
        """Without a request id: if no answer comes, it was said or it was not, and is not said again."""
        try:
            await self.say(verb, told, None, value)
        except (Lost, StoreError, HistoryDamaged):
            return False
        except RequestRefused as refusal:
            return self.refused(verb, told, value, refusal, 0)
        self.sim.auditor.said(told, value)
        return True

    def _value(self, verb: str, told: Told) -> Any:
        match verb:
            case "note":
                token = f"{self.name}.note{self.serial()}"
                told.notes[token] = False
                return token
            case "letter":
                token = f"{self.name}.letter{self.serial()}"
                told.letters[token] = False
                return token
            case "add":
                number = self.random.choice([1, 1, 1, 0, -1]) * (self.serial() * 100 + int(self.name[1:])) or 13
                if number != 13:
                    told.adds[number] = False
                return number
            case "cancel" | "terminate":
                told.stops.add(verb)
            case "pause":
                told.paused = True  # whether or not an answer comes
            case _:
                pass
        return None

    def refused(self, verb: str, told: Told, value: Any, refusal: RequestRefused, waited: float) -> bool:
        if verb == "add" and refusal.reason == PENDING:
            self.sim.auditor.update_refused(told, waited)
        if verb == "note":
            told.notes.pop(value)
        elif verb == "letter":
            told.letters.pop(value)
        elif verb == "add" and value != 13:
            told.adds.pop(value)
        return False

    async def say(self, verb: str, told: Told, request_id: str | None, value: Any) -> None:
        client = self.client(request_id)
        handle = client.handle(told.definition, told.id)
        definition = told.definition
        match verb:
            case "note":
                await handle.signal(definition.note, value)
                told.notes[value] = True
            case "letter":
                await handle.signal("inbox", value)
                told.letters[value] = True
            case "add":
                answer = await handle.update(definition.add, value)
                if value != 13:  # more than one may ask for it; where nobody can check, it is let in
                    told.adds[value] = True
                    told.added[value] = answer
            case "query":
                noted = self.sim.auditor.noted(told)
                found = await self.client().handle(told.definition, told.id).query(definition.status)
                if len(found) != 2:
                    self.sim.violation("a query answers something else", told.id)
                self.sim.auditor.query_answered(told, noted, found[0])
            case "result":
                await self.result(told)
            case "describe":
                await handle.describe()
            case "list":
                await client.list(limit=5)
            case "pause":
                await handle.pause()
            case "unpause":
                await handle.unpause()
            case "cancel":
                said = await handle.cancel()
                told.stopped = told.stopped or said
            case "terminate":
                await handle.terminate()
                told.stopped = told.stopped or "terminated"
            case "repair":
                await handle.repair()
            case "archive":
                await handle.archive()
            case _:
                raise AssertionError(verb)

    async def result(self, told: Told) -> None:
        from backstay.sdk.errors import WorkflowError

        try:
            # Some wait for longer than their request is waited for: what they hear shows at the node.
            value = await self.client().handle(None, told.id).result(timeout=120 if self._serial % 3 == 0 else 15)
        except TimeoutError:
            self.sim.auditor.waited_in_vain(told)
            return
        except WorkflowError:
            return
        self.sim.auditor.outcome_seen(told, value)


class Listener(Client):
    """One who does nothing but wait for ends: who waits asks first, and far away much happens until the answer is there."""

    async def live(self) -> None:
        while self.sim.operations < self.sim.target:
            await asyncio.sleep(self.random.choice([0.001, 0.01, 0.05, 0.5]))
            told = next((told for told in reversed(self.sim.told) if self.sim.goes_on(told.id)), None)
            if told is None:
                continue
            self.serial()
            try:
                await self.result(told)
                self.sim.done("listen")
            except (Lost, StoreError, HistoryDamaged, RequestRefused):
                pass  # it is asked again soon
