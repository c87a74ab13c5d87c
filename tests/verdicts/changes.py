"""Changes of workflow code, made at random, and what becomes of open runs when the changed code is really deployed.

A program is a list of steps, of which source is made. Its runs stand at every place where it waits. One change is made, the verdict
of the new code on these runs is asked for, and then the code is deployed: another app opens the same file with it, and every run is
woken. The verdict is right if exactly those runs are blocked that it named.
"""

from __future__ import annotations

import asyncio
import linecache
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import backstay
from backstay import Signal, activity
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.embedded.app import AsyncBackstay
from backstay.sdk.embedded.reading import reading
from backstay.sdk.replay.replayer import Judge
from backstay.sdk.replay.verdict import Verdict, judge_open_runs

NAMES = "abcdef"
PATIENCE = 30.0

go = Signal[str]("go")
nudge = Signal[str]("nudge")  # no code waits for it: it makes a task, and nothing else


@activity(type="a")
def a(text: str) -> str:
    return f"a {text}"


@activity(type="b")
def b(text: str) -> str:
    return f"b {text}"


@activity(type="c")
def c(text: str) -> str:
    return f"c {text}"


@activity(type="d")
def d(text: str) -> str:
    return f"d {text}"


@activity(type="e")
def e(text: str) -> str:
    return f"e {text}"


@activity(type="f")
def f(text: str) -> str:
    return f"f {text}"


ACTIVITIES = [a, b, c, d, e, f]


class Step(NamedTuple):
    """`patched`: it stands under `if patched(...)`."""

    kind: str  # call | pair | sleep | wait | roll
    name: str = ""
    text: str = ""
    patched: str = ""

    def lines(self, is_async: bool) -> list[str]:
        made = self._line(is_async)
        return [f"if patched({self.patched!r}):", f"    {made}"] if self.patched else [made]

    def _line(self, is_async: bool) -> str:
        match self.kind:
            case "call":
                call = f"await {self.name}.step({self.text!r})" if is_async else f"{self.name}({self.text!r})"
                return f"said.append({call})"
            case "pair":
                both = ", ".join(f"{name}.step({self.text!r})" for name in self.name)
                return f"said += {'await gather.step' if is_async else 'gather'}({both})"
            case "sleep":
                return f"await sleep.step({self.text!r})" if is_async else f"sleep({self.text!r})"
            case "wait":
                return f"said.append({'await wait.step(go)' if is_async else 'wait(go)'})"
            case _:
                return "said.append(str(side_effect(lambda: 4)))"


class Program(NamedTuple):
    steps: list[Step]
    is_async: bool

    def source(self) -> str:
        head = "async def" if self.is_async else "def"
        lines = ["said = []", *(line for step in self.steps for line in step.lines(self.is_async)), "return said"]
        body = "\n".join(f"    {line}" for line in lines)
        return f'@workflow(type="changing", signals=[go, nudge])\n{head} changing():\n{body}\n'

    def code(self) -> Any:
        """The workflow of this program, made from its source as if that were a file."""
        source = self.source()
        file = f"changing-{abs(hash(source))}.py"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        names: dict[str, Any] = {name: getattr(backstay, name) for name in backstay.__all__}
        names |= {thing.type: thing for thing in ACTIVITIES} | {"go": go, "nudge": nudge, "__name__": file}
        exec(compile(source, file, "exec"), names)
        return names["changing"]


class Change(NamedTuple):
    what: str
    before: Program
    after: Program


def made(random: random.Random) -> Change:
    """A program, and one change of it."""
    steps = [_step(random) for _ in range(random.randint(3, 6))]
    for _ in range(random.randint(2, 4)):
        steps.insert(random.randint(0, len(steps)), Step("wait"))
    before = Program(steps, random.random() < 0.4)
    what = random.choice(
        ["none", "swap", "swap", "add", "add", "remove", "remove", "rename", "rename", "replace", "argument", "patch"]
    )
    return Change(what, before, Program(_changed(random, what, list(steps)), before.is_async))


def _step(random: random.Random) -> Step:
    kind = random.choice(["call", "call", "call", "pair", "sleep", "roll"])
    if kind == "pair":
        return Step(kind, "".join(random.sample(NAMES, 2)), _text(random))
    if kind == "sleep":
        return Step(kind, "", random.choice(["5ms", "7ms"]))
    return Step(kind, random.choice(NAMES), _text(random))


def _text(random: random.Random) -> str:
    return f"t{random.randint(1, 99)}"


def _changed(random: random.Random, what: str, steps: list[Step]) -> list[Step]:
    at = random.randrange(len(steps))
    match what:
        case "swap":
            other = random.randrange(len(steps))
            steps[at], steps[other] = steps[other], steps[at]
        case "add":
            steps.insert(random.randint(0, len(steps)), _step(random))
        case "patch":
            steps.insert(random.randint(0, len(steps)), _step(random)._replace(patched="new"))
        case "remove":
            del steps[at]
        case "rename" if steps[at].name:
            steps[at] = steps[at]._replace(name="".join(random.sample(NAMES, len(steps[at].name))))
        case "argument" if steps[at].text:
            steps[at] = steps[at]._replace(text="9ms" if steps[at].kind == "sleep" else _text(random))
        case "replace":
            steps[at] = _step(random)
        case _:
            pass
    return steps


class Judged(NamedTuple):
    """The runs that the verdict named, and those that were blocked."""

    said: set[str]
    blocked: set[str]
    runs: int


async def tried(change: Change, path: Path) -> Judged:
    """Let runs begin with the old code, judge them with the new code, and deploy that."""
    old, new = change.before.code(), change.after.code()
    waits = sum(step.kind == "wait" for step in change.before.steps)
    ids = [f"stands-{count}" for count in range(waits)]
    async with AsyncBackstay(path, [old, *ACTIVITIES]) as app:
        for count, id in enumerate(ids):
            handle = await app.start(old, id)
            for number in range(count):
                await handle.signal(go, f"go {number}")
        for id in ids:
            await _until(app, id, lambda found: found.wait_kind == "signal" and not found.tasks)
    verdict = Verdict()
    judge = Judge(AsyncBackstay(path, [new, *ACTIVITIES]).registry)
    named: set[str] = set()
    try:
        async with reading(str(path)) as (transport, _):
            await judge_open_runs(AsyncClient(transport), judge, verdict)
            for id in ids:
                one = Verdict()
                await judge_open_runs(AsyncClient(transport), judge, one, ids=[id])
                named |= {id} if one.blocked else set()
    finally:
        judge.close()
    assert verdict.blocked == len(named), "one by one and all together the same"
    assert not verdict.unjudged
    async with AsyncBackstay(path, [new, *ACTIVITIES]) as app:
        for id in ids:
            await app.handle(None, id).signal("nudge", "")
        for id in ids:
            await _until(app, id, lambda found: found.status == "blocked" or not _works(found))
        blocked = {id for id in ids if (await app.describe(id)).status == "blocked"}
    return Judged(named, blocked, len(ids))


def _works(found: Any) -> bool:
    return any(view.task.kind == "workflow" for view in found.tasks)


async def _until(app: AsyncBackstay, id: str, true: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true(found := await app.describe(id)):
        assert time.monotonic() < deadline, f"{id} never got there: {found}"
        await asyncio.sleep(0.002)
