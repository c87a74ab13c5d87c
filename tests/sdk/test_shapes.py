"""The shape guard, shape by shape: what the code asks for at a step must be what history has there."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import (
    AsyncBackstay,
    RequestRefused,
    Signal,
    activity,
    child,
    continue_as_new,
    gather,
    query,
    side_effect,
    sleep,
    version,
    wait,
    workflow,
)

from .kit import blocked, eventually, names


@activity(type="shape-a")
def a() -> str:
    return "a"


@activity(type="shape-later", queue="later")
def later() -> None: ...


@workflow(type="shape-child")
def part() -> str:
    return "part"


SHAPES: dict[str, Any] = {
    "ActivityScheduled": a,
    "ChildWorkflowScheduled": lambda: child(part),
    "TimerScheduled": lambda: sleep(0),
    "SignalWaitOpened": lambda: wait("word", timeout=0.001),
    "SideEffectRecorded": lambda: side_effect(lambda: 1),
    "VersionMarkerRecorded": lambda: version("change"),
    "parallel": lambda: gather([a.step(), a.step()]),
}


def doing(line: Any) -> Any:
    @workflow(type="shaped", unchecked=True)
    class Shaped:
        word = Signal[str]()

        @query
        def status(self) -> str:
            return "fine"

        def handle(self) -> str:
            line()
            later()
            return "done"

    return Shaped


async def begun(path: Any, definition: Any) -> list[str]:
    """Run to the step at which it waits for another release."""
    async with AsyncBackstay(path, [definition, part, a, later], guard="off") as app:
        await app.start(definition, "r")

        async def there() -> bool:
            return any(getattr(e.event, "activity_type", "") == "shape-later" for e in await app.history("r"))

        await eventually(there, "it waits")
        return names(await app.history("r"))


async def refused(path: Any, definition: Any, before: list[str]) -> Any:
    """What the next release is told. Nothing of it is recorded, and queries are refused, too."""
    async with AsyncBackstay(path, [definition, part, a, later], guard="off", queues=("default", "later")) as app:
        description = await blocked(app, "r")
        with pytest.raises(RequestRefused):
            await app.handle(None, "r").query("status")
        assert [name for name in names(await app.history("r")) if name not in ENDS] == before
    (view,) = [view for view in description.tasks if view.task.kind == "workflow"]
    assert (description.liveness_state, view.transport_state) == ("workflow_replay_blocked", "replay_blocked")
    return view.task.block


ENDS = ("ActivityStarted", "ActivityCompleted")


@pytest.mark.contract("REPLAY-04")
@pytest.mark.parametrize("recorded", SHAPES)
async def test_no_shape_is_taken_for_another(tmp_path: Any, recorded: str) -> None:
    asked = "TimerScheduled" if recorded != "TimerScheduled" else "ActivityScheduled"
    path = tmp_path / "shapes.db"
    before = [name for name in await begun(path, doing(SHAPES[recorded])) if name not in ENDS]
    block = await refused(path, doing(SHAPES[asked]), before)
    assert (block.reason, block.workflow_sequence) == ("history_shape_mismatch", 1)
    found = "ActivityScheduled" if recorded == "parallel" else recorded
    assert found in block.recorded_event_types
    assert block.expected_history_shape == ("timer" if asked == "TimerScheduled" else "activity")


@pytest.mark.contract("REPLAY-04")
async def test_continuing_as_new_is_a_shape_of_its_own(tmp_path: Any) -> None:
    @workflow(type="shaped", unchecked=True)
    class Ahead:
        @query
        def status(self) -> str:
            return "fine"

        def handle(self) -> None:
            continue_as_new(Ahead)

    path = tmp_path / "shapes.db"
    before = [name for name in await begun(path, doing(a)) if name not in ENDS]
    block = await refused(path, Ahead, before)
    assert block.reason == "history_shape_mismatch"
    assert "ActivityScheduled" in block.recorded_event_types


TOPOLOGIES: dict[str, Any] = {
    "two": lambda: gather([a.step(), a.step()]),
    "three": lambda: gather([a.step(), a.step(), a.step()]),
    "one and two": lambda: gather([a.step(), gather.step([a.step(), a.step()])]),
    "two and one": lambda: gather([gather.step([a.step(), a.step()]), a.step()]),
    "in a row": lambda: (a(), a(), a()),
}


@pytest.mark.contract("REPLAY-06")
@pytest.mark.parametrize(
    ("recorded", "asked"),
    [
        ("two", "three"),
        ("three", "two"),
        ("three", "one and two"),
        ("one and two", "two and one"),
        ("one and two", "three"),
        ("three", "in a row"),
        ("in a row", "three"),
    ],
)
async def test_a_barrier_of_another_size_or_nesting_is_another_one(tmp_path: Any, recorded: str, asked: str) -> None:
    path = tmp_path / "shapes.db"
    before = [name for name in await begun(path, doing(TOPOLOGIES[recorded])) if name not in ENDS]
    block = await refused(path, doing(TOPOLOGIES[asked]), before)
    assert block.reason == "history_shape_mismatch"
