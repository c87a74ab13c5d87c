"""Random workflow programs, the code that plays them, and what each must have produced.

A program is a list of statements, plain data. Every statement leaves one line behind; `agrees` knows which lines a
statement may leave. Values are made of tokens that occur once, so that whatever is lost, doubled or mixed up shows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from backstay import (
    ActivityCrashed,
    ActivityTimedOut,
    Saga,
    Signal,
    activity,
    activity_info,
    background,
    child,
    continue_as_new,
    gather,
    heartbeat,
    info,
    now,
    patched,
    query,
    race,
    rng,
    side_effect,
    signal,
    sleep,
    spawn,
    update,
    upsert_memo,
    upsert_search_attributes,
    uuid4,
    version,
    wait,
    workflow,
)
from backstay.sdk.errors import StructuralLimitExceeded

from .swarm import Swarm

Statement = list[Any]
Program = list[Statement]


class Declined(Exception):
    """A failure that is final."""


class Flaky(Exception):
    """A failure that goes away."""


class Ledger:
    """What the activities of a run of the simulator have done to the world outside, attempt by attempt."""

    def __init__(self) -> None:
        self.acts: list[tuple[str, int, str]] = []  # (idempotency key, attempt, token)
        self.tried: dict[str, str] = {}  # by attempt id
        self.twice: list[str] = []
        self.poison: Callable[[], str | None] = lambda: None
        self.kill: Callable[[], object] = lambda: None  # the process that is running an activity, if this is the time
        self.begun: Counter[str] = Counter()
        self.too_often: list[tuple[str, int]] = []

    def begin(self, key: str, at_most: int) -> None:
        """An execution that may be begun so often, and no more."""
        self.begun[key] += 1
        if self.begun[key] > at_most:
            self.too_often.append((key, self.begun[key]))

    def take(self, attempt_id: str, who: str) -> None:
        """A worker elsewhere begins an attempt."""
        if attempt_id in self.tried:
            self.twice.append(attempt_id)
        self.tried[attempt_id] = who

    def act(self, token: str, *, local: bool = False) -> None:
        at = activity_info()
        if not local:  # a local one that was not recorded runs again under the same number
            if at.attempt_id in self.tried:
                self.twice.append(at.attempt_id)
            self.tried[at.attempt_id] = token
        self.acts.append((at.idempotency_key, at.number, token))


ledger = Ledger()
"""Of the simulation that runs now; activities have nowhere else to write."""


# -- activities


class Unwritable(Exception):
    """Carries what no codec can write."""


def _value(token: str) -> Any:
    what = ledger.poison()
    if what == "poison":
        raise Unwritable(object)  # not an instance: its text would differ from run to run
    if what == "unresolvable":

        class Passing(Exception):
            """Defined where no other process can find it."""

        raise Passing(what)
    return f"{token}!"


@activity(type="good", max_crashes="forever", retries="forever", backoff=2)
def good(token: str) -> str:
    ledger.act(token)
    return _value(token)


@activity(type="bad", max_crashes="forever", retries=1, backoff=1, fatal=[Declined])
def bad(token: str) -> str:
    ledger.act(token)
    raise Declined(token)


@activity(type="flaky", max_crashes="forever", retries=4, backoff=[0.5, 1, 2, 20])
def flaky(token: str, failures: int) -> str:
    ledger.act(token)
    if activity_info().number <= failures:
        raise Flaky(f"{token} {activity_info().number}")
    return f"{token}!"


@activity(
    type="hasty", max_crashes="forever", retries=3, backoff=1, timeout=20, start_timeout=900, schedule_timeout=7200
)
def hasty(token: str) -> str:
    ledger.act(token)
    return f"{token}!"


@activity(type="beating", max_crashes="forever", retries="forever", backoff=1, heartbeat_timeout=30)
async def beating(token: str, beats: int) -> str:
    ledger.act(token)
    for beat in range(beats):
        heartbeat("beat", current=beat, total=beats)
        await asyncio.sleep(4)
    return f"{token}!"


@activity(type="once", at_most_once=True)
def once(token: str) -> str:
    ledger.begin(activity_info().idempotency_key, 1)
    ledger.act(token)
    return f"{token}!"


@activity(type="deadly", max_crashes=2)
def deadly(token: str) -> str:
    """Kills whoever runs it, nearly always."""
    ledger.begin(activity_info().idempotency_key, 3)
    ledger.act(token)
    ledger.kill()
    return f"{token}!"


@activity(type="near", local=True, retries="forever", backoff=1)
def near(token: str) -> str:
    ledger.act(token, local=True)
    return _value(token)


@activity(type="near_bad", local=True)
def near_bad(token: str) -> str:
    ledger.act(token, local=True)
    raise Declined(token)


FAR = "far"
"""The queue of workers in other processes that run activities one at a time, by hand."""

AWAY = "away"
"""The queue of workers in other processes that run everything."""


@activity(type="far", max_crashes="forever", queue="far", retries="forever", backoff=1)
def far(token: str) -> str:
    raise AssertionError("done elsewhere")


@activity(type="far_once", queue="far", at_most_once=True)
def far_once(token: str) -> str:
    raise AssertionError("done elsewhere")


ACTIVITIES = [good, bad, flaky, hasty, beating, once, deadly, near, near_bad, Declined, Flaky]


# What only matters where a wire is between an activity and its engine; see `link/programs.py`.


@activity(type="chatty", max_crashes="forever", retries="forever", backoff=1, heartbeat_timeout=30)
def chatty(token: str, beats: int) -> str:
    """Says that it is alive right before it ends: the answers come when it is over."""
    ledger.act(token)
    for beat in range(beats):
        heartbeat("beat", current=beat, total=beats)
    return f"{token}!"


@activity(type="dozy", max_crashes="forever", retries=1, backoff=1, timeout=5)
async def dozy(token: str, seconds: float) -> str:
    """Sleeps past its timeout, and then says that it is alive."""
    ledger.act(token)
    for _ in range(3):
        await asyncio.sleep(seconds)
        heartbeat("awake")
    return f"{token}!"


@activity(type="bulky", max_crashes="forever")
def bulky(token: str, size: int) -> str:
    """Returns more than a payload, or a request, may have."""
    ledger.act(token)
    return token + "." * size


LINKED = [chatty, dozy, bulky]


def aside(token: str) -> str:
    """Called in the background."""
    return good(token)


# -- workflows: the same code in two builds, the second with a change in it


MOST_TOLD = 3  # signals from a parent to its listener


@workflow(type="errand", unchecked=True)
def errand(token: str, program: Program) -> Any:
    """A child: plays its program and returns its lines under its token."""
    return [token, Play().play(program)]


@workflow(type="errand-async", unchecked=True)
async def errand_async(token: str, program: Program) -> Any:
    return [token, await Play().play_later(program)]


@workflow(type="listener", unchecked=True, signals=["tell"])
def listener(token: str, count: int) -> Any:
    """A child that hears its parent."""
    return [token, [wait("tell") for _ in range(count)]]


class Play:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.added: list[int] = []

    # -- plain code

    def play(self, program: Program) -> list[Any]:
        return [self.do(statement) for statement in program]

    def do(self, s: Statement) -> Any:
        match s:
            case ["act", *_]:
                return self.call(s).run()
            case ["risk", *call]:
                try:
                    return ["no", self.call(["act", *call]).run()]
                except Declined as declined:
                    return ["declined", str(declined)]
                except ActivityTimedOut as late:
                    return ["late", late.timeout_kind]
                except ActivityCrashed as crashed:
                    return ["crashed", crashed.crashes]
            case ["sleep", seconds]:
                before = now()
                sleep(seconds)
                return round((now() - before).total_seconds(), 6)
            case ["signal", timeout]:
                return ["heard", wait("inbox", timeout=timeout) if timeout else wait("inbox")]
            case ["notes", count, timeout]:
                return ["noted", wait(lambda: len(self.notes) >= count, key="notes", timeout=timeout)]
            case ["child", *_]:
                return self.step(s).run()
            case ["fails", token]:
                try:
                    return child(errand, token, [["raise", token]])
                except Declined as error:
                    return ["child failed", str(error)]
            case ["tell", token, count]:
                handle = child.start(listener, token, count)
                for number in range(count):
                    handle.signal("tell", f"{token}.{number}")
                return handle.join()
            case ["gather", members, limit]:
                return gather([self.step(member) for member in members], limit=limit)
            case ["risky gather", members]:
                try:
                    return ["no", gather([self.step(member) for member in members])]
                except Declined as declined:
                    return ["declined", str(declined)]
            case ["race", members]:
                return list(race([self.step(member) for member in members]))
            case ["saga", token, count, fails]:
                return self.saga(token, count, fails)
            case ["spawn", programs]:
                branches = [spawn(self.play, program) for program in programs]
                return [branch.join() for branch in branches]
            case ["background", token]:
                return background(aside, token)
            case ["within", _, program]:
                return ["played", self.play(program)]
            case ["bulk", token, size]:
                return self.bulk(token, size)
            case _:
                return self.plainly(s)

    def bulk(self, token: str, size: int) -> Any:
        """What is refused leads elsewhere than what is not."""
        try:
            bulky(token, size)
        except StructuralLimitExceeded:
            return ["refused", good(f"{token}.sorry")]
        return ["taken", flaky(f"{token}.thanks", 0)]

    def saga(self, token: str, count: int, fails: bool) -> Any:
        done: list[str] = []
        try:
            with Saga() as saga:
                for number in range(count):
                    done.append(good(f"{token}.{number}"))
                    saga.undo(good, f"{token}.{number}.undo")
                if fails:
                    bad(f"{token}.bad")
        except Declined as declined:
            return ["undone", done, str(declined)]
        return ["done", done]

    def plainly(self, s: Statement) -> Any:
        """The same in plain and in async code."""
        match s:
            case ["effect", token]:
                return side_effect(lambda: f"{token}!")
            case ["version", change]:
                return [version(change, max=2), patched("p" + change)]
            case ["memo", token]:
                upsert_memo(token=token)
                upsert_search_attributes(token=token)
                return info().workflow_id
            case ["luck"]:
                return [str(uuid4()), rng().random()]
            case ["raise", token]:
                raise Declined(token)
            case _:
                raise AssertionError(s)

    # -- steps that are described, for groups and for async code

    def call(self, s: Statement) -> Any:
        match s:
            case ["act", "good", token]:
                return good.step(token)
            case ["act", "bad", token]:
                return bad.step(token)
            case ["act", "flaky", token, failures]:
                return flaky.step(token, failures)
            case ["act", "hasty", token]:
                return hasty.step(token)
            case ["act", "beating", token, beats]:
                return beating.step(token, beats)
            case ["act", "once", token]:
                return once.step(token)
            case ["act", "far_once", token]:
                return far_once.step(token)
            case ["act", "deadly", token]:
                return deadly.step(token)
            case ["act", "near", token]:
                return near.step(token)
            case ["act", "far", token]:
                return far.step(token)
            case ["act", "near_bad", token]:
                return near_bad.step(token)
            case ["act", "chatty", token, beats]:
                return chatty.step(token, beats)
            case ["act", "dozy", token, seconds]:
                return dozy.step(token, seconds)
            case _:
                raise AssertionError(s)

    def step(self, s: Statement) -> Any:
        match s:
            case ["act", *_]:
                return self.call(s)
            case ["sleep", seconds]:
                return sleep.step(seconds)
            case ["child", token, program]:
                return errand.step(token, program)
            case ["child later", token, program]:
                return errand_async.step(token, program)
            case ["gather", members, limit]:
                return gather.step([self.step(member) for member in members], limit=limit)
            case ["signal", timeout]:
                return wait.step("inbox", timeout=timeout)
            case _:
                raise AssertionError(s)

    # -- async code

    async def play_later(self, program: Program) -> list[Any]:
        return [await self.do_later(statement) for statement in program]

    async def do_later(self, s: Statement) -> Any:
        match s:
            case ["act", *_]:
                return await self.call(s)
            case ["risk", *call]:
                try:
                    return ["no", await self.call(["act", *call])]
                except Declined as declined:
                    return ["declined", str(declined)]
                except ActivityTimedOut as late:
                    return ["late", late.timeout_kind]
                except ActivityCrashed as crashed:
                    return ["crashed", crashed.crashes]
            case ["sleep", seconds]:
                before = now()
                await asyncio.sleep(seconds)
                return round((now() - before).total_seconds(), 6)
            case ["signal", timeout]:
                return ["heard", await wait.step("inbox", timeout=timeout)]
            case ["notes", count, timeout]:
                return ["noted", await wait.step(lambda: len(self.notes) >= count, key="notes", timeout=timeout)]
            case ["child", *_]:
                return await self.step(s)
            case ["gather", members, limit]:
                return await gather.step([self.step(member) for member in members], limit=limit)
            case ["race", members]:
                return list(await race.step([self.step(member) for member in members]))
            case ["spawn", programs]:
                return list(await asyncio.gather(*(self.play_later(program) for program in programs)))
            case ["within", seconds, program]:
                try:
                    async with asyncio.timeout(seconds):
                        return ["played", await self.play_later(program)]
                except TimeoutError:
                    return ["too late"]
            case ["fails" | "tell" | "risky gather" | "saga" | "background" | "bulk", *_]:
                return self.do(s)  # plain code may be called from async code
            case _:
                return self.plainly(s)


class Talking(Play):
    """What others can say to a program."""

    inbox = Signal[str]("inbox")

    @signal
    def note(self, token: str) -> None:
        self.notes.append(token)

    @update
    def add(self, number: int) -> int:
        if number < 0:
            raise Declined(f"less than nothing: {number}")
        self.added.append(number)
        return sum(self.added)

    @add.validator
    def _enough(self, number: int) -> None:
        if number == 13:
            raise ValueError("not thirteen")

    @query
    def status(self) -> list[Any]:
        return [len(self.notes), len(self.added)]


class Plain(Talking):
    def body(self, program: Program, before: list[Any]) -> Any:
        lines = list(before)
        for place, statement in enumerate(program):
            if statement == ["again"]:
                if self.notes or self.added:
                    lines.append(["said", list(self.notes), list(self.added)])
                again: Any = type(self)
                continue_as_new(again, program[place + 1 :], lines)
            lines.append(self.do(statement))
        return [lines, list(self.notes), list(self.added)]


@workflow(type="program", unchecked=True)
class PlainA(Plain):
    def handle(self, program: Program, before: list[Any]) -> Any:
        return self.body(program, before)


@workflow(type="program", unchecked=True)
class PlainB(Plain):
    def handle(self, program: Program, before: list[Any]) -> Any:
        if patched("newer"):
            good("patch")
        return self.body(program, before)


class Later(Talking):
    async def body(self, program: Program, before: list[Any]) -> Any:
        lines = list(before)
        for place, statement in enumerate(program):
            if statement == ["again"]:
                if self.notes or self.added:
                    lines.append(["said", list(self.notes), list(self.added)])
                again: Any = type(self)
                continue_as_new(again, program[place + 1 :], lines)
            lines.append(await self.do_later(statement))
        return [lines, list(self.notes), list(self.added)]


@workflow(type="program-async", unchecked=True)
class LaterA(Later):
    async def handle(self, program: Program, before: list[Any]) -> Any:
        return await self.body(program, before)


@workflow(type="program-async", unchecked=True)
class LaterB(Later):
    async def handle(self, program: Program, before: list[Any]) -> Any:
        if patched("newer"):
            await good.step("patch")
        return await self.body(program, before)


@workflow(type="careful", unchecked=True, handles_cancel=60)
class Careful(Talking):
    """Sees cancellation and tidies up. The same in both builds."""

    def handle(self, program: Program, before: list[Any]) -> Any:
        lines = list(before)
        with Saga() as saga:
            saga.undo(good, "tidy")
            lines += [self.do(statement) for statement in program]
        return [lines, list(self.notes), list(self.added)]


BUILDS: dict[str, list[Any]] = {"A": [PlainA, LaterA, Careful], "B": [PlainB, LaterB, Careful]}
HELPERS = [errand, errand_async, listener]


# -- the grammar


class Grammar:
    def __init__(self, random: Random, swarm: Swarm | None = None) -> None:
        self._random = random
        self._swarm = swarm or Swarm(None)
        self._tokens = 0
        self.used: set[str] = set()

    def token(self) -> str:
        self._tokens += 1
        return f"t{self._tokens}"

    def program(self, *, is_async: bool, careful: bool) -> Program:
        pick = self._random
        found = [self.statement(2) for _ in range(pick.randint(*((0, 2) if self._swarm.short else (1, 7))))]
        if not careful and pick.random() < 0.25:
            found.insert(pick.choice([0, 0, pick.randrange(len(found) + 1)]), ["again"])
        if is_async:
            found.append(["within", pick.choice([0.5, 3, 600]), [self.leaf(), self.leaf()]])
        for statement in found:
            self._count(statement)
        return found

    def _count(self, statement: Any) -> None:
        if isinstance(statement, list) and statement and isinstance(statement[0], str):
            self.used.add(" ".join(statement[:2]) if statement[0] in ("act", "risk") else statement[0])
        if isinstance(statement, list):
            for part in statement:
                self._count(part)

    def leaf(self) -> Statement:
        pick = self._random
        match pick.choice(
            self._swarm.likes(["good", "good", "flaky", "beating", "beating", "near", "near", "far", "sleep"])
        ):
            case "flaky":
                return ["act", "flaky", self.token(), pick.choice([1, 2, 3])]
            case "beating":
                return ["act", "beating", self.token(), pick.choice([1, 3, 6])]
            case "sleep":
                return ["sleep", pick.choice([0, 0.5, 3, 60, 400])]
            case kind:
                return ["act", kind, self.token()]

    def member(self, depth: int) -> Statement:
        """What a group can have in it."""
        pick = self._random
        choice = pick.choice(self._swarm.likes(["good", "good", "flaky", "far", "sleep", "child", "gather"]))
        if choice == "child" and depth > 0:
            return [pick.choice(["child", "child later"]), self.token(), self.body(depth - 1)]
        if choice == "gather" and depth > 0:
            return [
                "gather",
                [self.member(depth - 1) for _ in range(pick.choice([1, 2, 3]))],
                pick.choice([None, 1, 2]),
            ]
        if choice == "sleep":
            return ["sleep", pick.choice([0, 1, 7])]
        if choice == "flaky":
            return ["act", "flaky", self.token(), 1]
        if choice == "far":
            return ["act", "far", self.token()]
        return ["act", "good", self.token()]

    def body(self, depth: int) -> Program:
        return [self.statement(depth, child=True) for _ in range(self._random.choice([1, 2]))]

    def statement(self, depth: int, *, child: bool = False) -> Statement:
        pick = self._random
        kinds = ["leaf"] * 6 + ["risk", "risk", "effect", "version", "memo", "luck", "saga"]
        if not child:
            kinds += ["signal", "signal", "notes"]
        if depth > 0:
            kinds += ["child", "fails", "tell", "gather", "gather", "race", "spawn", "background", "risky gather"]
        kind = pick.choice(self._swarm.likes(kinds))
        match kind:
            case "leaf":
                return self.leaf()
            case "risk":
                kind, token = pick.choice(["bad", "near_bad", "hasty"]), self.token()
                if kind == "hasty":
                    kind = Random(token).choice(["hasty", "hasty", "once", "far_once", "deadly"])
                return ["risk", kind, token]
            case "effect" | "memo" | "fails" | "background":
                return [kind, self.token()]
            case "version":
                return ["version", pick.choice("cd")]
            case "luck":
                return ["luck"]
            case "saga":
                return ["saga", self.token(), pick.choice([1, 2, 3]), pick.random() < 0.6]
            case "signal":
                return ["signal", pick.choice([None, 5, 500])]
            case "notes":
                return ["notes", pick.choice([1, 2]), pick.choice([None, 5, 500])]
            case "child":
                return ["child", self.token(), self.body(depth - 1)]
            case "tell":
                return ["tell", self.token(), pick.choice([1, MOST_TOLD])]
            case "gather":
                members = [self.member(depth - 1) for _ in range(pick.choice([1, 2, 4]))]
                return ["gather", members, pick.choice([None, 1, 2])]
            case "risky gather":
                return ["risky gather", [["act", "good", self.token()], ["act", "bad", self.token()]]]
            case "race":
                members = [["act", "good", self.token()], ["sleep", pick.choice([0.01, 1, 50])]]
                if not child and pick.random() < 0.3:
                    members.append(["signal", 900])
                return ["race", members]
            case _:
                return [
                    "spawn",
                    [[self.leaf() for _ in range(pick.choice([1, 2]))] for _ in range(pick.choice([2, 3]))],
                ]


# -- what must have come out


def agrees(s: Any, line: Any) -> bool:
    """Whether this statement may have left this line behind."""
    match s:
        case ["act", _, token, *_] | ["effect", token] | ["background", token]:
            return line == f"{token}!"
        case ["risk", "hasty" | "dozy", token, *_]:
            return line in (["no", f"{token}!"], ["late", "start_to_close"], ["late", "schedule_to_start"]) or (
                line == ["late", "schedule_to_close"]
            )
        case ["risk", "once" | "far_once", token]:
            return line in (["no", f"{token}!"], ["crashed", 1])
        case ["risk", "deadly", token]:
            return line in (["no", f"{token}!"], ["crashed", 3])
        case ["risk", _, token]:
            return line == ["declined", token]
        case ["bulk", token, _]:
            return line == ["refused", f"{token}.sorry!"]
        case ["sleep", _]:
            return isinstance(line, int | float) and line >= 0
        case ["signal", timeout]:
            return line[0] == "heard" and (isinstance(line[1], str) or (line[1] is None and timeout is not None))
        case ["notes", _, timeout]:
            return line == ["noted", True] or (line == ["noted", False] and timeout is not None)
        case ["child", token, program] | ["child later", token, program]:
            return line[0] == token and all_agree(program, line[1])
        case ["fails", token]:
            return line == ["child failed", token]
        case ["tell", token, count]:
            return line == [token, [f"{token}.{number}" for number in range(count)]]
        case ["gather", members, _]:
            return len(line) == len(members) and all(
                line is None or one is None or member_agrees(m, one) for m, one in zip(members, line, strict=True)
            )
        case ["risky gather", [_, [_, _, token]]]:
            return line == ["declined", token]
        case ["race", members]:
            return len(line) == 2 and member_agrees(members[line[0]], line[1])
        case ["saga", token, count, fails]:
            done = [f"{token}.{number}!" for number in range(count)]
            return line == (["undone", done, f"{token}.bad"] if fails else ["done", done])
        case ["spawn", programs]:
            return len(line) == len(programs) and all(map(all_agree, programs, line))
        case ["within", _, program]:
            return line == ["too late"] or (line[0] == "played" and all_agree(program, line[1]))
        case ["version", _]:
            return line[0] in (-1, 2) and isinstance(line[1], bool)
        case ["memo", _]:
            return isinstance(line, str)
        case ["luck"]:
            return len(line) == 2
        case _:
            return False


def member_agrees(s: Any, line: Any) -> bool:
    match s:
        case ["sleep", _]:
            return line is None
        case ["signal", _]:
            return line is None or isinstance(line, str)
        case _:
            return agrees(s, line)


def all_agree(program: Program, lines: list[Any]) -> bool:
    return len(program) == len(lines) and all(agrees(s, line) for s, line in zip(program, lines, strict=True))


def disagreement(program: Program, result: Any) -> str | None:
    """What of a program's result is not what it must be."""
    lines, notes, added = result
    said = [line for line in lines if isinstance(line, list) and line[:1] == ["said"]]
    lines = [line for line in lines if not (isinstance(line, list) and line[:1] == ["said"])]
    wanted = [s for s in program if s != ["again"]]
    if len(wanted) != len(lines):
        return f"{len(wanted)} statements left {len(lines)} lines"
    for s, line in zip(wanted, lines, strict=True):
        if not agrees(s, line):
            return f"{s} left {line}"
    heard = [note for part in (*said, ["said", notes, added]) for note in part[1]]
    if len(set(heard)) != len(heard):
        return f"a note was applied twice: {heard}"
    return None
