"""What programs do to themselves: fork, and stop on Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from backstay import Backstay

from . import flows
from .conftest import Place, whole
from .program import Program, eventually

Start = Callable[..., Program]

PROMPTLY = 5.0


def run(program: Start, place: Place, story: str) -> list[str]:
    started = program("forking", story, str(place.database), place.ledger)
    assert started.ended() == 0, "".join(started.errors)
    lines = [line.strip() for line in started.lines]
    assert lines[-1] == "the end"
    return lines[:-1]


@pytest.mark.parametrize("story", ["opened_before", "opened_before_with_multiprocessing"])
def test_an_engine_opened_before_a_fork_is_refused_in_the_child(program: Start, place: Place, story: str) -> None:
    lines = run(program, place, story)
    assert lines[0] == "parent before: before done"
    assert lines[-1] == "parent after: after done"
    starts, lists = lines[1:3]
    for line, verb in ((starts, "starts"), (lists, "lists")):
        assert line.startswith(
            f"child {verb}: ForkedEngine: this engine was opened before a fork; open Backstay only after forking"
        )
    assert "child closes: None" in lines
    assert [line.name for line in place.signed()] == ["before", "after"]


def test_a_child_that_leaves_its_parents_block_closes_nothing(program: Start, place: Place) -> None:
    lines = run(program, place, "child_leaves_the_block")
    assert lines == ["parent before: before done", "child ended: 7", "parent after: after done"]
    assert whole(place)


def test_a_child_cannot_open_what_its_parent_has_open(program: Start, place: Place) -> None:
    """SQLite would believe in locks that the child does not have, and commits of the child could be lost."""
    before, refused, after = run(program, place, "child_opens_its_own")
    assert (before, after) == ("parent before: before done", "parent after: after done")
    assert refused.startswith(
        f"child opens: ForkedEngine: {place.database} was open when this process was forked; open Backstay"
    )


def test_a_child_opens_what_its_parent_has_closed(program: Start, place: Place) -> None:
    assert run(program, place, "child_opens_what_was_closed") == [
        "parent before: before done",
        "child runs: child done",
        "parent after: after done",
    ]


def test_forked_workers_that_open_afterwards_share_the_file(program: Start, place: Place) -> None:
    lines = run(program, place, "workers_open_after_the_fork")
    ids = [f"{number}-{n}" for number in range(3) for n in range(5)]
    assert sorted(lines) == [f"worker {id}: {id} done" for id in ids]


@pytest.mark.parametrize("story", ["waiting", "waiting_beside", "waiting_async"])
def test_ctrl_c_ends_a_program_promptly(program: Start, place: Place, story: str) -> None:
    waiting = program("interrupted", story, str(place.database), place.ledger, place.gate("gate"))
    eventually("the gate is reached", lambda: place.signed("gate"))
    waiting.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert waiting.ended(PROMPTLY) == -signal.SIGINT
    assert time.monotonic() - began < PROMPTLY
    said = "".join(waiting.errors)
    assert said.rstrip().endswith("KeyboardInterrupt")
    for noise in ("destroyed", "never retrieved", "Exception ignored", "Fatal"):
        assert noise not in said
    place.open_gate("gate")
    flow = flows.gated_beside if story == "waiting_beside" else flows.gated
    with Backstay(place.database, flows.REGISTER, guard="off") as app:
        assert app.handle(flow, "g").result(timeout=10)[-1] == "behind done"


def test_a_backstay_that_is_not_open_says_so(place: Place) -> None:
    app = Backstay(place.database, flows.REGISTER)
    with pytest.raises(RuntimeError, match="not open"):
        app.list()
    with app:
        assert app.execute(flows.visit, "v", place.ledger, "tea") == "tea done"
    with pytest.raises(RuntimeError, match="not open"):
        app.list()
    with app:
        assert app.handle(flows.visit, "v").result() == "tea done"


def test_a_waiter_for_a_result_hears_that_the_engine_closes(place: Place) -> None:
    with ThreadPoolExecutor(1) as pool, Backstay(place.database, flows.REGISTER) as app:
        waiting = pool.submit(app.execute, flows.gated, "g", place.ledger, place.gate("gate"))
        eventually("the gate is reached", lambda: place.signed("gate"))
        app.close()
        with pytest.raises(RuntimeError, match="closed before the answer came"):
            waiting.result(timeout=PROMPTLY)
        place.open_gate("gate")
