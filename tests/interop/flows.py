"""Workflows and activities written for the published package, as its users write them."""

from __future__ import annotations

from typing import Any

from durable_workflow import activity, workflow
from durable_workflow.errors import ActivityFailed, ChildWorkflowFailed, DurableOperationCancelled, NonRetryableError
from durable_workflow.worker_session import WorkerSessionOptions
from durable_workflow.workflow import ActivityRetryPolicy

tries: dict[str, int] = {}


@activity.defn(name="greet")
def greet(name: str) -> str:
    return f"hello, {name}"


@activity.defn(name="add")
def add(a: int, b: int) -> int:
    return a + b


@activity.defn(name="flaky")
def flaky(key: str, failures: int) -> int:
    tries[key] = tries.get(key, 0) + 1
    if tries[key] <= failures:
        raise RuntimeError(f"attempt {tries[key]} fails")
    return tries[key]


@activity.defn(name="broken")
def broken() -> None:
    raise NonRetryableError("cannot be repaired")


@workflow.defn(name="greeter")
class Greeter:
    def run(self, ctx: Any, name: str) -> Any:
        result = yield ctx.schedule_activity("greet", [name])
        return {"greeting": result, "length": len(result)}


@workflow.defn(name="sleeper")
class Sleeper:
    def run(self, ctx: Any) -> Any:
        before = ctx.now()
        yield ctx.sleep(1)
        return (ctx.now() - before).total_seconds() >= 1


@workflow.defn(name="persistent")
class Persistent:
    def run(self, ctx: Any, key: str, failures: int) -> Any:
        policy = ActivityRetryPolicy(max_attempts=5, initial_interval_seconds=0, backoff_coefficient=1)
        return (yield ctx.schedule_activity("flaky", [key, failures], retry_policy=policy))


@workflow.defn(name="catcher")
class Catcher:
    def run(self, ctx: Any) -> Any:
        try:
            yield ctx.schedule_activity("broken", [])
        except ActivityFailed as error:
            return f"caught: {error}"


@workflow.defn(name="faller")
class Faller:
    def run(self, ctx: Any) -> Any:
        yield ctx.schedule_activity("add", [1, 2])
        raise ValueError("fell over")


@workflow.defn(name="collector")
class Collector:
    """Everything that does not suspend, in front of something that does."""

    def run(self, ctx: Any) -> Any:
        dice = yield ctx.side_effect(lambda: 6)
        version = yield ctx.get_version("new-path", 1, 2)
        patched = yield ctx.patched("fix-1")
        yield ctx.upsert_memo({"note": "seen", "n": 1})
        yield ctx.upsert_search_attributes({"customer": "ada"})
        local = yield ctx.local_activity("add", [20, 22])
        total = yield ctx.schedule_activity("add", [dice, local])
        return [dice, version, patched, local, total]


@workflow.defn(name="counter")
class Counter:
    def run(self, ctx: Any, n: int) -> Any:
        yield ctx.schedule_activity("add", [n, 1])
        if n < 3:
            yield ctx.continue_as_new(n + 1)
        return n


@workflow.defn(name="parallel")
class Parallel:
    def run(self, ctx: Any, n: int) -> Any:
        return (yield [ctx.schedule_activity("add", [i, 1]) for i in range(n)])


@workflow.defn(name="basket")
class Basket:
    """Signals fill it, a query looks into it, an update takes out, and it ends when it is paid."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.paid = False

    @workflow.signal("add")
    def add(self, item: str) -> None:
        self.items.append(item)

    @workflow.signal("pay")
    def pay(self) -> None:
        self.paid = True

    @workflow.query("items")
    def look(self) -> list[str]:
        return list(self.items)

    @workflow.query("broken")
    def broken(self) -> None:
        raise RuntimeError("cannot say")

    @workflow.update("remove")
    def remove(self, item: str) -> int:
        self.items.remove(item)
        return len(self.items)

    @workflow.update("rename")
    def rename(self, old: str, new: str) -> list[str]:
        self.items[self.items.index(old)] = new
        return list(self.items)

    @workflow.update_validator("rename")
    def may_rename(self, old: str, new: str) -> None:
        if old not in self.items:
            raise ValueError(f"there is no {old}")

    def run(self, ctx: Any) -> Any:
        done = yield ctx.wait_condition(lambda: self.paid, key="paid", timeout=30)
        count = yield ctx.schedule_activity("add", [len(self.items), 0])
        return [done, count, *self.items]


@workflow.defn(name="impatient")
class Impatient:
    def run(self, ctx: Any) -> Any:
        return (yield ctx.wait_condition(lambda: False, key="never", timeout=1))


@workflow.defn(name="parent")
class Parent:
    def run(self, ctx: Any, name: str) -> Any:
        one = yield ctx.start_child_workflow("greeter", [name], parent_close_policy="request_cancel")
        try:
            yield ctx.start_child_workflow("faller", [])
        except ChildWorkflowFailed as error:
            caught = str(error)
        several = yield [
            ctx.start_child_workflow("greeter", [f"{name}-1"]),
            ctx.schedule_activity("add", [1, 2]),
            [ctx.start_timer(0), ctx.schedule_activity("greet", ["nested"])],
        ]
        return [one["greeting"], "fell over" in caught, several[0]["greeting"], several[1], several[2][1]]


@workflow.defn(name="half-broken")
class HalfBroken:
    """One member of a group fails while others still run."""

    def run(self, ctx: Any) -> Any:
        try:
            yield [ctx.schedule_activity("add", [1, 1]), ctx.schedule_activity("broken", []), ctx.start_timer(1)]
        except ActivityFailed as error:
            return f"caught: {error}"


@workflow.defn(name="chooser")
class Chooser:
    """The first of several wins; one loser is waited for, one is cancelled."""

    def run(self, ctx: Any) -> Any:
        won = yield ctx.select(
            {
                "slow": ctx.start_timer(1),
                "fast": ctx.schedule_activity("add", [1, 2]),
                "never": ctx.start_timer(3600),
                "both": [ctx.start_timer(3600), ctx.schedule_activity("add", [3, 4])],
            }
        )
        first = [won.key, won.kind, won.result()]
        yield won.handles["never"].cancel()
        try:
            yield won.handles["never"].await_result()
        except DurableOperationCancelled as error:
            cancelled = error.member_key
        yield won.handles["slow"].await_result()
        second = yield ctx.select([ctx.schedule_activity("broken", []), ctx.start_timer(3600)])
        child = yield ctx.select({"child": ctx.start_child_workflow("greeter", ["ada"]), "late": ctx.start_timer(3600)})
        return [*first, cancelled, second.key, str(second.failure), child.key, child.value["greeting"]]


@workflow.defn(name="listener")
class Listener:
    """A condition against a clock."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @workflow.signal("say")
    def say(self, word: str) -> None:
        self.said.append(word)

    def run(self, ctx: Any, seconds: int) -> Any:
        won = yield ctx.select(
            {"heard": ctx.wait_condition(lambda: bool(self.said), key="heard"), "silence": ctx.start_timer(seconds)}
        )
        last = yield ctx.select(
            {"more": ctx.wait_condition(lambda: len(self.said) > 5, key="more", timeout=1), "late": ctx.start_timer(60)}
        )
        return [won.key, won.value, *self.said, last.key, last.value]


@workflow.defn(name="bound")
class Bound:
    """Several steps on the worker that had the first one."""

    def run(self, ctx: Any, session_id: str) -> Any:
        session = WorkerSessionOptions(session_id=session_id, lease_seconds=5)
        results: list[int] = []
        for step in range(4):
            results.append((yield ctx.schedule_activity("add", [step, 1], worker_session=session)))  # noqa: PERF401
        return results


@workflow.defn(name="patient")
class Patient:
    def __init__(self) -> None:
        self.go = False

    @workflow.signal("go")
    def begin(self) -> None:
        self.go = True

    def run(self, ctx: Any, a: int) -> Any:
        first = yield ctx.schedule_activity("add", [a, 1])
        version = yield ctx.get_version("change", 1, 1)
        yield ctx.upsert_memo({"first": first})
        yield ctx.upsert_search_attributes({"stage": "waiting"})
        yield ctx.wait_condition(lambda: self.go, key="go", timeout=60)
        local = yield ctx.local_activity("add", [first, 10])
        return [first, version, local]


@workflow.defn(name="moody")
class Moody:
    def __init__(self) -> None:
        self.mood = "new"

    @workflow.query("mood")
    def ask(self) -> str:
        return self.mood

    def run(self, ctx: Any) -> Any:
        yield ctx.schedule_activity("add", [1, 2])
        self.mood = "calm"
        yield ctx.start_timer(3600)


@workflow.defn(name="moody")
class MoodyAgain(Moody):
    """The same workflow after a deployment that does not fit its history."""

    def run(self, ctx: Any) -> Any:
        yield ctx.start_timer(1)
        self.mood = "guessed"
        yield ctx.schedule_activity("add", [1, 2])


@workflow.defn(name="patchwork")
class Patchwork:
    """As it was first deployed."""

    def __init__(self) -> None:
        self.go = False

    @workflow.signal("go")
    def begin(self) -> None:
        self.go = True

    def told(self) -> bool:
        return self.go

    def run(self, ctx: Any) -> Any:
        first = yield ctx.schedule_activity("add", [1, 1])
        yield ctx.wait_condition(self.told, key="go", timeout=60)
        return [first, (yield ctx.schedule_activity("add", [first, 10]))]


@workflow.defn(name="patchwork")
class Patched(Patchwork):
    """A change behind a patch, before the step at which old runs wait, and one after it."""

    def run(self, ctx: Any) -> Any:
        early = yield ctx.patched("early")
        first = yield ctx.schedule_activity("add", [1, 100 if early else 1])
        yield ctx.wait_condition(self.told, key="go", timeout=60)
        late = yield ctx.patched("late")
        return [first, (yield ctx.schedule_activity("add", [first, 20 if late else 10]))]


@workflow.defn(name="patchwork")
class Settled(Patchwork):
    """The old branches are gone."""

    def run(self, ctx: Any) -> Any:
        yield ctx.deprecate_patch("early")
        first = yield ctx.schedule_activity("add", [1, 100])
        yield ctx.wait_condition(self.told, key="go", timeout=60)
        yield ctx.deprecate_patch("late")
        return [first, (yield ctx.schedule_activity("add", [first, 20]))]


WORKFLOWS = [
    Moody,
    Bound,
    Patient,
    Chooser,
    Listener,
    Parent,
    HalfBroken,
    Basket,
    Impatient,
    Greeter,
    Sleeper,
    Persistent,
    Catcher,
    Faller,
    Collector,
    Counter,
    Parallel,
]
ACTIVITIES = [greet, add, flaky, broken]
