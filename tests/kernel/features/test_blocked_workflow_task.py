"""A task that one worker's code was blocked on goes to workers with other definitions, to each of them once."""

from __future__ import annotations

import pytest
from hypothesis import given as whenever
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backstay.kernel.features.lease import Release
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.repair import Repair
from backstay.kernel.features.workflow_task.blocked import ELSEWHERE
from backstay.kernel.fleet import Definitions, WorkerIdentity, definition_id
from backstay.kernel.task import Block, Task
from backstay.kernel.values import SECOND
from backstay.kernel.views.liveness import liveness

from ..given import WORKER, Flow, given
from ..stored import refold, snapshot

DIVERGED = Block(message="diverged", replay_blocked=True, reason="history_shape_mismatch")


class Workers:
    """Live workers with these definitions. The worker that has the task has the first of them."""

    def __init__(self, *fingerprints: str, elsewhere: tuple[str, ...] = ()) -> None:
        self.fingerprints = list(fingerprints)
        self.elsewhere = frozenset(elsewhere)
        self.holder = fingerprints[0] if fingerprints else None

    def definitions(self, task: Task) -> Definitions:
        return Definitions(frozenset(definition_id(one, None) for one in self.fingerprints), self.elsewhere)

    def worker(self, task: Task) -> WorkerIdentity | None:
        return None if self.holder is None else WorkerIdentity("machine", "build-1", self.holder)


def blocks(flow: Flow, workers: Workers, fingerprint: str) -> None:
    """A worker with this definition takes the task, and its code is blocked."""
    workers.holder = fingerprint
    flow.fleet = workers
    flow.break_task(DIVERGED)


def state(flow: Flow) -> tuple[str, tuple[str, ...]]:
    return flow.workflow_task.state, flow.workflow_task.tried


def test_it_is_offered_at_once_to_another_definition() -> None:
    flow = given()
    blocks(flow, Workers("bad", "good"), "bad")
    assert state(flow) == ("ready", ("bad",))
    assert flow.workflow_task.is_due(flow.now)
    assert liveness(flow.machine, flow.state, flow.now) == "workflow_task_ready"
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_it_is_blocked_when_none_is_left_and_names_the_worker() -> None:
    flow = given()
    blocks(flow, Workers("bad"), "bad")
    block = flow.workflow_task.block
    assert block is not None
    assert (block.worker, block.host, block.build, block.fingerprint) == (WORKER, "machine", "build-1", "bad")
    assert block.blocked_by == f"worker {WORKER} (host machine, build build-1)"
    assert state(flow) == ("failed", ("bad",))
    assert liveness(flow.machine, flow.state, flow.now) == "workflow_replay_blocked"


def test_the_code_that_a_report_names_was_tried_not_that_of_a_successor_with_the_same_id() -> None:
    """A worker that drains reports under an id that the next release has registered again."""
    flow, workers = given(), Workers("bad", "good")
    workers.holder = "good"
    flow.fleet = workers
    flow.break_task(replace(DIVERGED, fingerprint="bad"))
    assert state(flow) == ("ready", ("bad",))


def test_two_definitions_do_not_pass_it_to_and_fro() -> None:
    flow, workers = given(), Workers("bad", "worse")
    blocks(flow, workers, "bad")
    blocks(flow, workers, "worse")
    assert state(flow) == ("failed", ("bad", "worse"))
    flow.when(Reconcile(incarnation="engine-1"))
    assert state(flow) == ("failed", ("bad", "worse"))
    workers.fingerprints.append("good")
    flow.when(Reconcile(incarnation="engine-1"))
    assert state(flow) == ("ready", ("bad", "worse"))


def test_a_worker_of_which_nothing_is_known_does_not_get_it_again_and_again() -> None:
    flow, workers = given(), Workers("bad")
    for _ in range(2):
        workers.holder = None
        flow.fleet = workers
        if flow.workflow_task.state == "ready":
            flow.break_task(DIVERGED)
    assert state(flow) == ("failed", ("unknown",))


def test_a_repair_begins_anew() -> None:
    flow = given()
    blocks(flow, Workers("bad"), "bad")
    flow.when(Repair(work=Reconcile(incarnation="engine-1", force=True)))
    assert state(flow) == ("ready", ())
    assert flow.workflow_task.block is None


def test_a_repair_offers_to_all_what_is_offered_to_some() -> None:
    flow = given()
    blocks(flow, Workers("bad", "good"), "bad")
    flow.when(Repair(work=Reconcile(incarnation="engine-1", force=True)))
    assert state(flow) == ("ready", ())
    assert flow.workflow_task.last_block is None


def test_it_is_blocked_again_when_the_last_other_worker_is_gone() -> None:
    flow, workers = given(), Workers("bad", "good")
    blocks(flow, workers, "bad")
    flow.when(Reconcile(incarnation="engine-1"))
    assert state(flow) == ("ready", ("bad",))
    workers.fingerprints.remove("good")
    flow.when(Reconcile(incarnation="engine-1"))
    assert state(flow) == ("failed", ("bad",))
    block = flow.workflow_task.block
    assert block is not None
    assert (block.message, block.worker) == ("diverged", WORKER)


def test_a_lost_lease_in_between_forgets_neither_the_block_nor_the_definitions() -> None:
    flow, workers = given(), Workers("bad", "good")
    blocks(flow, workers, "bad")
    task = flow.lease()
    flow.when(Release(task_id=task.id, owner=WORKER, attempt=task.attempt, begun=False))
    assert state(flow) == ("ready", ("bad",))
    workers.fingerprints.remove("good")
    flow.when(Reconcile(incarnation="engine-1"))
    assert flow.workflow_task.is_blocked


@pytest.mark.parametrize(("waited", "tried"), [(ELSEWHERE - 1, False), (ELSEWHERE, True)])
def test_the_code_of_another_process_is_tried_for_a_while(waited: int, tried: bool) -> None:
    flow, workers = given(), Workers("bad", elsewhere=("process 1",))
    blocks(flow, workers, "bad")
    assert flow.workflow_task.state == "ready"
    flow.now += waited
    flow.when(Reconcile(incarnation="engine-1"))
    assert state(flow) == (("failed", ("bad", "process 1")) if tried else ("ready", ("bad",)))


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@whenever(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.sampled_from(["come", "go", "look"]), st.sampled_from("abcdef")), max_size=12),
)
def test_every_definition_is_tried_once_and_it_is_blocked_exactly_when_none_is_left(
    live: list[str], moves: list[tuple[str, str]]
) -> None:
    """Law: workers come and go, and each that may have the task takes it and is blocked."""
    flow, workers = given(), Workers(*live)
    flow.fleet = workers
    seen: list[str] = []

    def settle() -> None:
        while flow.workflow_task.state == "ready":
            left = [one for one in workers.fingerprints if one not in flow.workflow_task.tried]
            if not left:
                return
            seen.append(left[0])
            blocks(flow, workers, left[0])

    settle()
    for verb, name in moves:
        flow.now += SECOND
        if verb == "come" and name not in workers.fingerprints:
            workers.fingerprints.append(name)
        elif verb == "go" and name in workers.fingerprints:
            workers.fingerprints.remove(name)
        flow.when(Reconcile(incarnation="engine-1"))
        settle()
        flow.when(Reconcile(incarnation="engine-1"))
        assert len(seen) == len(set(seen))
        assert set(workers.fingerprints) <= set(seen)
        assert flow.workflow_task.is_blocked
