"""Forks and rewinds: results up to the point are kept, everything after it is done anew, live and in replay."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import (
    RequestRefused,
    Signal,
    activity,
    child,
    gather,
    now,
    rng,
    side_effect,
    wait,
    workflow,
)
from backstay.kernel.features.fork import HistoryInherited

from .kit import eventually, evicting, memory, names

APPS = [pytest.param(memory, id="live"), pytest.param(evicting, id="evicted after every task")]
go: Signal[str] = Signal("go")
CALLS: list[str] = []
BROKEN = {"charge": False}


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    BROKEN["charge"] = False


@activity(type="fork.reserve")
def reserve(item: str) -> str:
    CALLS.append(f"reserve {item}")
    return f"reserved {item}"


@activity(type="fork.charge")
def charge(item: str) -> str:
    CALLS.append(f"charge {item}")
    if BROKEN["charge"]:
        raise ValueError("no money")
    return f"charged {item}"


@activity(type="fork.ship")
def ship(item: str) -> str:
    CALLS.append(f"ship {item}")
    return f"shipped {item}"


@workflow(type="fork.order")
def order(item: str) -> list[str]:
    return [reserve(item), charge(item), ship(item)]


@workflow(type="fork.order.async")
async def async_order(item: str) -> list[str]:
    return [await reserve.step(item), await charge.step(item), await ship.step(item)]


@workflow(type="fork.chance")
def chance() -> list[Any]:
    drawn = [rng().random(), side_effect(lambda: len(CALLS)), now().isoformat()]
    reserve("a")
    return [*drawn, rng().random(), charge("a")]


@workflow(type="fork.group")
def group() -> list[str]:
    return list(gather(reserve.step("a"), charge.step("b"), ship.step("c")))


@workflow(type="fork.child")
def small(item: str) -> str:
    return reserve(item)


@workflow(type="fork.parent")
def parent(item: str) -> list[str]:
    return [child(small, item), charge(item)]


@workflow(type="fork.waits")
def waits() -> list[Any]:
    first = wait(go)
    done = reserve(str(first))
    return [done, wait(go)]


ALL = [reserve, charge, ship, order, async_order, chance, group, small, parent, waits]


@pytest.mark.parametrize("app_of", APPS)
@pytest.mark.parametrize("kind", [order, async_order])
async def test_a_fork_keeps_what_was_done_before_the_point_and_does_the_rest_anew(app_of: Any, kind: Any) -> None:
    async with app_of(*ALL) as app:
        handle = await app.start(kind, "o-1", "a")
        assert await handle.result() == ["reserved a", "charged a", "shipped a"]
        plan = await handle.plan_fork("fork.charge")
        assert [(effect.step, effect.type, effect.outcome) for effect in plan.repeats] == [
            (2, "fork.charge", "completed"),
            (3, "fork.ship", "completed"),
        ]
        assert plan.repeats[0].idempotency_key == f"{handle.run_id}-2"
        before = await handle.history()
        forked = await handle.fork("fork.charge", new_id="o-2", reason="charge again")
        assert forked.id == "o-2"
        assert await forked.result() == ["reserved a", "charged a", "shipped a"]
        assert CALLS == ["reserve a", "charge a", "ship a", "charge a", "ship a"]
        assert await handle.history() == before, "the run itself stays as it is"
        (inherited,) = [entry for entry in await forked.history() if isinstance(entry.event, HistoryInherited)]
        assert inherited.event.from_workflow_instance_id == "o-1"
        assert inherited.event.reason == "charge again"
        own = [entry for entry in await forked.history() if entry.type not in ("WorkflowStarted", "HistoryInherited")]
        assert not any(handle.run_id in str(entry.event) for entry in own), "its ids are those of its own run"


@pytest.mark.parametrize("app_of", APPS)
async def test_a_failed_workflow_goes_on_from_the_step_that_failed(app_of: Any) -> None:
    async with app_of(*ALL) as app:
        BROKEN["charge"] = True
        handle = await app.start(order, "o-1", "a")
        with pytest.raises(Exception, match="no money"):
            await handle.result()
        BROKEN["charge"] = False
        went_on = await handle.rewind(reason="there is money now")
        assert went_on.id == "o-1"
        assert went_on.run_id != handle.run_id
        assert await handle.result() == ["reserved a", "charged a", "shipped a"]
        assert CALLS == ["reserve a", "charge a", "charge a", "ship a"]


@pytest.mark.parametrize("app_of", APPS)
async def test_code_gets_the_random_numbers_side_effects_and_times_that_it_had(app_of: Any) -> None:
    async with app_of(*ALL) as app:
        handle = await app.start(chance, "o-1")
        first = await handle.result()
        forked = await handle.fork("fork.charge")
        assert await forked.result() == first
        again = await forked.fork("fork.charge", new_id="again")
        assert await again.result() == first, "also the fork of a fork"


@pytest.mark.parametrize("app_of", APPS)
async def test_a_member_of_a_group_is_done_anew_and_the_others_as_far_as_they_were_open(app_of: Any) -> None:
    async with app_of(*ALL) as app:
        handle = await app.start(group, "o-1")
        await handle.result()
        history = await handle.history()
        done = [entry.sequence for entry in history if entry.type == "ActivityCompleted"]
        for point in range(2, len(history)):
            forked = await handle.fork(f"event:{point}", new_id=f"at-{point}")
            assert await forked.result() == ["reserved a", "charged b", "shipped c"], point
            plan = await handle.plan_fork(f"event:{point}")
            kept = sum(sequence <= point for sequence in done)
            assert len(plan.repeats) == 3 - kept, point
        assert len(CALLS) == 3 + sum(3 - sum(s <= point for s in done) for point in range(2, len(history)))


@pytest.mark.parametrize("app_of", APPS)
async def test_results_are_replaced(app_of: Any) -> None:
    async with app_of(*ALL) as app:
        handle = await app.start(order, "o-1", "a")
        await handle.result()
        CALLS.clear()
        forked = await handle.fork(3, set={1: "somebody reserved"})
        assert await forked.result() == ["somebody reserved", "charged a", "shipped a"]
        here = await handle.fork("fork.charge", set={2: "paid in cash"})
        assert await here.result() == ["reserved a", "paid in cash", "shipped a"]
        assert CALLS == ["ship a", "ship a"]
        for results, why in (({3: "x"}, "after the point"), ({9: "x"}, "no step 9")):
            with pytest.raises(RequestRefused, match=why):
                await handle.fork(2, set=results)


@pytest.mark.parametrize("app_of", APPS)
async def test_a_child_before_the_point_is_kept_and_one_after_it_started_anew(app_of: Any) -> None:
    async with app_of(*ALL) as app:
        handle = await app.start(parent, "o-1", "a")
        await handle.result()
        kept = await handle.fork("fork.charge")
        assert await kept.result() == ["reserved a", "charged a"]
        assert CALLS == ["reserve a", "charge a", "charge a"]
        anew = await handle.fork("fork.child")
        assert await anew.result() == ["reserved a", "charged a"]
        assert CALLS[3:] == ["reserve a", "charge a"]
        assert [effect.kind for effect in (await handle.plan_fork("fork.child")).repeats] == ["child", "activity"]


@pytest.mark.parametrize("app_of", APPS)
async def test_signals_after_the_point_reach_the_run_that_goes_on_after_a_rewind_but_no_fork(app_of: Any) -> None:
    async with app_of(*ALL) as app:
        handle = await app.start(waits, "o-1")
        await handle.signal(go, "first")
        await eventually(lambda: CALLS == ["reserve first"])
        await eventually(lambda: _has(handle, "SignalWaitOpened", 2))
        forked = await handle.fork("event:2", new_id="o-2")
        went_on = await handle.rewind("event:2")
        await eventually(lambda: CALLS == ["reserve first"] * 2)
        await handle.signal(go, "second")
        assert await handle.result() == ["reserved first", "second"]
        old = await handle.history(handle.run_id)
        assert old[-1].type == "WorkflowRewound"
        assert (await went_on.describe()).run.run_id == went_on.run_id
        await forked.signal(go, "other")
        await eventually(lambda: "reserve other" in CALLS)


async def _has(handle: Any, kind: str, count: int) -> bool:
    return names(await handle.history()).count(kind) >= count


@pytest.mark.parametrize("app_of", APPS)
async def test_a_parent_follows_a_child_that_is_rewound(app_of: Any) -> None:
    async with app_of(*ALL) as app:
        handle = await app.start(waiting_parent, "o-1")
        child_id = await eventually(lambda: _child_of(handle))
        rewound = app.handle(waits, child_id)
        await eventually(lambda: _exists(app, child_id))
        await rewound.signal(go, "first")
        await eventually(lambda: CALLS == ["reserve first"])
        await rewound.rewind(1)
        await eventually(lambda: CALLS == ["reserve first"] * 2)
        await rewound.signal(go, "second")
        assert await handle.result() == ["reserved first", "second"]


@workflow(type="fork.waiting.parent")
def waiting_parent() -> list[Any]:
    return child(waits)


ALL.append(waiting_parent)


async def _exists(app: Any, id: str) -> bool:
    return any(row.workflow_id == id for row in await app.list())


async def _child_of(handle: Any) -> str | None:
    found = [entry.event for entry in await handle.history() if entry.type == "ChildRunStarted"]
    return found[0].child_workflow_instance_id if found else None


async def test_what_cannot_be_forked_is_refused_and_says_why() -> None:
    async with memory(*ALL) as app:
        handle = await app.start(order, "o-1", "a")
        await handle.result()
        for at, reason in (
            (None, "point_missing"),
            ("nothing", "step_not_found"),
            (9, "step_not_found"),
            ("event:1", "event_not_found"),
            ("event:99", "event_not_found"),
        ):
            with pytest.raises(RequestRefused) as refused:
                await handle.fork(at)
            assert refused.value.reason == reason
        with pytest.raises(RequestRefused) as taken:
            await handle.fork(1, new_id="o-1")
        assert taken.value.reason == "instance_already_started"
        forked = await handle.fork(1, new_id="o-2")
        await forked.result()
        with pytest.raises(RequestRefused, match="not the current one"):
            await (await forked.rewind(1)).of_run(forked.run_id or "").rewind(1)
