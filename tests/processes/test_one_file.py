"""Several programs on one database: one runs the engine, the others read, submit and wait, and one of them is always ready."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from .conftest import BOTH, Place
from .program import Remote, Told, eventually

Start = Callable[..., Remote]

SOON = 5.0  # seconds for a takeover on a busy machine; it looks five times a second


def test_a_second_program_reads_what_the_first_one_runs(remote: Start, place: Place) -> None:
    app = remote().opened()
    app.ask("start", workflow="gated", id="g", args=[place.ledger, place.gate("gate")])
    eventually("the gate is reached", lambda: place.signed("gate"))
    beside = remote(client_only=True).opened()
    assert app.ask("is_engine") is True
    assert beside.ask("is_engine") is False
    assert beside.ask("describe", id="g") == {
        "status": "waiting",
        "wait_kind": "activity",
        "liveness_state": "activity_task_leased",
    }
    assert beside.ask("history", id="g")[-2:] == ["ActivityScheduled", "ActivityStarted"]
    assert beside.ask("list") == {"g": "waiting"}
    with pytest.raises(Told, match="WorkflowNotFound"):
        beside.ask("describe", id="nobody")
    place.open_gate("gate")
    assert beside.ask("result", workflow="gated", id="g") == ["before done", "passed gate", "behind done"]
    assert beside.ask("list") == {"g": "completed"}


@BOTH
def test_a_workflow_that_a_second_program_starts_is_run_by_the_first(remote: Start, place: Place) -> None:
    app = remote().opened()
    beside = remote().opened()
    assert beside.ask("execute", workflow="visit", id="v", args=[place.ledger, "tea"]) == "tea done"
    assert [line.pid for line in place.signed("tea")] == [app.pid]
    assert app.ask("result", workflow="visit", id="v") == "tea done"
    with pytest.raises(Told, match="WorkflowAlreadyStarted"):
        beside.ask("start", workflow="visit", id="v", args=[place.ledger, "tea"])
    with pytest.raises(Told, match="WorkflowAlreadyStarted"):
        app.ask("start", workflow="visit", id="v", args=[place.ledger, "tea"])


def test_two_programs_submit_and_one_of_them_runs(remote: Start, place: Place) -> None:
    app = remote().opened()
    other = remote().opened()
    ids = {program: [f"{name}-{n}" for n in range(30)] for program, name in ((app, "a"), (other, "b"))}
    waiting = [
        program.tell("start_many", workflow="visit", ids=mine, args=[place.ledger, "x"])
        for program, mine in ids.items()
    ]
    assert [answer() for answer in waiting] == [30, 30]
    for id in [*ids[app], *ids[other]]:
        assert other.ask("result", workflow="visit", id=id) == "x done"
    lines = place.signed()
    assert {line.pid for line in lines} == {app.pid}
    assert len(lines) == len({line.key for line in lines}) == 60


@BOTH
def test_an_id_that_several_programs_start_at_once_is_started_once(remote: Start, place: Place) -> None:
    programs = [remote().opened() for _ in range(3)]
    ids = [f"v-{n}" for n in range(40)]
    waiting = [program.tell("claim_ids", workflow="visit", ids=ids, args=[place.ledger, "x"]) for program in programs]
    assert sum(answer() for answer in waiting) == 40
    for id in ids:
        assert programs[-1].ask("result", workflow="visit", id=id) == "x done"
    signed = place.signed()
    assert [line for line in signed if [other.key for other in signed].count(line.key) > 1] == []
    assert len(signed) == 40


@pytest.mark.contract("MATCH-01", "REPLAY-11", "REPAIR-18")
@BOTH
def test_after_a_kill_the_second_program_takes_over_and_loses_nothing(remote: Start, place: Place) -> None:
    app = remote().opened()
    other = remote().opened()
    app.ask("start", workflow="gated", id="g", args=[place.ledger, place.gate("gate")])
    app.ask("start", workflow="nap", id="n", args=[place.ledger, 0.2])
    eventually("the gate is reached", lambda: place.signed("gate"))
    done = other.tell("result", workflow="gated", id="g")
    app.kill()
    began = time.monotonic()
    eventually("the other one takes over", lambda: other.ask("is_engine"), SOON)
    eventually("the activity is delivered again", lambda: len(place.signed("gate")) == 2, SOON)
    assert time.monotonic() - began < SOON
    place.open_gate("gate")
    assert done() == ["before done", "passed gate", "behind done"]
    assert other.ask("result", workflow="nap", id="n") == "n done"
    assert [(line.attempt, line.pid) for line in place.signed("gate")] == [(1, app.pid), (2, other.pid)]
    assert [line.pid for line in place.signed("before")] == [app.pid], "recorded before the kill, so it stands"


@pytest.mark.parametrize(
    ("place", "how"), [("sqlite", "kill"), ("sqlite", "close"), ("postgresql", "kill")], indirect=["place"]
)
def test_a_program_that_submits_all_the_time_takes_over_without_losing_any(
    remote: Start, place: Place, how: str
) -> None:
    app = remote().opened()
    other = remote().opened()
    ids = [f"v-{n}" for n in range(250)]
    waiting = other.tell("start_many", workflow="visit", ids=ids, args=[place.ledger, "x"])
    other.wait_for_line("some are started")
    getattr(app, how)()
    assert waiting() == 250
    eventually("the other one takes over", lambda: other.ask("is_engine"), SOON)
    for id in ids:
        assert other.ask("result", workflow="visit", id=id) == "x done"


def test_a_clean_close_hands_over(remote: Start, place: Place) -> None:
    app = remote().opened()
    other = remote().opened()
    app.ask("start", workflow="gated", id="g", args=[place.ledger, place.gate("gate")])
    eventually("the gate is reached", lambda: place.signed("gate"))
    app.close()
    eventually("the activity is delivered again", lambda: len(place.signed("gate")) == 2, SOON)
    assert other.ask("is_engine") is True
    place.open_gate("gate")
    assert other.ask("result", workflow="gated", id="g") == ["before done", "passed gate", "behind done"]
    again = remote().opened()
    assert again.ask("is_engine") is False


def test_three_programs_and_two_kills(remote: Start, place: Place) -> None:
    programs = [remote().opened() for _ in range(3)]
    last = programs[-1]
    ids = [f"v-{n}" for n in range(40)]
    for n, id in enumerate(ids):
        last.ask("start", workflow="nap", id=id, args=[place.ledger, 0.01 * n])
    for _ in range(2):
        engine = eventually(
            "somebody is the engine", lambda: next((p for p in programs if p.ask("is_engine")), None), SOON
        )
        if engine is last:
            break  # it won the race for the lock; nobody is left to wait for
        engine.kill()
        programs.remove(engine)
    for id in ids:
        assert last.ask("result", workflow="nap", id=id) == f"{id} done"
    assert set(Counter(line.name for line in place.signed())) == set(ids)


@pytest.mark.contract("REPAIR-13")
def test_a_repair_from_beside_leaves_running_work_alone(remote: Start, place: Place) -> None:
    app = remote().opened()
    beside = remote(client_only=True).opened()
    app.ask("start", workflow="gated", id="g", args=[place.ledger, place.gate("gate")])
    eventually("the gate is reached", lambda: place.signed("gate"))
    assert beside.ask("repair", id="g") is False
    place.open_gate("gate")
    assert app.ask("result", workflow="gated", id="g") == ["before done", "passed gate", "behind done"]
    assert [line.attempt for line in place.signed("gate")] == [1]


@BOTH
def test_a_process_that_runs_no_tasks_leaves_the_engine_to_those_that_do(remote: Start, place: Place) -> None:
    web = remote(client_only=True).opened()
    assert web.ask("is_engine") is False
    assert web.ask("has_engine") is False
    web.ask("start", workflow="visit", id="before", args=[place.ledger, "tea"])
    web.ask("start", workflow="nap", id="nap", args=[place.ledger, 0.1])
    worker = remote().opened()
    assert worker.ask("is_engine") is True
    assert web.ask("has_engine") is True
    for id in ("before", "nap"):
        assert web.ask("result", workflow="visit", id=id).endswith("done")
    assert web.ask("execute", workflow="visit", id="beside", args=[place.ledger, "tea"]) == "tea done"
    worker.kill()
    later = web.tell("execute", workflow="visit", id="after", args=[place.ledger, "tea"])
    eventually("nobody is the engine", lambda: not web.ask("has_engine"))
    second = remote().opened()
    assert later() == "tea done"
    assert [line.pid for line in place.signed("tea")] == [worker.pid, worker.pid, second.pid]


@BOTH
@pytest.mark.parametrize("client_only", [False, True])
def test_a_signal_that_one_program_has_acknowledged_is_seen_through_another(
    remote: Start, place: Place, client_only: bool
) -> None:
    programs = [remote().opened(), remote(client_only=client_only).opened()]
    programs[0].ask("start", workflow="counter", id="c", args=[])
    for number in range(1, 25):
        teller, asker = programs[number % 2], programs[number // 2 % 2]
        teller.ask("signal", workflow="counter", id="c", name="add", args=[1])
        if number % 3:
            assert asker.ask("query", workflow="counter", id="c", name="read", args=[]) == number
        else:
            assert asker.ask("update", workflow="counter", id="c", name="settle", args=[number]) == number
    programs[1].ask("signal", workflow="counter", id="c", name="stop", args=[])
    assert programs[1].ask("result", workflow="counter", id="c") == 24
    assert "UpdateRejected" not in programs[0].ask("history", id="c")


def test_a_query_of_what_no_process_runs_is_answered_from_what_its_code_has_seen(remote: Start, place: Place) -> None:
    worker, web = remote().opened(), remote(client_only=True).opened()
    web.ask("start", workflow="counter", id="c", args=[])
    web.ask("signal", workflow="counter", id="c", name="add", args=[1])
    assert web.ask("query", workflow="counter", id="c", name="read", args=[]) == 1
    worker.kill()
    web.ask("signal", workflow="counter", id="c", name="add", args=[1])
    assert web.ask("query", workflow="counter", id="c", name="read", args=[]) == 1, "nobody is there to apply it"
    remote().opened()
    assert web.ask("query", workflow="counter", id="c", name="read", args=[]) == 2


def test_a_foreign_command_during_a_local_activity_does_not_disturb_it(remote: Start, place: Place) -> None:
    app = remote().opened()
    beside = remote(client_only=True).opened()
    app.ask("start", workflow="gated_beside", id="g", args=[place.ledger, place.gate("gate")])
    eventually("the gate is reached", lambda: place.signed("gate"))
    for _ in range(3):
        with pytest.raises(Told, match="WorkflowAlreadyStarted"):
            beside.ask("start", workflow="gated_beside", id="g", args=[place.ledger, place.gate("gate")])
    assert beside.ask("execute", workflow="visit", id="v", args=[place.ledger, "tea"]) == "tea done"
    place.open_gate("gate")
    assert app.ask("result", workflow="gated_beside", id="g") == ["passed gate", "behind done"]
    assert len(place.signed("behind")) == 1
