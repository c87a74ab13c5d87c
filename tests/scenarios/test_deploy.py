"""A deploy in the middle of open runs. Old runs stay on the path they began, new ones take the new path.

A change that forgets about old runs is noticed instead of half-run: they stop, say what differs, and go on with code that
fits. The functions below stand for releases of one workflow, `greet`; in a program there is one, and the release is new.
"""

from __future__ import annotations

import time

from backstay import Backstay, activity, patched, version, workflow

DESK = "the front desk opens later"


@activity(queue=DESK)
def knock(name: str) -> str:
    return f"{name} is here"


@activity
def title(name: str) -> str:
    return f"Dr. {name}"


@activity
def say(text: str) -> str:
    return text


@workflow(type="greet")
def first_release(name: str) -> str:
    knock(name)
    return say(f"Hello {name}")


@workflow(type="greet")
def second_release(name: str) -> str:
    if patched("titles"):
        name = title(name)
    knock(name)
    return say(f"Good day {name}" if version("polite", max=2) == 2 else f"Hello {name}")


@workflow(type="greet")
def careless_release(name: str) -> str:
    name = title(name)
    knock(name)
    return say(f"Good day {name}")


EVERYTHING = [knock, title, say]


def release(database: str, definition: object, *, desk: bool = True) -> Backstay:
    return Backstay(database, [definition, *EVERYTHING], queues=("default", DESK) if desk else ("default",))


def test_old_runs_finish_on_the_old_path_and_new_runs_take_the_new_one(database: str) -> None:
    with release(database, first_release, desk=False) as app:
        app.start(first_release, "old", "Ada")
    with release(database, second_release) as app:
        assert app.execute(second_release, "new", "Ada") == "Good day Dr. Ada"
        assert app.handle(second_release, "old").result() == "Hello Ada"
        markers = [event.event.change_id for event in app.history("new") if event.type == "VersionMarkerRecorded"]  # type: ignore[attr-defined]
        assert markers == ["titles", "polite"]
        assert "VersionMarkerRecorded" not in [event.type for event in app.history("old")]


def test_a_change_that_does_not_fit_stops_old_runs_and_a_fix_lets_them_go_on(database: str) -> None:
    with release(database, first_release, desk=False) as app:
        app.start(first_release, "old", "Ada")
    with release(database, careless_release) as app:
        assert app.execute(careless_release, "new", "Ada") == "Good day Dr. Ada"
        deadline = time.monotonic() + 30
        while app.describe("old").liveness_state != "workflow_replay_blocked" and time.monotonic() < deadline:
            time.sleep(0.002)
        (blocked,) = app.describe("old").tasks
        assert blocked.transport_state == "replay_blocked"
        assert blocked.task.block is not None
        assert "history has activity knock, the code asked for activity title" in blocked.task.block.message
    with release(database, second_release) as app:
        assert app.handle(second_release, "old").result() == "Hello Ada"
