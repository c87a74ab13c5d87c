"""Polling: leased, empty, throttled, draining; parked polls, repeated polls, polls whose caller is gone."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay.store import Applied
from backstay.store.errors import Unavailable
from backstay.store.sqlite import writer

from .kit import ME, Api, detail, parked, serving, settle, sql, until

POLL = {"worker_id": ME, "task_queue": "q"}


async def answered(api: Api, **more: Any) -> httpx.Response:
    return await api.worker("workflow-tasks/poll", {**POLL, **more})


@pytest.mark.contract("PROTO-10", "PROTO-11", "MATCH-13")
async def test_a_worker_registers_before_it_polls() -> None:
    async with serving() as api:
        early = await answered(api)
        assert (early.status_code, early.json()["reason"]) == (412, "worker_not_registered")
        made = await api.register(max_concurrent_activity_tasks=7)
        assert (made.status_code, made.json()["registered"]) == (201, True)
        assert (await answered(api)).status_code == 200
        wrong = await answered(api, task_queue="elsewhere")
        assert (wrong.status_code, wrong.json()["reason"], wrong.json()["task_queue"]) == (
            409,
            "task_queue_mismatch",
            "q",
        )
        build = await answered(api, build_id="b1")
        assert (build.status_code, build.json()["reason"]) == (409, "build_id_mismatch")
        listed = (await api.control("GET", "/workers")).json()["workers"]
        assert [(w["worker_id"], w["task_queue"], w["runtime"], w["status"]) for w in listed] == [
            (ME, "q", "python", "active")
        ]
        assert (listed[0]["supported_workflow_types"], listed[0]["max_concurrent_activity_tasks"]) == (["order"], 7)
        assert (listed[0]["namespace"], listed[0]["supported_activity_types"]) == ("default", ["charge"])
        assert (await api.control("POST", "/namespaces", {"name": "other"})).status_code == 201
        body = {"worker_id": "w-2", "task_queue": "q", "runtime": "python", "max_concurrent_workflow_tasks": 3}
        elsewhere = await api.worker("register", body, headers={"X-Namespace": "other"})
        assert elsewhere.status_code == 201
        (foreign,) = (await api.control("GET", "/workers", headers={"X-Namespace": "other"})).json()["workers"]
        assert (foreign["worker_id"], foreign["namespace"]) == ("w-2", "other")
        assert foreign["max_concurrent_workflow_tasks"] == 3
        assert [w["worker_id"] for w in (await api.control("GET", "/workers")).json()["workers"]] == [ME]
        await api.world.advance(181)
        stale = (await api.control("GET", "/workers?status=stale")).json()["workers"]
        assert [w["worker_id"] for w in stale] == [ME]


@pytest.mark.contract("STREAM-02", "STREAM-03", "STREAM-04", "POLL-08", "POLL-09", "LEASE-03", "CODEC-01")
async def test_one_poll_leases_one_task() -> None:
    async with serving() as api:
        await api.register()
        for number in range(3):
            await api.start(f"o-{number}", input=["book", number])
        answer = (await answered(api)).json()
        assert answer["poll_status"] == "leased"
        task, lease = answer["task"], answer["lease"]
        assert (task["task_type"], task["workflow_id"], task["lease_owner"]) == ("workflow", "o-0", ME)
        assert (lease["leased_at"], lease["lease_expires_at"]) == (task["leased_at"], task["lease_expires_at"])
        assert _seconds(lease["lease_expires_at"]) - _seconds(lease["leased_at"]) == 300
        assert (task["payload_codec"], task["arguments"]["codec"]) == ("avro", "avro")
        assert [event["event_type"] for event in task["history_events"]] == ["StartAccepted", "WorkflowStarted"]
        await api.complete(task, {"type": "schedule_activity", "activity_type": "charge", "arguments": [1]})
        work = await api.worker("activity-tasks/poll", POLL)
        assert work.json().keys() == answer.keys()
        assert work.json()["task"]["task_type"] == "activity"
        assert work.json()["task"]["payload_codec"] == "avro"
        assert {(await answered(api)).json()["task"]["workflow_id"] for _ in range(2)} == {"o-1", "o-2"}
        nothing = (await answered(api)).json()
        assert (nothing["task"], nothing["poll_status"]) == (None, "empty")


@pytest.mark.contract("POLL-01", "POLL-02", "POLL-06", "STREAM-05")
async def test_an_empty_poll_is_held_as_long_as_was_asked_and_no_longer() -> None:
    async with serving() as api:
        await api.register()
        assert (await answered(api)).json()["poll_status"] == "empty", "without a wish: at once"
        assert (await answered(api, timeout_seconds=0)).json()["poll_status"] == "empty"
        for wish, held in ((2, 2), (0.1, 1), (600, 60)):
            waiting = asyncio.create_task(answered(api, timeout_seconds=wish))
            await parked(api)
            await api.world.advance(held - 0.01)
            assert len(api.server.engine.matching.polls.all()) == 1
            await api.world.advance(0.02)
            answer = (await waiting).json()
            assert (answer["task"], answer["poll_status"], answer["retry_after_seconds"]) == (None, "empty", None)
            assert answer.keys() >= {"protocol_version", "server_capabilities"}


@pytest.mark.contract("POLL-05", "MATCH-03")
async def test_a_task_that_becomes_ready_goes_to_one_parked_poll_at_once() -> None:
    async with serving() as api:
        workers = [f"w-{number}" for number in range(20)]
        for worker in workers:
            await api.register(worker)
        polls = [asyncio.create_task(answered(api, worker_id=worker, timeout_seconds=30)) for worker in workers]
        await parked(api, 20)
        await api.start()
        await until(lambda: any(poll.done() for poll in polls))
        await api.world.advance(31)
        answers = [(await poll).json() for poll in polls]
        assert sorted(answer["poll_status"] for answer in answers) == ["empty"] * 19 + ["leased"]


async def test_a_repeated_poll_gets_the_same_task_again() -> None:
    async with serving() as api:
        await api.register()
        await api.start("o-1")
        await api.start("o-2")
        first = await api.poll(poll_request_id="p-1")
        again = await api.poll(poll_request_id="p-1")
        assert again["lease_expires_at"] > first["lease_expires_at"], "its worker has it, and nobody takes it for lost"
        assert {**again, "lease_expires_at": None} == {**first, "lease_expires_at": None}
        other = await api.poll(poll_request_id="p-2")
        assert other["workflow_id"] == "o-2"
        await api.complete(first, {"type": "complete_workflow"})
        assert await api.poll(poll_request_id="p-1") is None, "its task is done"


async def test_a_repeated_poll_gets_another_task_if_the_history_of_its_own_was_damaged() -> None:
    async with serving() as api:
        await api.register()
        await api.start("o-1")
        first = await api.poll(poll_request_id="p-1")
        assert first["workflow_id"] == "o-1"
        await api.start("o-2")
        assert sql(api, "update event set body = x'7b7d' where sequence = 1 and run = (select min(key) from run)")
        (key,) = [entry.instance.key for entry in api.server.engine.cache if entry.instance.workflow_id == "o-1"]
        assert api.server.engine.reload(key)
        again = await api.poll(poll_request_id="p-1")
        assert again["workflow_id"] == "o-2"


async def test_a_caller_that_hangs_up_leaves_its_task_to_others() -> None:
    async with serving() as api:
        await api.register()
        impatient = asyncio.create_task(answered(api, timeout_seconds=30))
        await parked(api)
        impatient.cancel()
        await parked(api, 0)
        await api.start()
        assert (await api.poll())["workflow_task_attempt"] == 1


async def test_a_server_that_drains_answers_parked_polls_at_once() -> None:
    async with serving() as api:
        await api.register()
        waiting = asyncio.create_task(answered(api, timeout_seconds=60))
        await parked(api)
        api.server.drain()
        assert (await waiting).json()["poll_status"] == "empty"
        await api.start()
        assert (await answered(api, timeout_seconds=60)).json()["poll_status"] == "empty"


async def test_more_polls_than_a_server_may_hold_are_told_to_come_back() -> None:
    async with serving(max_parked_polls=1) as api:
        await api.register()
        await api.register("w-2")
        first = asyncio.create_task(answered(api, timeout_seconds=30))
        await parked(api)
        full = await answered(api, worker_id="w-2", timeout_seconds=30)
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        body = full.json()
        assert (body["reason"], body["poll_status"]) == ("long_poll_capacity_exhausted",) * 2
        assert (body["task"], body["task_kind"], body["task_queue"]) == (None, "workflow_task", "q")
        await api.world.advance(31)
        await first


async def test_a_poll_that_is_repeated_while_it_waits_is_answered_last() -> None:
    """Its first answer may go to a connection that is gone: whoever asks again under its id takes its place."""
    async with serving() as api:
        await api.register()
        first = asyncio.ensure_future(answered(api, poll_request_id="p-1", timeout_seconds=30))
        await parked(api)
        second = asyncio.ensure_future(answered(api, poll_request_id="p-1", timeout_seconds=30))
        assert (await first).json()["poll_status"] == "empty"
        await parked(api)
        await api.start("o-1")
        assert (await second).json()["task"]["workflow_id"] == "o-1"


async def test_a_poll_that_is_repeated_while_its_lease_is_written_gets_that_lease() -> None:
    async with serving() as api:
        await api.register()
        await api.start("o-1")
        store = api.server.engine.store
        written: list[Any] = []
        apply = store.apply
        store.apply = lambda decisions, done: written.append((decisions, done))  # the disk is slow
        first = asyncio.ensure_future(answered(api, poll_request_id="p-1", timeout_seconds=30))
        await until(lambda: bool(written))
        second = asyncio.ensure_future(answered(api, poll_request_id="p-1", timeout_seconds=30))
        assert (await first).json()["task"] is None
        store.apply = apply
        for decisions, done in written:
            apply(decisions, done)
        task = (await second).json()["task"]
        assert (task["workflow_id"], task["workflow_task_attempt"]) == ("o-1", 1)
        await api.complete(task, {"type": "complete_workflow"})


@pytest.mark.parametrize("repeated", [False, True])
async def test_a_poll_whose_lease_was_written_when_the_database_failed_gets_no_second_task(repeated: bool) -> None:
    async with serving(still=False) as api:
        await api.register()
        await api.start("o-1")
        await api.start("o-2")
        store = api.server.engine.store
        apply = store.apply

        def fail(decisions: Any, done: Any) -> None:
            store.apply = apply
            apply(decisions, lambda _: done(Applied(down=Unavailable("nobody knows whether it is on disk"))))

        store.apply = fail
        poll = asyncio.ensure_future(answered(api, poll_request_id="p-1", timeout_seconds=30))
        await until(lambda: api.server.engine.down is not None)
        if repeated:  # its worker has lost patience
            poll.cancel()
            await until(lambda: not api.server.engine.matching.polls.all())
            poll = asyncio.ensure_future(answered(api, poll_request_id="p-1", timeout_seconds=30))
        task = (await poll).json()["task"]
        leased = await store.leased_by("default", ME, "p-1")
        assert [one.id for one in leased] == [task["task_id"]]


@pytest.mark.contract("POLL-11")
async def test_a_queue_that_cannot_be_coordinated_is_unavailable() -> None:
    async with serving() as api:
        await api.register()
        api.server.engine.down = Unavailable("the disk is gone")
        answer = await answered(api)
        assert (answer.status_code, answer.json()["poll_status"], answer.json()["task"]) == (200, "unavailable", None)
        api.server.engine.down = None


@pytest.mark.contract("POLL-04")
async def test_a_wait_that_is_too_short_or_too_long_is_clamped_and_answered() -> None:
    async with serving() as api:
        await api.register()
        for probe in (0, None):
            said = (await answered(api, timeout_seconds=probe)).json()  # answered although the clock stands still
            assert (said["poll_status"], said["task"]) == ("empty", None)
        for asked, given in ((600, 60), (0.2, 1)):
            waiting = asyncio.create_task(answered(api, timeout_seconds=asked))
            await parked(api)
            await api.world.advance(given - 0.5)
            assert not waiting.done(), "not before"
            await api.world.advance(1)
            assert (await waiting).json()["poll_status"] == "empty", "and not later"


@pytest.mark.contract("POLL-11")
@pytest.mark.parametrize("kind", ["workflow", "activity", "query", "update-validation"])
async def test_while_the_database_is_held_by_another_program_polls_are_unavailable(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENT", 300)
    file = tmp_path / "app.db"
    async with serving(store=f"sqlite:{file}", still=False) as api:
        await api.register()
        await api.start()
        await api.complete(await api.poll(), {"type": "schedule_activity", "activity_type": "charge"})
        await api.start("o-2")
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("begin immediate")
            writing = asyncio.create_task(api.control("POST", "/workflows", {"workflow_type": "order"}))
            await until(lambda: api.server.engine.down is not None)
            body = {"worker_id": ME, "task_queue": "q"}
            for wait in ({}, {"timeout_seconds": 1}):
                answer = await api.worker(f"{kind}-tasks/poll", body | wait)
                said = answer.json()
                assert (answer.status_code, said["poll_status"], said["task"]) == (200, "unavailable", None)
                assert {"protocol_version", "server_capabilities"} <= said.keys(), "the same envelope as always"
            other.execute("rollback")
        await writing
        await until(lambda: api.server.engine.down is None)
        if kind in ("workflow", "activity"):
            assert await api.poll(kind, timeout_seconds=10) is not None
        else:
            answer = await api.worker(f"{kind}-tasks/poll", body)
            assert (answer.json()["poll_status"], answer.json()["task"]) == ("empty", None)


async def test_a_server_that_is_not_the_engine_sends_workers_elsewhere_at_once() -> None:
    async with serving() as api:
        await api.register()
        waiting = asyncio.ensure_future(answered(api, poll_request_id="p-1", timeout_seconds=30))
        await until(lambda: api.server.engine.matching.polls.by_queue)
        api.server.engine.owned[:] = bytes(256)
        for lost in api.server.node.lifecycle.on_lost:
            lost()
        for answer in (await waiting, await answered(api, poll_request_id="p-1", timeout_seconds=30)):
            said = answer.json()
            assert (answer.status_code, said["reason"], said["poll_status"]) == (503, *2 * ("backend_unavailable",))
            assert (said["operation"], said["worker_id"]) == ("poll_workflow_task", ME)
            assert said["poll_request_id"] == "p-1"
            assert said["retry_same_poll_request_id"]
            assert answer.headers["connection"] == "close"


CLAIMS = {
    "workflow": {"build": "compatibility_blocked", "connection": "backend_unavailable"},
    "activity": {"build": "compatibility_unsupported", "connection": "backend_unsupported"},
}


@pytest.mark.contract("STREAM-11", "MATCH-06", "FLEET-05")
@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_a_worker_whose_queue_build_type_or_connection_is_another_takes_no_lease(kind: str) -> None:
    """None of them counts an attempt, or stands as the owner."""
    async with serving() as api:
        await api.register(build_id="b1", connection="redis")
        await api.start(build_id="b1", connection="redis")
        if kind == "activity":
            command = {"type": "schedule_activity", "activity_type": "charge"}
            await api.complete(await api.poll(), command)
        for name, queue, other in (
            ("queue", "far", {}),
            ("build", "q", {"build_id": "b2"}),
            ("connection", "q", {"connection": "sqs"}),
            ("type", "q", {"supported_workflow_types": ["refund"], "supported_activity_types": ["ship"]}),
        ):
            fits: dict[str, Any] = {"build_id": "b1", "connection": "redis"}
            await api.register(name, queue, **(fits | other))
            assert await api.poll(kind, name, queue) is None, name
            (task,) = [task for task in (await detail(api))["tasks"] if task["type"] == kind]
            assert (task["status"], task["lease_owner"]) == ("ready", None), name
            if name in ("build", "connection"):
                refused = await api.worker(f"{kind}-tasks/{task['id']}/claim", {"worker_id": name})
                assert (refused.status_code, refused.json()["reason"]) == (409, CLAIMS[kind][name])
        task = await api.poll(kind)
        assert task["workflow_task_attempt" if kind == "workflow" else "attempt_number"] == 1


@pytest.mark.contract("POLL-12", "STREAM-06", "STREAM-11", "FLEET-07")
async def test_a_draining_build_gets_no_new_work_until_it_is_resumed() -> None:
    async with serving() as api:
        await api.register("old", build_id="b1")
        await api.register("new", build_id="b2")
        await api.start(build_id="b1")
        drained = await api.control("POST", "/task-queues/q/build-ids/drain", {"build_id": "b1"})
        assert drained.json()["drain_intent"] == "draining"
        for kind in ("workflow", "activity"):
            refused = await api.worker(f"{kind}-tasks/poll", {"worker_id": "old", "task_queue": "q"})
            assert (refused.status_code, refused.json()["reason"]) == (409, "worker_draining")
            assert (refused.json()["poll_status"], refused.json()["task"]) == ("draining", None)
        assert await api.poll("query", worker_id="old") is None, "asked it may be, still"
        assert await api.poll(worker_id="new") is None, "another build is not a substitute"
        assert (await api.register("late", build_id="b1")).json()["status"] == "draining"
        await api.control("POST", "/task-queues/q/build-ids/resume", {"build_id": "b1"})
        task = await api.poll(worker_id="old")
        assert (task["compatibility"], task["workflow_task_attempt"]) == ("b1", 1)


async def test_a_promoted_build_gets_the_new_runs_and_the_old_ones_stay() -> None:
    async with serving() as api:
        await api.register("old", build_id="b1")
        await api.register("new", build_id="b2")
        await api.control("POST", "/task-queues/q/build-ids/promote", {"build_id": "b1"})
        await api.start("first")
        await api.control("POST", "/task-queues/q/build-ids/promote", {"build_id": "b2"})
        await api.start("second")
        assert (await api.poll(worker_id="new"))["workflow_id"] == "second"
        assert (await api.poll(worker_id="old"))["workflow_id"] == "first"
        cohorts = (await api.control("GET", "/task-queues/q/build-ids")).json()["build_ids"]
        assert {c["build_id"]: c["new_start_selected"] for c in cohorts} == {"b1": False, "b2": True}


@pytest.mark.contract("POLL-10", "MATCH-11", "MATCH-12")
async def test_a_queue_at_its_limit_of_leases_throttles() -> None:
    async with serving(workflow_task_max_active_leases_per_queue=1) as api:
        await api.register()
        await api.register("elsewhere", queue="other")
        for number in range(2):
            await api.start(f"o-{number}")
        await api.start("free", task_queue="other")
        first = await api.poll()
        throttled = await answered(api)
        assert (throttled.status_code, throttled.json()["task"]) == (200, None)
        assert (throttled.json()["poll_status"], throttled.json()["reason"]) == (
            "throttled",
            "max_active_leases_per_queue",
        )
        assert (await api.poll(worker_id="elsewhere", queue="other"))["workflow_id"] == "free"
        seen = (await api.control("GET", "/task-queues/q")).json()
        assert seen["admission"]["workflow_tasks"]["status"] == "throttled"
        assert (seen["stats"]["workflow_tasks"]["ready_count"], seen["stats"]["workflow_tasks"]["leased_count"]) == (
            1,
            1,
        )
        waiting = asyncio.create_task(answered(api, timeout_seconds=30))
        await parked(api)
        await api.complete(first, {"type": "complete_workflow"})
        assert (await waiting).json()["task"]["workflow_id"] == "o-1", "a freed slot serves who waits"


async def test_dispatches_per_minute_are_budgeted() -> None:
    async with serving(workflow_task_max_dispatches_per_minute=2) as api:
        await api.register()
        for number in range(3):
            await api.start(f"o-{number}")
        assert [(await answered(api)).json()["poll_status"] for _ in range(3)] == ["leased", "leased", "throttled"]
        await api.world.advance(61)
        assert (await answered(api)).json()["poll_status"] == "leased"


@pytest.mark.contract("MATCH-06", "MATCH-07", "LEASE-02")
async def test_ready_means_everything_fits() -> None:
    async with serving() as api:
        await api.register(supported_workflow_types=["other"], supported_activity_types=["ship"])
        await api.register("able")
        await api.register("far", queue="far")
        await api.start()
        assert await api.poll() is None, "another workflow type"
        assert await api.poll(worker_id="far", queue="far") is None, "another queue"
        assert await api.poll("activity", worker_id="able") is None, "another kind"
        await api.complete(
            await api.poll(worker_id="able"),
            {"type": "schedule_activity", "activity_type": "charge"},
            {"type": "start_timer", "delay_seconds": 10},
        )
        assert await api.poll("activity") is None, "another activity type"
        assert (await api.poll("activity", worker_id="able"))["activity_type"] == "charge"
        assert await api.poll(worker_id="able") is None, "not due yet"
        await api.world.advance(11)
        assert (await api.poll(worker_id="able"))["workflow_wait_kind"] == "timer"


@pytest.mark.contract("MATCH-04", "LEASE-14")
async def test_a_worker_that_deregisters_gives_its_tasks_back() -> None:
    async with serving() as api:
        await api.register()
        await api.register("next")
        await api.start()
        task = await api.poll()
        gone = await api.worker(f"registrations/{ME}", method="DELETE")
        assert (gone.status_code, gone.json()["outcome"]) == (200, "deregistered")
        assert gone.json()["recovered_workflow_task_count"] == 1
        await settle()
        again = await api.poll(worker_id="next")
        assert (again["task_id"], again["workflow_task_attempt"]) == (task["task_id"], 2)
        twice = await api.worker(f"registrations/{ME}", method="DELETE")
        assert (twice.status_code, twice.json()["reason"]) == (404, "worker_not_found")


@pytest.mark.contract("LEASE-14")
async def test_a_registration_goes_after_the_leases_it_stood_for(tmp_path: Path) -> None:
    """A server that dies in between leaves leases of a worker that the next one knows, and expects in vain."""
    file = tmp_path / "app.db"
    async with serving(store=f"sqlite:{file}") as api:
        await api.register()
        await api.start()
        await api.poll()
        with closing(sqlite3.connect(file)) as database:
            database.execute(
                "create trigger order_of_leaving before delete on registry when exists"
                " (select 1 from task where state = 'leased') begin select raise(abort, 'leases are left'); end"
            )
        gone = await api.worker(f"registrations/{ME}", method="DELETE")
        assert (gone.status_code, gone.json()["recovered_workflow_task_count"]) == (200, 1)


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


@pytest.mark.contract("POLL-11")
@pytest.mark.parametrize("ready_first", [True, False])
async def test_a_poll_does_not_outlive_its_time_when_its_lease_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready_first: bool
) -> None:
    """Another program holds the database for longer than the engine waits for it, in the moment a task is leased."""
    monkeypatch.setattr(writer, "PATIENT", 1500)
    file = tmp_path / "app.db"
    async with serving(store=f"sqlite:{file}", still=False) as api:
        await api.register()
        if ready_first:
            await api.start()
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("begin immediate")
            polling = asyncio.create_task(answered(api, timeout_seconds=1))
            if not ready_first:
                await parked(api)
                await api.control("POST", "/workflows", {"workflow_type": "order", "task_queue": "q"})
            await until(lambda: api.server.engine.down is not None)
            assert (await asyncio.wait_for(polling, 10)).json()["poll_status"] in ("empty", "unavailable")
            other.execute("rollback")


async def test_a_poll_that_still_waits_gets_the_task_once_the_database_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENT", 100)
    file = tmp_path / "app.db"
    async with serving(store=f"sqlite:{file}", still=False) as api:
        await api.register()
        await api.start()
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("begin immediate")
            polling = asyncio.create_task(answered(api, timeout_seconds=60))
            await until(lambda: api.server.engine.down is not None)
            assert not polling.done()
            other.execute("rollback")
        answer = (await asyncio.wait_for(polling, 20)).json()
        assert (answer["poll_status"], answer["task"]["workflow_id"]) == ("leased", "o-1")


@pytest.mark.contract("MATCH-04", "TOPO-01")
@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_a_lease_has_one_owner_until_it_is_renewed_completed_released_or_over(kind: str) -> None:
    """As two workers see it: what one has, the other does not get, and it gets the next attempt when the lease is over."""
    async with serving() as api:
        await api.register()
        await api.register("worker-2")
        await api.start()
        if kind == "activity":
            retried = {"retry_policy": {"max_attempts": 5, "backoff_seconds": [0]}}
            charge = {"type": "schedule_activity", "activity_type": "charge", **retried}
            await api.complete(await api.poll(), charge)
        first = await api.poll(kind)
        assert first["lease_owner"] == ME
        expires = first["lease_expires_at"]

        async def others() -> Any:
            return await api.poll(kind, worker_id="worker-2")

        assert await others() is None, "leased"
        await api.world.advance(200)
        renewed = await _renew(api, kind, first)
        assert renewed["lease_expires_at"] > expires
        await api.world.advance(200)
        assert await others() is None, "renewed: the first lease would be over"
        await api.world.advance(101)
        second = await others()
        assert second is not None, "over"
        assert second["lease_owner"] == "worker-2"
        if kind == "workflow":
            assert (second["task_id"], second["workflow_task_attempt"]) == (first["task_id"], 2)
            late = await api.complete(first, {"type": "complete_workflow"})
            assert (late.status_code, late.json()["reason"]) == (409, "lease_owner_mismatch")
        else:
            assert second["activity_execution_id"] == first["activity_execution_id"]
            assert second["attempt_number"] == 2
            late = await api.activity("complete", first, result=1)
            assert (late.status_code, late.json()["outcome"]) == (409, "ignored")
        await api.worker("registrations/worker-2", method="DELETE")
        await settle()
        await api.world.advance(30)  # an activity that has lost two workers pauses for some seconds
        third = await api.poll(kind)
        assert third is not None, "released"
        if kind == "workflow":
            assert (await api.complete(third, {"type": "complete_workflow"})).status_code == 200
        else:
            assert (await api.activity("complete", third, result=1)).status_code == 200
        await api.register("worker-2")
        assert await others() is None, "completed"


async def _renew(api: Api, kind: str, task: dict[str, Any]) -> dict[str, Any]:
    if kind == "activity":
        return (await api.activity("heartbeat", task)).json()
    lease = {"lease_owner": task["lease_owner"], "workflow_task_attempt": task["workflow_task_attempt"]}
    return (await api.worker(f"workflow-tasks/{task['task_id']}/heartbeat", lease)).json()


@pytest.mark.contract("TOPO-01", "MATCH-04")
async def test_of_many_workers_that_poll_at_once_each_task_has_one_and_no_daemon_is_needed() -> None:
    async with serving() as api:
        workers = [f"worker-{number}" for number in range(8)]
        for worker in workers:
            await api.register(worker)
        for number in range(20):
            await api.start(f"o-{number}")
        polls = [api.poll(worker_id=worker) for worker in workers * 4]
        tasks = [task for task in await asyncio.gather(*polls) if task is not None]
        assert sorted(task["workflow_id"] for task in tasks) == sorted(f"o-{number}" for number in range(20))
        assert len({task["task_id"] for task in tasks}) == 20
        assert {task["workflow_task_attempt"] for task in tasks} == {1}
        done = await asyncio.gather(*(api.complete(task, {"type": "complete_workflow"}) for task in tasks))
        assert {answer.status_code for answer in done} == {200}
