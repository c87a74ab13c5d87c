"""Suspects are tried alone: whatever order tasks are offered in, only the one that kills its workers is blocked."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backstay.engine.tasks.isolation import ALONE, LONGEST_TRIAL, Isolation
from backstay.kernel.decision import TaskChange
from backstay.kernel.features.workflow_task.crashed import MOST
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Routing

WORKER = ("default", "w")


def task(id: str, crashes: int = 0, attempt: int = 0) -> Task:
    return Task(
        id=id,
        workflow=1,
        run=1,
        kind="workflow",
        type="order",
        routing=Routing(namespace="default", queue="default"),
        available_at=0,
        created_at=0,
        crashes=crashes,
        attempt=attempt,
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now


def test_a_worker_with_a_suspect_gets_nothing_else_until_it_is_reported() -> None:
    isolation = Isolation(Clock())
    suspect = task("s", crashes=2)
    isolation.begin(suspect, "w", 1)
    assert not isolation.admits(WORKER, False)
    assert isolation.admits(("default", "other"), True)
    leased = replace(suspect, state="leased", attempt=1, owner="w")
    assert not isolation.committed([TaskChange("s", leased, False)])
    assert isolation.committed([TaskChange("s", None, True)])
    assert isolation.admits(WORKER, True)
    assert not isolation.by_worker


def test_the_commit_of_an_earlier_attempt_ends_no_trial() -> None:
    isolation = Isolation(Clock())
    isolation.begin(task("s", crashes=2, attempt=1), "w", 2)
    assert not isolation.committed([TaskChange("s", task("s", crashes=2, attempt=1), True)])
    assert not isolation.admits(WORKER, False)


def test_time_ends_what_no_report_ends() -> None:
    clock = Clock()
    isolation = Isolation(clock)
    isolation.begin(task("s", crashes=2), "w", 1)
    clock.now += 2 * SECOND
    assert isolation.admits(WORKER, True)
    isolation.begin(task("t", crashes=9), "w", 1)
    clock.now += LONGEST_TRIAL
    assert isolation.admits(WORKER, False)
    assert not isolation.admits(WORKER, True)
    clock.now += ALONE
    assert isolation.admits(WORKER, True)


def test_a_clock_that_was_set_back_leaves_no_worker_without_tasks() -> None:
    clock = Clock()
    isolation = Isolation(clock)
    isolation.begin(task("s", crashes=9), "w", 1)
    clock.now -= 2 * ALONE
    assert isolation.admits(WORKER, True)


def test_a_worker_that_another_node_tries_a_suspect_with_gets_nothing_until_that_is_over() -> None:
    clock = Clock()
    isolation = Isolation(clock)
    isolation.spare(WORKER, 7, clock.now + 3 * SECOND)
    assert not isolation.lets(WORKER, False)
    assert not isolation.is_trying(WORKER, but=7), "the same node may say how long it takes"
    assert isolation.is_trying(WORKER, but=8)
    isolation.spare(WORKER, 7, clock.now + 4 * SECOND)
    assert not isolation.unspare(WORKER, 7, clock.now + 3 * SECOND), "it has been prolonged"
    assert isolation.unspare(WORKER, 7)
    assert isolation.lets(WORKER, False)
    assert not isolation.by_worker


def test_only_a_suspect_waits_for_other_nodes_and_they_hear_of_its_trial() -> None:
    isolation = Isolation(Clock())
    told: list[tuple[tuple[str, str], int]] = []
    isolation.may_try = lambda worker: False
    isolation.on_trial = lambda worker, time: told.append((worker, time))
    assert isolation.lets(WORKER, False)
    assert not isolation.lets(WORKER, True)
    isolation.begin(task("s", crashes=2), "w", 1)
    assert isolation.is_trying(WORKER, but=7)
    isolation.end("s")
    assert told == [(WORKER, 2 * SECOND), (WORKER, 0)]


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.randoms(use_true_random=False))
def test_only_the_task_that_kills_its_workers_counts_up_to_the_bound(innocent: int, slots: int, random: object) -> None:
    """Law: a task is blocked for crashes only if its own code kills. It holds if the deaths of suspects are their own."""
    clock = Clock()
    isolation = Isolation(clock)
    waiting = {name: task(name) for name in ["poison", *(f"i{number}" for number in range(innocent))]}
    while waiting["poison"].crashes < MOST:
        held: list[Task] = []
        offered = list(waiting.values())
        random.shuffle(offered)  # type: ignore[attr-defined]
        for one in offered:
            if len(held) <= slots and isolation.admits(WORKER, one.is_suspect):
                held.append(one)
                if one.is_suspect:
                    isolation.begin(one, "w", one.attempt + 1)
        dies = any(one.id == "poison" for one in held)
        for one in held:
            isolation.end(one.id)
            if dies:
                waiting[one.id] = replace(one, crashes=one.crashes + 1, attempt=one.attempt + 1)
            else:
                del waiting[one.id]
        assert all(one.crashes <= 3 for name, one in waiting.items() if name != "poison")
        clock.now += SECOND
