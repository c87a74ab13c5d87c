"""The clock of a test: when it stands still, when it jumps, and what it says when nothing would ever happen."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from backstay import WorkflowStopped, activity, continue_as_new, sleep, workflow
from backstay.testing import Stuck, TestBackstay, kept

from .shop import ALL, Door, careful, charge, child, go, local, look_up, order, pack, parent, polls, ship, sleepy, waits


def test_a_workflow_that_sleeps_for_a_month_ends_at_once_and_a_month_later() -> None:
    with TestBackstay(register=ALL) as app:
        began = app.now
        assert app.execute(order, "o-1", "a map") == "receipt for a map: 100"
        assert app.now - began == timedelta(days=30)


def test_an_async_workflow_sleeps_by_the_same_clock() -> None:
    with TestBackstay(register=ALL) as app:
        began = app.now
        assert app.execute(sleepy, "s-1", "a map") == "a map packed"
        assert app.now - began == timedelta(weeks=2)


def test_time_begins_on_the_same_day_in_every_test_or_when_the_test_says() -> None:
    with TestBackstay() as app:
        assert app.now == datetime(2026, 1, 1, tzinfo=UTC)
    with TestBackstay(at="2027-03-28T01:59:00+01:00") as app:
        assert app.now == datetime(2027, 3, 28, 0, 59, tzinfo=UTC)
    with pytest.raises(ValueError, match="needs a time zone"):
        TestBackstay(at="2027-03-28")


def test_time_stands_still_while_the_test_does_something_else() -> None:
    with TestBackstay(register=ALL) as app:
        door = app.start(Door, "d-1")
        began = app.now
        assert door.query(Door.state) == "closed"
        assert door.update(Door.paint, "green") == "green now"
        assert app.list(state="waiting")[0].workflow_id == "d-1"
        door.signal(Door.open)
        assert door.result() == "opened"
        assert app.now == began


def test_a_wait_that_nobody_ends_times_out() -> None:
    with TestBackstay(register=ALL) as app:
        assert app.execute(Door, "d-1") == "too late"


def test_a_client_that_waits_for_a_while_waits_by_the_same_clock() -> None:
    with TestBackstay(register=ALL) as app:
        began = app.now
        run = app.start(order, "o-1", "a map")
        with pytest.raises(TimeoutError):
            run.result(timeout="1d")
        assert app.now - began == timedelta(days=1)


def test_advance_lets_everything_happen_that_is_due_by_then() -> None:
    with TestBackstay(register=ALL) as app:
        run = app.start(order, "o-1", "a map")
        app.advance("29d")
        assert run.describe().status == "waiting"
        app.advance("1d")
        assert run.describe().status == "completed"


def test_settle_lets_everything_happen_that_needs_no_time() -> None:
    with TestBackstay(register=ALL) as app:
        began = app.now
        run = app.start(local, "l-1", "map")
        app.settle()
        assert run.describe().status == "completed"
        assert app.now == began


def test_run_until_goes_from_one_thing_that_happens_to_the_next() -> None:
    with TestBackstay(register=ALL) as app:
        run = app.start(order, "o-1", "a map")
        assert app.run_until(lambda: run.describe().status == "completed")
        with pytest.raises(Stuck, match="it had not happened by 2026-02-01"):
            app.run_until(lambda: False, within="1d")
        with pytest.raises(Stuck, match="all waits"):
            app.run_until(lambda: False)


def test_time_stands_still_while_an_activity_runs_on_its_thread() -> None:
    may_go = threading.Event()

    @activity(type="real")
    def real() -> str:
        assert may_go.wait(30)
        return "done"

    @workflow(type="both")
    def both() -> str:
        return real()

    with TestBackstay(register=[both, real, *ALL]) as app:
        run = app.start(both, "b-1")
        began = app.now
        others: list[str] = []
        # It waits in another thread, so the clock may move; but the activity has not ended.
        other = threading.Thread(target=lambda: others.append(app.execute(order, "o-1", "a map")))
        other.start()
        assert app.now == began
        may_go.set()
        assert run.result() == "done"
        other.join()
        assert others == ["receipt for a map: 100"]


def test_retries_and_their_backoff_go_by_the_clock() -> None:
    with TestBackstay(register=ALL) as app:
        began = app.now
        app.fail_next(charge, times=2)
        app.execute(order, "o-1", "a map")
        assert app.now - began == timedelta(days=30, hours=2)


def test_local_activities_are_tried_again_by_the_clock() -> None:
    with TestBackstay(register=ALL) as app:
        began = app.now
        app.fail_next(look_up, times=2)
        assert app.execute(local, "l-1", "map") == 3
        assert app.now - began == timedelta(minutes=20)


def test_an_activity_that_waits_for_another_workflow_does_not_hold_the_clock() -> None:
    @activity(type="client")
    def client() -> str:
        return app.execute(order, "inner", "a map")

    @workflow(type="outer")
    def outer() -> str:
        return client()

    with TestBackstay(register=[outer, client, *ALL]) as app:
        assert app.execute(outer, "o-1") == "receipt for a map: 100"


def test_timeouts_and_heartbeats_go_by_the_clock() -> None:
    with TestBackstay(register=ALL) as app:
        began = app.now
        app.fake(ship, hangs=True)
        app.fake(pack, hangs=True)
        assert app.execute(careful, "c-1", "a map") == [
            "activity 'ship' passed its start-to-close timeout",
            "activity 'pack' passed its heartbeat timeout",
        ]
        assert app.now - began == timedelta(seconds=5 + 60 + 5 + 2)


def test_advance_can_pass_over_a_real_activity() -> None:
    may_go = threading.Event()

    @activity(type="stubborn", timeout="5s")
    def stubborn() -> str:
        assert may_go.wait(30)
        return "done"

    @workflow(type="impatient")
    def impatient() -> str:
        return stubborn()

    with TestBackstay(register=[impatient, stubborn]) as app:
        run = app.start(impatient, "i-1")
        app.advance("6s", while_running=True)
        assert run.describe().status == "failed"
        may_go.set()


def test_a_schedule_fires_by_the_clock() -> None:
    with TestBackstay(register=ALL) as app:
        fake = app.fake(child, returns=0)
        app.schedules.options(cron="0 2 * * *").create(child, "nightly", 1)
        app.advance("3d")
        assert fake.count == 3
        assert [row.started_at % 86_400_000_000 for row in app.list(type="child")] == [2 * 3_600_000_000] * 3


def test_readers_of_a_stream_let_time_pass() -> None:
    with TestBackstay(register=ALL) as app:
        run = app.start(Door, "d-1")
        assert list(run.stream("news")) == ["begins", "ends"]


def test_a_signal_that_never_comes_ends_with_an_error_that_says_so() -> None:
    with TestBackstay(register=ALL) as app:
        with pytest.raises(Stuck, match=r"the end of 'w-1'.*all waits") as stuck:
            app.execute(waits, "w-1")
        assert "w-1 (waits): " in str(stuck.value)
        assert "go" in str(stuck.value)
        app.handle(waits, "w-1").signal(go, "on")
        assert app.handle(waits, "w-1").result() == "on"


def test_a_loop_that_polls_for_ever_ends_with_an_error_that_says_so() -> None:
    said = r"jumped 50 times, to 2026-01-01 00:50.*a loop that polls"
    with TestBackstay(register=ALL, max_jumps=50) as app, pytest.raises(Stuck, match=said):
        app.execute(polls, "p-1")


def test_a_schedule_that_fires_for_ever_lets_nobody_wait_for_ever() -> None:
    with TestBackstay(register=ALL, max_jumps=20) as app:
        app.schedules.options(cron="0 2 * * *").create(child, "nightly", 1)
        with pytest.raises(Stuck, match="a schedule"):
            app.execute(waits, "w-1")


def test_an_activity_that_takes_too_long_ends_with_an_error_that_says_so() -> None:
    may_go = threading.Event()

    @activity(type="endless")
    def endless() -> None:
        may_go.wait(30)

    @workflow(type="hopeful")
    def hopeful() -> None:
        sleep("1d")
        endless()

    with TestBackstay(register=[hopeful, endless], patience="50ms") as app:
        with pytest.raises(Stuck, match=r"running for 0\.05 s of real time"):
            app.execute(hopeful, "h-1")
        may_go.set()


def test_a_moment_that_goes_on_for_ever_ends_with_an_error_that_says_so() -> None:
    @workflow(type="restless")
    def restless() -> None:
        continue_as_new(restless)

    with TestBackstay(register=[restless], max_jumps=10) as app:
        run = app.start(restless, "r-1")
        with pytest.raises(Stuck, match="continues as new at once"):
            run.result()
        with pytest.raises(Stuck, match="time to pass, which will not come: the clock stands"):
            app.advance("1d")
        run.terminate()
        with pytest.raises(WorkflowStopped):
            run.result()


def test_a_task_that_nobody_takes_ends_with_an_error_that_says_so() -> None:
    @activity(type="elsewhere", queue="gpu")
    def elsewhere() -> None: ...

    @workflow(type="asks")
    def asks() -> None:
        elsewhere()

    with TestBackstay(register=[asks, elsewhere]) as app, pytest.raises(Stuck, match="gpu"):
        app.execute(asks, "a-1")


def test_an_app_closes_with_open_runs_and_hanging_activities() -> None:
    with TestBackstay(register=ALL) as app:
        app.fake(ship, hangs=True)
        app.start(careful, "c-1", "a map")
        app.start(order, "o-1", "a map")
        app.start(waits, "w-1")
        app.settle()


def test_many_apps_live_side_by_side_each_with_its_own_clock() -> None:
    with TestBackstay(register=ALL) as one, TestBackstay(register=ALL, at="2030-01-01T00:00Z") as other:
        one.execute(order, "o-1", "a map")
        assert other.now == datetime(2030, 1, 1, tzinfo=UTC)
        other.advance("1d")
        assert one.now == datetime(2026, 1, 31, tzinfo=UTC)


def test_the_same_seed_gives_the_same_ids_and_another_one_others() -> None:
    def ids(seed: int | None) -> list[str]:
        with TestBackstay(register=ALL, seed=seed) as app:
            app.execute(parent, "p-1")
            return sorted(row.run_id for row in app.list())

    assert ids(None) == ids(0) == ids(0)
    assert ids(1) != ids(0)


def test_an_app_that_is_not_open_says_so() -> None:
    app = TestBackstay(register=ALL)
    for call in (lambda: app.advance(1), app.settle, lambda: app.execute(order, "o-1", "a map")):
        with pytest.raises(RuntimeError, match="not open"):
            call()
    assert app.now == datetime(2026, 1, 1, tzinfo=UTC)


def test_the_timelines_of_all_runs_are_added_to_the_error_of_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "histories", None)  # as without the plugin

    def wrong() -> None:
        with TestBackstay(register=ALL) as app:
            app.execute(order, "o-1", "a map")
            raise AssertionError("wrong")

    with pytest.raises(AssertionError) as failed:
        wrong()
    (note,) = failed.value.__notes__
    assert "o-1  order  run 1" in note
    assert "✓ charge completed" in note
