"""A run driven by hand: the bridge of workflow tasks and of activity tasks, verb by verb, in this process.

The clock stands still unless a test moves it, so leases last exactly as long as a test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Union

import msgspec
import pytest

from backstay import AsyncBackstay, RequestRefused, activity, sleep, workflow
from backstay.codec.values import dumps, loads
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import Progress, RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.search import UpsertSearchAttributes
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.version import RecordVersionMarker
from backstay.kernel.machine import Machine
from backstay.kernel.task import Block
from backstay.kernel.values import SECOND, Routing
from backstay.protocol import requests as ask

from .kit import StillWorld, names, settle, steps

ME = "worker-1"


@workflow(type="order")
def order(n: int = 0) -> str:
    return charge(n)


@activity(type="charge")
def charge(n: int) -> str:
    return f"paid {n}"


class Bridge:
    """One worker, by hand."""

    def __init__(self, app: AsyncBackstay, world: StillWorld) -> None:
        self.app = app
        self.world = world

    async def start(self, id: str = "o", **options: Any) -> Any:
        return await self.app.call(ask.StartWorkflow(workflow_type="order", workflow_id=id, **options))

    async def poll(self, worker: str = ME, **criteria: Any) -> Any:
        return await self.app.call(ask.PollWorkflowTask(worker_id=worker, **criteria))

    async def poll_activity(self, worker: str = ME, *types: str, **criteria: Any) -> Any:
        wanted = frozenset(types or {"charge"})
        return await self.app.call(ask.PollActivityTask(worker_id=worker, activity_types=wanted, **criteria))

    async def complete(
        self, task: Any, *commands: Any, owner: str = ME, attempt: int | None = None, **more: Any
    ) -> Any:
        return await self.app.call(
            ask.CompleteTask(
                task_id=task.task.id,
                lease_owner=owner,
                workflow_task_attempt=task.task.attempt if attempt is None else attempt,
                commands=list(commands),
                **more,
            )
        )

    async def fail(self, task: Any, block: Block, owner: str = ME) -> Any:
        return await self.app.call(
            ask.FailTask(
                task_id=task.task.id, lease_owner=owner, workflow_task_attempt=task.task.attempt, failure=block
            )
        )

    async def beat(self, task: Any, owner: str = ME, attempt: int | None = None) -> Any:
        return await self.app.call(
            ask.HeartbeatTask(
                task_id=task.task.id,
                lease_owner=owner,
                workflow_task_attempt=task.task.attempt if attempt is None else attempt,
            )
        )

    async def finish(self, task: Any, result: Any = "ok", owner: str = ME) -> Any:
        return await self.app.call(
            ask.CompleteActivityTask(
                activity_attempt_id=task.activity_attempt_id, lease_owner=owner, result=dumps(result)
            )
        )

    async def break_activity(self, task: Any, failure: Failure, owner: str = ME) -> Any:
        return await self.app.call(
            ask.FailActivityTask(activity_attempt_id=task.activity_attempt_id, lease_owner=owner, failure=failure)
        )

    async def beat_activity(self, task: Any, progress: Progress | None = None, owner: str = ME) -> Any:
        return await self.app.call(
            ask.HeartbeatActivityTask(
                activity_attempt_id=task.activity_attempt_id, lease_owner=owner, progress=progress
            )
        )

    async def status(self, task: Any, owner: str = ME) -> Any:
        return await self.app.call(
            ask.GetActivityStatus(activity_attempt_id=task.activity_attempt_id, lease_owner=owner)
        )

    async def history(self, id: str = "o") -> list[Any]:
        return await self.app.history(id)

    async def names(self, id: str = "o") -> list[str]:
        return names(await self.history(id))


@asynccontextmanager
async def bridge(*things: Any, **options: Any) -> AsyncIterator[Bridge]:
    world = StillWorld()
    app = AsyncBackstay(":memory:", things, client_only=True, world=lambda: world, **options)
    async with app:
        yield Bridge(app, world)


async def refusal(call: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        await call
    return caught.value


# -- a whole run


@pytest.mark.contract("LEASE-01", "ACT-01", "CMD-04", "CMD-17")
async def test_a_run_is_driven_from_start_to_end_by_hand() -> None:
    async with bridge() as by:
        started = await by.start(arguments=dumps([7]))
        task = await by.poll()
        assert (task.workflow_id, task.run_id, task.workflow_type) == ("o", started.run_id, "order")
        assert loads(task.started.arguments) == [7]
        outcome = await by.complete(task, ScheduleActivity(activity_type="charge", arguments=dumps([7])))
        assert (outcome.outcome, outcome.run_status, outcome.recorded) == ("completed", "waiting", True)
        assert await by.poll() is None
        work = await by.poll_activity()
        assert (work.activity_type, work.attempt_number, loads(work.arguments)) == ("charge", 1, [7])
        assert (await by.finish(work, "paid")).outcome == "completed"
        task = await by.poll()
        outcome = await by.complete(task, CompleteWorkflow(result=dumps("thanks")))
        assert outcome.run_status == "completed"
        assert await by.app.handle(None, "o").result() == "thanks"
        assert await by.names() == [
            "StartAccepted",
            "WorkflowStarted",
            "ActivityScheduled",
            "ActivityStarted",
            "ActivityCompleted",
            "WorkflowCompleted",
        ]


@pytest.mark.contract("LEASE-05", "LEASE-01")
async def test_execute_claims_and_runs_a_task_with_the_code_of_this_process() -> None:
    async with bridge(order, charge) as by:
        await by.start(arguments=dumps([7]))
        (view,) = (await by.app.describe("o")).tasks
        outcome = await by.app.call(ask.ExecuteWorkflowTask(task_id=view.task.id))
        assert (outcome.outcome, outcome.run_status) == ("completed", "waiting")
        assert (await by.names())[-1] == "ActivityScheduled"
        gone = await refusal(by.app.call(ask.ExecuteWorkflowTask(task_id=view.task.id)))
        assert gone.reason == "task_not_found"
        await by.finish(await by.poll_activity(), "paid 7")
        (view,) = (await by.app.describe("o")).tasks
        assert (await by.app.call(ask.ExecuteWorkflowTask(task_id=view.task.id))).run_status == "completed"
        assert await by.app.handle(order, "o").result() == "paid 7"


async def test_execute_of_a_type_that_this_process_does_not_know_is_refused() -> None:
    async with bridge() as by:
        await by.start()
        (view,) = (await by.app.describe("o")).tasks
        found = await refusal(by.app.call(ask.ExecuteWorkflowTask(task_id=view.task.id)))
        assert found.reason == "workflow_type_not_registered"
        assert (await by.poll()) is not None, "it is still there for others"


# -- polling and claiming


@pytest.mark.contract("LEASE-02")
async def test_a_poll_gets_what_matches_its_queue_type_and_compatibility() -> None:
    async with bridge() as by:
        await by.start("eu", routing=Routing(queue="eu"))
        await by.start("marked", routing=Routing(compatibility="build-2"))
        assert await by.poll() is None
        assert await by.poll(queue="eu", workflow_types=frozenset({"other"})) is None
        assert await by.poll(queue="eu", namespace="other") is None
        assert (await by.poll(queue="eu", workflow_types=frozenset({"order"}))).workflow_id == "eu"
        assert await by.poll(compatibility=frozenset({"build-1"})) is None
        assert (await by.poll(compatibility=frozenset({"build-1", "build-2"}))).workflow_id == "marked"


async def test_a_poll_that_waits_is_answered_as_soon_as_there_is_work() -> None:
    async with bridge() as by:
        parked = asyncio.create_task(by.poll(wait_seconds=30))
        await settle()
        assert not parked.done()
        await by.start()
        assert (await parked).workflow_id == "o"
        empty = asyncio.create_task(by.poll(wait_seconds=30))
        await settle()
        await by.world.advance(31)
        assert await empty is None


@pytest.mark.contract("LEASE-03")
async def test_a_claim_by_id_leases_for_five_minutes() -> None:
    async with bridge() as by:
        await by.start()
        (view,) = (await by.app.describe("o")).tasks
        assert view.transport_state == "ready"
        task = await by.app.call(ask.ClaimWorkflowTask(task_id=view.task.id, worker_id=ME))
        assert (task.task.state, task.task.owner, task.task.attempt) == ("leased", ME, 1)
        assert task.task.until is not None
        assert task.task.leased_at is not None
        assert task.task.until - task.task.leased_at == 300 * SECOND
        (view,) = (await by.app.describe("o")).tasks
        assert view.transport_state == "leased"


@pytest.mark.contract("LEASE-04")
async def test_a_claim_by_id_checks_compatibility_and_connection_like_a_poll() -> None:
    async with bridge(order, charge, compatibility="build-1") as by:
        await by.start(routing=Routing(compatibility="build-2", connection="redis"))
        (view,) = (await by.app.describe("o")).tasks
        id = view.task.id
        wrong: dict[str, Any]
        for wrong, expected in (
            ({}, "compatibility_blocked"),
            ({"compatibility": frozenset({"build-1"})}, "compatibility_blocked"),
            ({"compatibility": frozenset({"build-2"}), "connection": "sqs"}, "backend_unavailable"),
        ):
            assert (await by.app.call(ask.GetClaimStatus(task_id=id, **wrong))).reason == expected
            claim = ask.ClaimWorkflowTask(task_id=id, worker_id=ME, **wrong)
            assert (await refusal(by.app.call(claim))).reason == expected
        assert (await refusal(by.app.call(ask.ExecuteWorkflowTask(task_id=id)))).reason == "compatibility_blocked"
        fitting: dict[str, Any] = {"compatibility": frozenset({"build-2"}), "connection": "redis"}
        assert (await by.app.call(ask.GetClaimStatus(task_id=id, **fitting))).claimable
        task = await by.app.call(ask.ClaimWorkflowTask(task_id=id, worker_id=ME, **fitting))
        await by.complete(task, ScheduleActivity(activity_type="charge"))
        (view,) = (await by.app.describe("o")).tasks
        claim = ask.ClaimActivityTask(task_id=view.task.id, worker_id=ME, connection="redis")
        assert (await refusal(by.app.call(claim))).reason == "compatibility_unsupported"
        claim = ask.ClaimActivityTask(task_id=view.task.id, worker_id=ME, **fitting)
        assert (await by.app.call(claim)).attempt_number == 1


@pytest.mark.contract("LEASE-01", "ACT-01", "ACT-11")
async def test_claim_status_says_by_a_reason_why_a_task_cannot_be_claimed() -> None:
    async with bridge() as by:
        await by.start()
        task = await by.poll()

        async def reason(id: str, kind: str = "workflow") -> str | None:
            status = await by.app.call(ask.GetClaimStatus(task_id=id, kind=kind))
            assert status.claimable == (status.reason is None)
            return status.reason

        assert await reason(task.task.id) == "task_not_claimable"
        assert await reason("01ARZ3NDEKTSV4RRFFQ69G5FAV-w2") == "task_not_found"
        assert await reason(task.task.id, "activity") == "task_not_activity"
        leased = await refusal(by.app.call(ask.ClaimWorkflowTask(task_id=task.task.id, worker_id="other")))
        assert leased.reason == "task_not_claimable"
        policy = RetryPolicy(max_attempts=2, backoff_seconds=[10])
        await by.complete(task, ScheduleActivity(activity_type="charge", retry_policy=policy))
        (view,) = (await by.app.describe("o")).tasks
        assert await reason(view.task.id, "activity") is None
        assert await reason(view.task.id) == "task_not_workflow"
        wrong = await refusal(by.app.call(ask.ClaimWorkflowTask(task_id=view.task.id, worker_id=ME)))
        assert wrong.reason == "task_not_workflow"
        work = await by.poll_activity()
        assert await reason(view.task.id, "activity") == "task_not_ready"
        await by.break_activity(work, Failure(message="no"))
        (view,) = (await by.app.describe("o")).tasks
        assert view.transport_state == "scheduled"
        assert await reason(view.task.id, "activity") == "task_not_due"
        early = await refusal(by.app.call(ask.ClaimActivityTask(task_id=view.task.id, worker_id=ME)))
        assert early.reason == "task_not_due"
        await by.world.advance(11)
        assert await reason(view.task.id, "activity") is None
        await by.finish(await by.app.call(ask.ClaimActivityTask(task_id=view.task.id, worker_id=ME)))
        last = await by.poll()
        await by.complete(last, CompleteWorkflow())
        assert await reason(last.task.id) == "run_closed"


# -- history


@pytest.mark.contract("LEASE-01", "HIST-01", "HIST-02", "HIST-03")
async def test_history_of_a_claimed_task_comes_whole_or_in_pages() -> None:
    async with bridge() as by:
        await by.start()
        task = await by.poll()
        await by.complete(task, *[RecordSideEffect(result=dumps(n)) for n in range(799)], StartTimer(delay_seconds=1))
        await by.world.advance(2)
        task = await by.poll()
        await by.complete(task, *[RecordSideEffect(result=dumps(n)) for n in range(395)], StartTimer(delay_seconds=1))
        await by.world.advance(2)
        task = await by.poll()

        async def page(**options: Any) -> Any:
            return await by.app.call(
                ask.GetTaskHistory(
                    task_id=task.task.id, lease_owner=ME, workflow_task_attempt=task.task.attempt, **options
                )
            )

        whole = await page(page_size=None)
        assert len(whole.history_events) == whole.total_history_events == 1200
        assert (whole.has_more, whole.next_after_sequence) == (False, None)
        assert whole.history_events == await by.history()
        sizes: list[int] = []
        found: list[Any] = []
        after: int | None = 0
        while after is not None:
            one = await page(after_sequence=after)
            sizes.append(len(one.history_events))
            found += one.history_events
            assert one.has_more == (one.next_after_sequence is not None)
            after = one.next_after_sequence
        assert sizes == [500, 500, 200]
        assert found == whole.history_events
        assert len((await page(page_size=5000)).history_events) == 1000
        assert len((await page(page_size=0)).history_events) == 1
        assert (await page(after_sequence=1200)).history_events == []


async def test_history_is_what_the_task_was_leased_at() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), StartTimer(delay_seconds=1), StartTimer(delay_seconds=2))
        await by.world.advance(1.5)
        task = await by.poll()
        await by.world.advance(1)
        assert (await by.names()).count("TimerFired") == 2
        page = await by.app.call(ask.GetTaskHistory(task_id=task.task.id, lease_owner=ME, workflow_task_attempt=1))
        assert names(page.history_events).count("TimerFired") == 1
        assert page.total_history_events == task.last_sequence


async def test_history_needs_the_lease() -> None:
    async with bridge() as by:
        await by.start()
        task = await by.poll()
        for owner, attempt, reason in (
            ("other", 1, "lease_owner_mismatch"),
            (ME, 2, "workflow_task_attempt_mismatch"),
        ):
            found = await refusal(
                by.app.call(ask.GetTaskHistory(task_id=task.task.id, lease_owner=owner, workflow_task_attempt=attempt))
            )
            assert found.reason == reason


# -- leases


@pytest.mark.contract("LEASE-01", "LEASE-07")
async def test_a_heartbeat_renews_the_lease_and_tells_the_status() -> None:
    async with bridge() as by:
        await by.start()
        task = await by.poll()
        await by.world.advance(200)
        reply = await by.beat(task)
        assert reply.lease_expires_at == task.task.until + 200 * SECOND
        assert (reply.outcome, reply.run_status) == ("renewed", "pending")
        await by.world.advance(200)
        assert (await by.complete(task, CompleteWorkflow())).outcome == "completed"


@pytest.mark.contract("LEASE-09", "LEASE-10")
async def test_a_stale_owner_or_attempt_is_refused_before_anything_is_applied() -> None:
    async with bridge() as by:
        await by.start()
        task = await by.poll()
        before = await by.names()
        commands = [ScheduleActivity(activity_type="charge"), StartTimer(delay_seconds=1), RecordSideEffect(result=b"")]
        for owner, attempt, reason in (
            ("other", 1, "lease_owner_mismatch"),
            (ME, 0, "workflow_task_attempt_mismatch"),
            (ME, 2, "workflow_task_attempt_mismatch"),
        ):
            for call in (by.complete(task, *commands, owner=owner, attempt=attempt), by.beat(task, owner, attempt)):
                assert (await refusal(call)).reason == reason
            assert await by.names() == before
        assert (await by.complete(task, *commands)).outcome == "completed"
        assert (await refusal(by.complete(task, *commands, owner="other"))).reason == "task_not_found"


@pytest.mark.contract("STREAM-12", "STREAM-13")
async def test_a_repeated_terminal_call_answers_what_was_recorded_and_changes_nothing() -> None:
    async with bridge() as by:
        await by.start()
        task = await by.poll()
        once = await by.fail(task, Block(message="no such code"))
        again = await by.fail(task, Block(message="no such code"))
        assert (once.outcome, again.outcome, again.reason) == ("failed", "failed", "already_recorded")
        await by.world.advance(4)
        task = await by.poll()
        await by.complete(task, ScheduleActivity(activity_type="charge", retry_policy=RetryPolicy(max_attempts=2)))
        recorded = await by.names()
        for again in (
            await by.complete(task, ScheduleActivity(activity_type="charge")),
            await by.fail(task, Block(message="late")),
        ):
            assert (again.outcome, again.reason) == ("completed", "already_recorded")
        assert (await refusal(by.beat(task))).reason == "task_not_found"
        assert await by.names() == recorded
        for outcome in ("retry_scheduled", "failed"):
            work = await by.poll_activity()
            for _ in range(2):
                assert (await by.break_activity(work, Failure(message="broken"))).outcome == outcome
        assert (await by.names()).count("ActivityFailed") == 1
        last = await by.poll()
        for _ in range(2):
            done = await by.complete(last, CompleteWorkflow())
            assert (done.outcome, done.run_status) == ("completed", "completed")


@pytest.mark.contract("LEASE-04", "FLEET-05", "MATCH-10")
async def test_a_claim_by_id_respects_compatibility_connection_and_namespace() -> None:
    async with bridge() as by:
        started = await by.start(routing=Routing(compatibility="build-2", connection="eu"))
        task_id = f"{started.run_id}-w2"
        claim: dict[str, Any] = {"task_id": task_id, "worker_id": ME}
        fits: dict[str, Any] = {"compatibility": frozenset({"build-2"})}
        wrong: dict[str, Any]
        for wrong, reason in (
            ({}, "compatibility_blocked"),
            ({"compatibility": frozenset({"build-1"})}, "compatibility_blocked"),
            ({**fits, "connection": "us"}, "backend_unavailable"),
            ({**fits, "namespace": "other"}, "task_not_found"),
        ):
            assert (await refusal(by.app.call(ask.ClaimWorkflowTask(**claim, **wrong)))).reason == reason
            status = await by.app.call(ask.GetClaimStatus(task_id=task_id, **wrong))
            assert (status.claimable, status.reason) == (False, reason)
        claimed = await by.app.call(ask.ClaimWorkflowTask(**claim, **fits, connection="eu", namespace="default"))
        assert claimed.task.attempt == 1, "the refused claims left no trace"


@pytest.mark.contract("LEASE-14", "LEASE-10")
async def test_an_expired_lease_is_delivered_again_and_the_late_report_is_refused() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), StartTimer(delay_seconds=1))
        await by.world.advance(2)
        first = await by.poll("first")
        await by.world.advance(301)
        late = await refusal(by.complete(first, StartTimer(delay_seconds=5), owner="first"))
        assert late.reason in ("lease_expired", "task_not_leased")
        second = await by.poll("second")
        assert (second.task.id, second.task.attempt) == (first.task.id, 2)
        assert second.task.resume == first.task.resume
        before = await by.names()
        for call in (
            by.complete(
                first, StartTimer(delay_seconds=5), StartTimer(delay_seconds=6), CompleteWorkflow(), owner="first"
            ),
            by.fail(first, Block(message="late"), owner="first"),
            by.beat(first, "first"),
        ):
            assert (await refusal(call)).reason == "lease_owner_mismatch"
        assert await by.names() == before
        await by.complete(second, CompleteWorkflow(), owner="second")
        assert (await by.names()).count("WorkflowStarted") == 1
        assert (await by.names()).count("TimerScheduled") == 1


@pytest.mark.contract("LEASE-06")
async def test_a_completion_without_commands_is_refused() -> None:
    async with bridge() as by:
        await by.start()
        found = await refusal(by.complete(await by.poll()))
        assert (found.reason, found.fields["field"]) == ("invalid_commands", "commands")


@pytest.mark.contract("LEASE-01", "LEASE-08", "LEASE-11")
async def test_a_failed_task_never_fails_its_run_and_comes_back_after_a_backoff() -> None:
    async with bridge() as by:
        await by.start()
        for pause in (3, 6, 12, 24, 48, 60, 60):
            task = await by.poll()
            outcome = await by.fail(task, Block(message="no such module", type="DeterminismFailed", stack_trace="..."))
            assert (outcome.outcome, outcome.run_status) == ("failed", "pending")
            (view,) = (await by.app.describe("o")).tasks
            assert (view.transport_state, view.task.id) == ("repair_backoff", task.task.id)
            assert view.task.block is not None
            assert view.task.block.message == "no such module"
            await by.world.advance(pause - 0.5)
            assert await by.poll() is None
            await by.world.advance(1)
        assert await by.names() == ["StartAccepted", "WorkflowStarted"]
        task = await by.poll()
        assert task.task.attempt == 8
        found = await refusal(by.fail(task, Block(message="")))
        assert (found.reason, found.fields["field"]) == ("invalid_failure", "failure.message")


async def test_a_blocked_task_waits_for_a_repair() -> None:
    async with bridge() as by:
        await by.start()
        await by.fail(await by.poll(), Block(message="diverged", replay_blocked=True, reason="history_shape_mismatch"))
        await by.world.advance(100)
        assert await by.poll() is None
        assert (await by.app.describe("o")).liveness_state == "workflow_replay_blocked"
        assert len((await by.app.handle(None, "o").repair()).revived) == 1
        assert (await by.poll()).task.attempt == 2


async def test_a_closed_run_refuses_every_verb_and_says_how_it_ended() -> None:
    async with bridge() as by:
        await by.start(run_timeout_seconds=10)
        task = await by.poll()
        await by.world.advance(11)
        for call in (
            by.complete(task, CompleteWorkflow()),
            by.fail(task, Block(message="x")),
            by.beat(task),
            by.app.call(ask.GetTaskHistory(task_id=task.task.id, lease_owner=ME, workflow_task_attempt=1)),
        ):
            found = await refusal(call)
            assert found.reason == "run_closed"
            assert (found.fields["can_continue"], found.fields["run_closed_reason"]) == (False, "timed_out")
            assert found.fields["run_closed_at"] == (await by.history())[-1].at


# -- commands


@pytest.mark.contract("CMD-01", "CMD-06", "CMD-14", "CMD-15", "CMD-16")
async def test_commands_are_applied_in_order_with_increasing_steps() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(
            await by.poll(),
            ScheduleActivity(activity_type="a"),
            ScheduleActivity(activity_type="b"),
            StartTimer(delay_seconds=0.5),
            RecordSideEffect(result=dumps(1)),
            RecordVersionMarker(change_id="c", version=2, min_supported=1, max_supported=3),
            UpsertSearchAttributes(attributes={"colour": "red"}),
            ScheduleActivity(activity_type="c"),
        )
        assert steps(await by.history()) == [
            ("ActivityScheduled", 1),
            ("ActivityScheduled", 2),
            ("TimerScheduled", 3),
            ("SideEffectRecorded", 4),
            ("VersionMarkerRecorded", 5),
            ("SearchAttributesUpserted", 6),
            ("ActivityScheduled", 7),
        ]
        assert [row.workflow_id for row in await by.app.list(search=("colour", "red"))] == ["o"]
        await by.world.advance(1)
        (fired,) = [e for e in await by.history() if e.type == "TimerFired"]
        assert (fired.event.sequence, fired.event.delay_seconds) == (3, 0.5)


@pytest.mark.contract("CMD-02", "CMD-03")
@pytest.mark.parametrize(
    "wrong",
    [
        [CompleteWorkflow(), FailWorkflow(message="x")],
        [CompleteWorkflow(), StartTimer(delay_seconds=1)],
        [StartTimer(delay_seconds=-1)],
        [StartTimer(delay_seconds=1e11)],
        [ScheduleActivity(activity_type="")],
        [ScheduleActivity(activity_type="a", retry_policy=RetryPolicy(max_attempts=0))],
        [ScheduleActivity(activity_type="a", retry_policy=RetryPolicy(max_attempts=1, backoff_seconds=[-1]))],
        [ScheduleActivity(activity_type="a", retry_policy=RetryPolicy(max_attempts=1, start_to_close_timeout=0))],
        [RecordVersionMarker(change_id="", version=1, min_supported=1, max_supported=1)],
        [RecordVersionMarker(change_id="c", version=4, min_supported=1, max_supported=3)],
        [UpsertSearchAttributes(attributes={"bad key": 1})],
        [StartTimer(sequence=5, delay_seconds=1)],
    ],
)
async def test_one_wrong_command_refuses_the_whole_completion(wrong: list[Any]) -> None:
    async with bridge() as by:
        await by.start()
        task = await by.poll()
        found = await refusal(by.complete(task, ScheduleActivity(activity_type="charge"), *wrong))
        assert found.reason in ("invalid_commands", "invalid_search_attributes")
        assert found.fields["field"]
        assert await by.names() == ["StartAccepted", "WorkflowStarted"]
        assert (await by.complete(task, CompleteWorkflow())).run_status == "completed", "the lease is still good"


@pytest.mark.contract("CMD-03", "CMD-15")
@pytest.mark.parametrize(
    "wire",
    [
        {"type": "start_timer"},
        {"type": "schedule_activity"},
        {"type": "fail_workflow"},
        {"type": "record_side_effect"},
        {"type": "upsert_search_attributes"},
        {"type": "record_version_marker", "change_id": "c", "version": 1, "min_supported": 1},
        {"type": "record_version_marker", "change_id": "c", "version": 1, "max_supported": 1},
        {"type": "record_version_marker", "change_id": "c", "min_supported": 1, "max_supported": 1},
        {"type": "record_version_marker", "version": 1, "min_supported": 1, "max_supported": 1},
        {"type": "dance"},
    ],
)
def test_a_command_without_a_required_field_is_no_command(wire: dict[str, Any]) -> None:
    known = Union[tuple(Machine().commands)]  # noqa: UP007 - made of a tuple
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wire, known)


@pytest.mark.contract("CMD-18")
async def test_fail_workflow_closes_the_run_as_failed() -> None:
    async with bridge() as by:
        await by.start()
        outcome = await by.complete(await by.poll(), FailWorkflow(message="sold out", exception_type="shop.sold_out"))
        assert outcome.run_status == "failed"
        (event,) = [entry.event for entry in await by.history() if entry.type == "WorkflowFailed"]
        assert (event.message, event.exception_type, event.failure_category) == (
            "sold out",
            "shop.sold_out",
            "application",
        )


@pytest.mark.contract("CMD-19", "CAN-01", "CAN-02")
@pytest.mark.parametrize("changes", [{}, {"arguments": dumps([9])}, {"workflow_type": "purchase"}])
async def test_continue_as_new_opens_the_next_run_of_the_same_instance(changes: dict[str, Any]) -> None:
    async with bridge() as by:
        await by.start(arguments=dumps([7]))
        first = await by.poll()
        await by.complete(first, ContinueAsNew(**changes))
        second = await by.poll()
        assert second.workflow_id == "o"
        assert second.run_id != first.run_id
        assert second.run_number == 2
        assert loads(second.started.arguments) == ([9] if "arguments" in changes else [7])
        assert second.workflow_type == changes.get("workflow_type", "order")
        rows = await by.app.list(workflow_id="o")
        assert [(row.number, row.closed_reason) for row in rows] == [(2, None), (1, "continued")]


async def test_repeating_a_recorded_step_changes_nothing() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), StartTimer(sequence=1, delay_seconds=1))
        await by.world.advance(2)
        task = await by.poll()
        await by.complete(task, StartTimer(sequence=1, delay_seconds=1), StartTimer(sequence=2, delay_seconds=1))
        assert steps(await by.history()) == [("TimerScheduled", 1), ("TimerFired", 1), ("TimerScheduled", 2)]


async def test_events_recorded_while_a_task_is_leased_come_with_the_next_task() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), StartTimer(delay_seconds=1), ScheduleActivity(activity_type="charge"))
        await by.world.advance(2)
        task = await by.poll()
        await by.finish(await by.poll_activity())
        await by.complete(task, StartTimer(delay_seconds=9))
        *_, fact, decided = await by.history()
        assert (fact.type, decided.type) == ("ActivityCompleted", "TimerScheduled")
        assert fact.context.decided_after is None
        assert decided.context.decided_after == task.last_sequence < fact.sequence
        following = await by.poll()
        assert following.task.resume.workflow_event_type == "ActivityCompleted"


# -- what a task is told


@pytest.mark.contract("RESUME-02")
async def test_a_start_task_has_every_resume_field_and_all_of_them_are_empty() -> None:
    async with bridge() as by:
        await by.start()
        resume = msgspec.structs.asdict((await by.poll()).task.resume)
    assert set(resume) >= {
        "workflow_wait_kind",
        "open_wait_id",
        "resume_source_kind",
        "resume_source_id",
        "workflow_update_id",
        "workflow_signal_id",
        "signal_name",
        "workflow_command_id",
        "activity_execution_id",
        "child_call_id",
        "timer_id",
        "condition_wait_id",
        "workflow_sequence",
        "workflow_event_type",
    }
    assert set(resume.values()) == {None}


@pytest.mark.contract("RESUME-10")
@pytest.mark.parametrize("how", ["ActivityCompleted", "ActivityFailed", "ActivityTimedOut"])
async def test_a_task_after_an_activity_names_its_attempt_and_event(how: str) -> None:
    async with bridge() as by:
        await by.start()
        policy = RetryPolicy(max_attempts=1, start_to_close_timeout=5)
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge", retry_policy=policy))
        work = await by.poll_activity()
        if how == "ActivityCompleted":
            await by.finish(work)
        elif how == "ActivityFailed":
            await by.break_activity(work, Failure(message="no"))
        else:
            await by.world.advance(6)
        resume = (await by.poll()).task.resume
        last = (await by.history())[-1]
        assert (resume.activity_execution_id, resume.activity_attempt_id) == (
            work.activity_execution_id,
            work.activity_attempt_id,
        )
        assert (resume.activity_type, resume.workflow_event_type) == ("charge", how)
        assert (resume.workflow_sequence, last.type) == (last.sequence, how)
        assert (resume.resume_source_kind, resume.resume_source_id) == (
            "activity_execution",
            work.activity_execution_id,
        )
        assert resume.timer_id is None


@pytest.mark.contract("RESUME-12")
async def test_a_task_after_a_timer_names_it() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), StartTimer(delay_seconds=1))
        await by.world.advance(2)
        resume = (await by.poll()).task.resume
        last = (await by.history())[-1]
        timer = last.event.timer_id
        assert (resume.workflow_wait_kind, resume.open_wait_id) == ("timer", f"timer:{timer}")
        assert (resume.resume_source_kind, resume.resume_source_id, resume.timer_id) == ("timer", timer, timer)
        assert (resume.workflow_sequence, resume.workflow_event_type) == (last.sequence, "TimerFired")
        assert resume.activity_execution_id is None


# -- activities


@pytest.mark.contract("ACT-01", "ACT-02", "ACT-03")
async def test_a_heartbeat_renews_and_a_status_does_not() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge"))
        work = await by.poll_activity()
        assert work.task.until - work.task.leased_at == 300 * SECOND
        await by.world.advance(100)
        status = await by.status(work)
        assert (status.can_continue, status.cancel_requested, status.reason) == (True, False, None)
        assert status.lease_expires_at == work.task.until
        reply = await by.beat_activity(work, Progress(message="half", current=1, total=2))
        assert reply.lease_expires_at == work.task.until + 100 * SECOND
        assert (reply.can_continue, reply.cancel_requested, reply.reason) == (True, False, None)
        assert (reply.run_status, reply.attempt_status, reply.task_status) == ("waiting", "running", "leased")
        assert reply.heartbeat_recorded
        assert (await by.status(work)).lease_expires_at == reply.lease_expires_at
        await by.world.advance(250)
        assert (await by.finish(work)).outcome == "completed"
        (beat,) = [entry.event for entry in await by.history() if entry.type == "ActivityHeartbeatRecorded"]
        assert (beat.progress.message, beat.progress.current) == ("half", 1)


@pytest.mark.contract("ACT-07", "ACT-08", "ACT-09", "ACT-10")
async def test_a_silent_worker_loses_its_activity_to_the_next_one() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge"))
        tries = []
        for number in (1, 2, 3):
            work = await by.poll_activity(f"worker-{number}")
            tries.append(work)
            assert work.attempt_number == number
            if number < 3:
                await by.world.advance(301)
                await by.world.advance(1)  # the second one in a row is offered a second later
        assert len({work.activity_attempt_id for work in tries}) == 3
        assert {work.activity_execution_id for work in tries} == {tries[0].activity_execution_id}
        for number, work in enumerate(tries[:2], 1):
            owner = f"worker-{number}"
            late = await refusal(by.finish(work, "late", owner))
            assert (late.reason, late.fields["outcome"]) == ("stale_attempt", "ignored")
            assert (await refusal(by.break_activity(work, Failure(message="late"), owner))).reason == "stale_attempt"
            beat = await by.beat_activity(work, owner=owner)
            assert (beat.can_continue, beat.reason) == (False, "stale_attempt")
            assert (await by.status(work, owner)).can_continue is False
        wrong = await refusal(by.finish(tries[2], "stolen", "worker-1"))
        assert wrong.reason == "stale_attempt"
        assert (await by.finish(tries[2], "mine", "worker-3")).outcome == "completed"
        again = await by.finish(tries[2], "twice", "worker-3")
        assert (again.outcome, again.reason) == ("completed", "already_recorded")
        found = await by.names()
        assert (found.count("ActivityStarted"), found.count("ActivityCompleted")) == (3, 1)


@pytest.mark.contract("ACT-01", "ACT-15", "ACT-17", "ACT-18")
async def test_a_failed_attempt_is_tried_again_after_its_backoff_until_the_budget_is_spent() -> None:
    async with bridge() as by:
        await by.start()
        policy = RetryPolicy(max_attempts=2, backoff_seconds=[10])
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge", retry_policy=policy))
        first = await by.break_activity(await by.poll_activity(), Failure(message="one"))
        assert first.outcome == "retry_scheduled"
        assert await by.poll() is None, "the workflow stays parked"
        await by.world.advance(9)
        assert await by.poll_activity() is None
        await by.world.advance(2)
        last = await by.break_activity(await by.poll_activity(), Failure(message="two"))
        assert last.outcome == "failed"
        assert (await by.names())[-1] == "ActivityFailed"
        assert (await by.poll()).task.resume.workflow_event_type == "ActivityFailed"


@pytest.mark.contract("ACT-33")
async def test_every_claim_of_an_activity_writes_its_attempt() -> None:
    async with bridge() as by:
        await by.start()
        policy = RetryPolicy(max_attempts=2)
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge", retry_policy=policy))
        claimed = [await by.poll_activity()]
        await by.world.advance(301)  # that lease is lost
        (view,) = (await by.app.describe("o")).tasks
        claimed.append(await by.app.call(ask.ClaimActivityTask(task_id=view.task.id, worker_id=ME)))
        await by.break_activity(claimed[-1], Failure(message="no"))
        claimed.append(await by.poll_activity())
        await by.finish(claimed[-1])
        started = [entry.event for entry in await by.history() if entry.type == "ActivityStarted"]
    assert [event.attempt_number for event in started] == [1, 2, 3]
    assert [event.activity_attempt_id for event in started] == [task.activity_attempt_id for task in claimed]


@pytest.mark.contract("CODEC-06", "CODEC-07")
async def test_details_of_a_failure_are_kept_as_they_came() -> None:
    async with bridge() as by:
        await by.start()
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge"))
        details = b"\x00anything at all"
        failure = Failure(
            message="no",
            exception_type="shop.declined",
            code="E42",
            non_retryable=True,
            details=details,
            details_payload_codec="avro",
        )
        await by.break_activity(await by.poll_activity(), failure)
        event = (await by.history())[-1].event
        assert event.exception.details == details
        assert event.exception.details_payload_codec == "avro"
        assert (event.activity_type, event.failure_category, event.exception_type) == (
            "charge",
            "activity",
            "shop.declined",
        )
        assert (event.message, event.code, event.non_retryable) == ("no", "E42", True)


async def test_an_activity_of_a_closed_run_may_not_go_on() -> None:
    async with bridge() as by:
        await by.start(run_timeout_seconds=10)
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge"))
        work = await by.poll_activity()
        await by.world.advance(11)
        closed_at = (await by.history())[-1].at
        for reply in (await by.beat_activity(work), await by.status(work)):
            assert (reply.can_continue, reply.cancel_requested, reply.reason) == (False, True, "run_failed")
            assert (reply.run_closed_reason, reply.run_closed_at) == ("timed_out", closed_at)
        for call in (by.finish(work), by.break_activity(work, Failure(message="x"))):
            found = await refusal(call)
            assert (found.fields["can_continue"], found.fields["run_closed_reason"]) == (False, "timed_out")
            assert found.fields["run_closed_at"] == closed_at
        assert (await by.names())[-2:] == ["ActivityCancelled", "WorkflowTimedOut"]


@pytest.mark.contract("ACT-13")
async def test_the_bridge_and_the_worker_of_this_process_write_the_same_history() -> None:
    async with bridge() as by:
        await by.start(arguments=dumps([7]))
        await by.complete(await by.poll(), ScheduleActivity(activity_type="charge", arguments=dumps([7])))
        await by.finish(await by.poll_activity(), "paid 7")
        await by.complete(await by.poll(), CompleteWorkflow(result=dumps("paid 7")))
        theirs = await by.history()
    async with AsyncBackstay(":memory:", [order, charge]) as app:
        assert await app.execute(order, "o", 7) == "paid 7"
        ours = await app.history("o")
    assert names(ours) == names(theirs)
    for mine, other in zip(ours[3:5], theirs[3:5], strict=True):
        assert mine.event.attempt_number == other.event.attempt_number == 1  # type: ignore[attr-defined]
        assert mine.context.attempt == other.context.attempt == 1


async def test_an_attempt_id_that_is_none_is_refused() -> None:
    async with bridge() as by:
        for id in ("", "nonsense", "a-b-c", "01ARZ3NDEKTSV4RRFFQ69G5FAV-1-1"):
            call = ask.CompleteActivityTask(activity_attempt_id=id, lease_owner=ME)
            assert (await refusal(by.app.call(call))).reason in ("attempt_not_found", "task_not_found")


async def test_repeating_a_poll_whose_reply_was_lost_gives_the_same_task() -> None:
    async with bridge() as by:
        await by.start()
        first = await by.poll(poll_request_id="p-1")
        again = await by.poll(poll_request_id="p-1")
        assert again is not None
        assert (again.task.id, again.task.attempt) == (first.task.id, first.task.attempt)
        assert await by.poll(poll_request_id="p-2") is None


async def test_sleeping_code_executes_by_hand_too() -> None:
    @workflow(type="order")
    def naps() -> str:
        sleep(60)
        return "rested"

    async with bridge(naps) as by:
        await by.start()
        for _ in range(2):
            (view,) = (await by.app.describe("o")).tasks
            await by.app.call(ask.ExecuteWorkflowTask(task_id=view.task.id))
            await by.world.advance(61)
        assert await by.app.handle(naps, "o").result() == "rested"


async def test_a_task_with_a_local_activity_executes_by_hand_too() -> None:
    @activity(local=True)
    def measure() -> int:
        return 7

    @workflow(type="order")
    def measures() -> int:
        return measure()

    async with bridge(measures, measure) as by:
        await by.start()
        (view,) = (await by.app.describe("o")).tasks
        outcome = await by.app.call(ask.ExecuteWorkflowTask(task_id=view.task.id))
        assert (outcome.outcome, outcome.run_status) == ("completed", "completed")
        assert await by.app.handle(measures, "o").result() == 7
