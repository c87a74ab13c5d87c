"""The detail of any run: the same fields for all of them, actions that keep their word, and what a wait, a task, a command and a
failure say of themselves."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from backstay.codec import avro
from backstay.codec.values import dumps
from backstay.kernel.task import Block
from backstay.protocol import requests as ask

from .kit import ME, Api, blob, detail, serving, sql, tampered, value

CONTRACT: dict[str, Any] = {
    "signals": ["go"],
    "signal_contracts": [{"name": "go", "parameters": [], "mode": "handler"}],
    "updates": ["add"],
    "update_contracts": [{"name": "add", "parameters": []}],
    "queries": ["state"],
    "query_contracts": [
        {"name": "state", "parameters": [{"name": "deep", "position": 0, "required": True, "type": "boolean"}]}
    ],
}
RETRIED = {"max_attempts": 3, "backoff_seconds": [3600]}
FLAT = (
    *(
        "can_query",
        "query_blocked_reason",
        "can_signal",
        "signal_blocked_reason",
        "can_update",
        "update_blocked_reason",
    ),
    *("can_repair", "repair_blocked_reason", "can_archive", "archive_blocked_reason", "can_cancel"),
    *("cancel_blocked_reason", "can_terminate", "terminate_blocked_reason", "can_pause", "pause_blocked_reason"),
    *("can_unpause", "unpause_blocked_reason", "repair_blocked", "repair_attention", "can_issue_terminal_commands"),
    *("next_task_id", "next_task_type", "next_task_status", "sort_timestamp", "sort_key", "history_event_count"),
    *("history_size_bytes", "continue_as_new_recommended", "task_problem", "declared_entry_mode", "archived", "queue"),
    *(
        "instance_id",
        "liveness_state",
        "wait_kind",
        "wait_reason",
        "wait_started_at",
        "wait_deadline_at",
        "open_wait_id",
    ),
    *("resume_source_kind", "resume_source_id", "exception_count", "compatibility_namespace", "compatibility_fleet"),
    *("compatibility_fleet_reason", "declared_contract_source", "declared_query_targets", "declared_signal_targets"),
    *("declared_update_targets", "state", "attention", "actions", "replay_block", "collections", "history_damage"),
)


async def of_run(api: Api, run_id: str, workflow_id: str = "o-1") -> dict[str, Any]:
    answer = await api.control("GET", f"/workflows/{workflow_id}/runs/{run_id}/detail")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def export(api: Api, run_id: str, workflow_id: str = "o-1") -> dict[str, Any]:
    return (await api.control("GET", f"/workflows/{workflow_id}/runs/{run_id}/history/export")).json()


async def doing(api: Api, *commands: dict[str, Any], **start: Any) -> dict[str, Any]:
    """A workflow `o-1` whose first task has asked for this."""
    await api.register(workflow_command_contracts={"order": CONTRACT})
    started = await api.start(**start)
    assert (await api.complete(await api.poll(), *commands)).status_code == 200
    return started


CHARGE = {"type": "schedule_activity", "activity_type": "charge"}
WAIT = {"type": "open_condition_wait", "condition_key": "paid"}


@pytest.mark.contract("ACTION-01", "ACTION-02", "ACTION-05", "LIVE-01", "LIVE-02", "LIVE-04")
async def test_the_detail_of_any_run_has_the_same_fields() -> None:
    async with serving() as api:
        earlier = (await doing(api, CHARGE))["run_id"]
        await api.activity("complete", await api.poll("activity"), result=blob(1))
        await api.complete(await api.poll(), {"type": "continue_as_new"})
        open_run = await detail(api)
        old = await of_run(api, earlier)
        described = await api.describe()
        await api.complete(await api.poll(), {"type": "complete_workflow", "result": blob("done")})
        closed = await detail(api)
        assert (await api.control("POST", f"/workflows/o-1/runs/{earlier}/archive", {})).status_code == 200
        archived = await of_run(api, earlier)
        damage = "update event set body = cast(replace(cast(body as text), '\"', 'x') as blob) where sequence = 2"
        assert sql(api, damage)
        damaged, damaged_old = await detail(api), await of_run(api, earlier)
        documents = [open_run, old, closed, archived, damaged, damaged_old]
        assert all(document.keys() == open_run.keys() for document in documents)
        assert set(FLAT) <= open_run.keys()
        assert described.keys() - {"control_plane"} <= open_run.keys()
        assert (
            set(FLAT)
            - {"declared_query_targets", "declared_signal_targets", "declared_update_targets"}
            - {
                *("replay_block", "collections", "history_damage"),
            }
            <= described.keys()
        )
        for document in documents:
            for name, said in document["actions"].items():
                assert document[name] == said, name
            assert document["instance_id"] == "o-1"
            assert document["sort_key"] == f"{document['sort_timestamp']}#{document['run_id']}"
            assert document["history_event_count"] == document["history_length"]
            assert document["repair_blocked"] is None or (
                document["repair_blocked"]["code"] == document["repair_blocked_reason"]
                and document["repair_blocked"].keys() == {"code", "label", "description", "tone", "badge_visible"}
            )
            assert document["can_issue_terminal_commands"] == (document["can_cancel"] and document["can_terminate"])
        assert [document["is_current_run"] for document in documents] == [True, False, True, False, True, False]
        assert [document["archived"] for document in documents] == [False, False, False, True, False, True]
        assert [document["liveness_state"] for document in documents] == [
            *("workflow_task_ready", "closed", "closed", "closed"),
            *("workflow_replay_blocked", "workflow_replay_blocked"),
        ]
        assert (open_run["next_task_type"], open_run["next_task_status"]) == ("workflow", "ready")
        assert open_run["next_task_id"] == open_run["tasks"][0]["id"]
        assert (damaged["repair_blocked_reason"], damaged["repair_attention"]) == ("unsupported_history", True)
        assert damaged["history_damage"]["sequence"] == 2
        assert value(closed["output_envelope"]) == closed["output"] == "done"


@pytest.mark.contract("LIVE-04")
async def test_the_size_of_a_history_is_what_the_list_and_the_database_say() -> None:
    async with serving() as api:
        await doing(api, CHARGE, CHARGE)
        found = await detail(api)
        rows = (await api.control("GET", "/flows/running")).json()["flows"]
        assert [(row["history_event_count"], row["history_size_bytes"]) for row in rows] == [
            (found["history_event_count"], found["history_size_bytes"])
        ]


VERBS = ("query", "signal", "update", "repair", "archive", "cancel", "terminate", "pause", "unpause")
PATHS = {"query": "query/state", "signal": "signal/go", "update": "update/add"}
STATES = ("open", "closed", "earlier", "archived", "paused", "blocked", "lost", "undeclared")


async def brought_to(api: Api, state: str) -> str:
    """A run of `o-1` in this state, which it returns."""
    contract = {name: [] for name in CONTRACT} if state == "undeclared" else CONTRACT
    await api.register(workflow_command_contracts={"order": contract})
    run: str = (await api.start())["run_id"]
    match state:
        case "closed":
            await api.complete(await api.poll(), {"type": "complete_workflow"})
        case "earlier" | "archived":
            await api.complete(await api.poll(), {"type": "continue_as_new"})
            if state == "archived":
                await api.control("POST", f"/workflows/o-1/runs/{run}/archive", {})
        case "blocked":
            await api.fail(await api.poll(), message="it differs", type="HistoryShapeMismatch")
        case _:
            await api.complete(await api.poll(), CHARGE if state == "lost" else WAIT)
            if state == "paused":
                await api.control("POST", "/workflows/o-1/pause", {})
            if state == "lost":
                await tampered(api)
                api.server.engine.matching.lanes.forget(lambda key: True)
    return run


async def would(api: Api, run: str, verb: str) -> bool:
    """Whether the command does what it is for."""
    place = f"/workflows/o-1/runs/{run}/{PATHS.get(verb, verb)}"
    if verb == "query":

        async def answered() -> None:
            task = await api.poll("query", timeout_seconds=5)
            await api.worker(
                f"query-tasks/{task['query_task_id']}/complete",
                {"lease_owner": ME, "query_task_attempt": task["query_task_attempt"], "result": blob(1)},
            )

        answering = asyncio.create_task(answered())
        answer = await api.control("POST", place, {"input": [True]})
        if answer.status_code != 200:
            answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        return answer.status_code == 200
    answer = await api.control("POST", place, {})
    said = answer.json()
    return answer.status_code < 300 and not str(said.get("outcome", "")).endswith("_not_needed")


@pytest.mark.contract("ACTION-01")
@pytest.mark.parametrize("state", STATES)
async def test_every_action_does_what_the_detail_says_of_it(state: str) -> None:
    async with serving() as api:
        run = await brought_to(api, state)
        told = await of_run(api, run)
    for verb in VERBS:
        assert told[f"can_{verb}"] == (told[f"{verb}_blocked_reason"] is None), verb
        async with serving() as api:
            run = await brought_to(api, state)
            assert await would(api, run, verb) == told[f"can_{verb}"], (verb, told[f"{verb}_blocked_reason"])


@pytest.mark.contract("QRY-15", "DECL-04")
async def test_an_earlier_run_is_queried_by_the_contract_that_its_detail_shows() -> None:
    async with serving() as api:
        first = (await doing(api, {"type": "continue_as_new"}))["run_id"]
        for found in (await of_run(api, first), await detail(api), (await export(api, first))["selected_run"]):
            assert found["declared_contract_source"] == "durable_history"
            assert [target["name"] for target in found["declared_signal_targets"]] == ["go"]
            assert [target["name"] for target in found["declared_update_targets"]] == ["add"]
            (target,) = found["declared_query_targets"]
            assert (target["name"], [one["name"] for one in target["parameters"]]) == ("state", ["deep"])
            assert found["can_query"] is True
        refused = await api.control("POST", f"/workflows/o-1/runs/{first}/query/state", {"input": []})
        assert refused.status_code == 422
        assert "deep" in refused.text


@pytest.mark.contract("SIG-03")
async def test_a_command_names_the_signal_or_update_that_it_made_and_no_key_of_the_database() -> None:
    async with serving() as api:
        run = (await doing(api, {"type": "open_signal_wait", "signal_name": "go"}))["run_id"]
        sent = (await api.control("POST", "/workflows/o-1/signal/go", {"input": []})).json()
        refused = (await api.control("POST", "/workflows/o-1/signal/nope", {"input": []})).json()
        before = (await detail(api))["commands"]
        assert [command["signal_status"] for command in before] == [None, "received", "rejected"]
        await api.complete(await api.poll(), WAIT)
        updated = (await api.control("POST", "/workflows/o-1/update/add", {})).json()
        found = await detail(api)
        start, signal, nope, update = found["commands"]
        (received, rejected) = found["signals"]
        for command, record in ((signal, received), (nope, rejected)):
            assert command["signal_id"] == record["signal_id"]
            assert command["signal_status"] == record["status"]
            assert command["signal_wait_id"] == record["signal_wait_id"]
            assert command["command_sequence"] == record["command_sequence"] == command["sequence"]
        assert (signal["signal_id"], signal["signal_status"]) == (sent["signal_id"], "applied")
        assert signal["signal_wait_id"] is not None
        assert (nope["signal_status"], nope["id"]) == ("rejected", refused["command_id"])
        assert (update["update_id"], update["update_status"]) == (updated["update_id"], "accepted")
        assert (start["signal_id"], start["update_id"]) == (None, None)
        for command in (*found["commands"], *(await export(api, run))["commands"]):
            assert not {"run", "behind", "history_length"} & command.keys()
        assert (await export(api, run))["commands"] == found["commands"]


@pytest.mark.contract("BARRIER-09", "BARRIER-12")
async def test_waits_of_a_barrier_have_its_fields_flat_and_are_counted() -> None:
    group = {"parallel_group_kind": "activity", "parallel_group_id": "g", "parallel_group_base_sequence": 1}
    group |= {"parallel_group_size": 2}
    path = [group | {"parallel_group_index": index} for index in range(2)]
    async with serving() as api:
        await doing(api, *(CHARGE | {"parallel_group_path": [entry]} for entry in path), WAIT)
        found = await detail(api)
        barrier = [wait for wait in found["waits"] if wait["kind"] == "activity"]
        for wait, entry in zip(barrier, path, strict=True):
            assert {name: wait[name] for name in entry} == entry
            assert [{name: place[name] for name in entry} for place in wait["parallel_group_path"]] == [entry]
        (alone,) = [wait for wait in found["waits"] if wait["kind"] == "condition"]
        assert (alone["parallel_group_id"], alone["parallel_group_path"]) == (None, [])
        assert alone.keys() == barrier[0].keys()
        assert found["open_wait_count"] == 3
        await api.activity("complete", await api.poll("activity"), result=blob(1))
        assert (await detail(api))["open_wait_count"] == 2


def backing(found: dict[str, Any], kind: str = "activity") -> tuple[Any, ...]:
    (wait,) = [wait for wait in found["waits"] if wait["kind"] == kind]
    return wait["task_backed"], wait["task_type"], wait["task_status"]


def recorded(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a list without what a command may do to it now, which an export does not have."""
    return {name: value for name, value in entry.items() if name not in ("can_skip", "skip_blocked_reason")}


@pytest.mark.contract("PROJ-01")
async def test_a_wait_tells_an_open_task_from_one_that_has_been() -> None:
    async with serving() as api:
        run = (await doing(api, CHARGE | {"retry_policy": RETRIED}))["run_id"]
        ready = await detail(api)
        assert backing(ready) == (True, "activity", "ready")
        assert ready["waits"][0]["task_id"] == ready["tasks"][0]["id"]
        first = await api.poll("activity")
        assert backing(await detail(api)) == (True, "activity", "leased")
        await api.activity("fail", first, failure={"message": "declined"})
        retried = await detail(api)
        assert backing(retried) == (True, "activity", "ready")
        assert retried["waits"][0]["task_id"] != first["task_id"]
        await tampered(api)
        api.server.engine.matching.lanes.forget(lambda key: True)
        assert backing(await detail(api)) == (False, "activity", "missing")
        await api.control("POST", "/workflows/o-1/repair", {})
        assert backing(await detail(api)) == (True, "activity", "ready")
        await api.world.advance(3601)
        second = await api.poll("activity")
        await api.activity("complete", second, result=blob(1))
        done = await detail(api)
        assert backing(done) == (False, "activity", "completed")
        assert done["waits"][0]["task_id"] == second["task_id"]
        await api.complete(await api.poll(), {"type": "start_timer", "delay_seconds": 60})
        assert backing(await detail(api), "timer") == (True, "timer", "ready")
        assert sql(api, "update workflow set next_wake = null") == 1
        assert backing(await detail(api), "timer") == (False, "timer", "missing")
        await api.control("POST", "/workflows/o-1/repair", {})
        await api.control("POST", "/workflows/o-1/terminate", {})
        over = await of_run(api, run)
        assert backing(over, "timer") == (False, "timer", "cancelled")
        assert backing(over) == (False, "activity", "completed")
        assert (await export(api, run))["waits"] == [recorded(wait) for wait in over["waits"]]


@pytest.mark.contract("PROJ-01", "EXPORT-04")
async def test_the_tasks_of_a_closed_run_are_told_from_history() -> None:
    async with serving() as api:
        run = (await doing(api, CHARGE, CHARGE, CHARGE))["run_id"]
        done = await api.poll("activity")
        await api.activity("complete", done, result=blob(1))
        held = await api.poll("activity")
        await api.control("POST", "/workflows/o-1/cancel", {"reason": "enough"})
        found = await detail(api)
        told = {task["id"]: (task["type"], task["status"], task["lease_owner"]) for task in found["tasks"]}
        assert told[done["task_id"]] == ("activity", "completed", ME)
        assert told[held["task_id"]] == ("activity", "cancelled", ME)
        assert sorted((kind, status) for kind, status, _ in told.values()) == [
            ("activity", "cancelled"),
            ("activity", "cancelled"),
            ("activity", "completed"),
            ("workflow", "completed"),
        ]
        assert all(task["closed_at"] for task in found["tasks"])
        exported = (await export(api, run))["tasks"]
        assert exported == [task | {"task_type": task["type"]} for task in found["tasks"]]
        await api.start("never")
        await api.control("POST", "/workflows/never/terminate", {})
        assert [(task["type"], task["status"]) for task in (await detail(api, "never"))["tasks"]] == [
            ("workflow", "cancelled")
        ]


@pytest.mark.contract("UPD-12", "UPD-13")
async def test_an_accepted_update_is_the_wait_whatever_else_is_open_and_stays_it_when_its_task_is_lost() -> None:
    async with serving() as api:
        await doing(
            api,
            CHARGE,
            {"type": "start_timer", "delay_seconds": 60},
            {"type": "open_signal_wait", "signal_name": "go"},
            WAIT,
        )
        id = (await api.control("POST", "/workflows/o-1/update/add", {})).json()["update_id"]
        resume = ("update", f"update:{id}", "workflow_update", id)

        async def waits_for() -> tuple[Any, ...]:
            found = await detail(api)
            (row,) = (await api.control("GET", "/flows/running")).json()["flows"]
            names = ("wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id")
            assert [row[name] for name in names] == [found[name] for name in names]
            return tuple(found[name] for name in names)

        assert await waits_for() == resume
        assert backing(await detail(api), "update")[:2] == (True, "workflow")
        assert sql(api, 'delete from task where cast(body as text) like \'%"kind":"workflow"%\'') == 1
        api.server.engine.matching.lanes.forget(lambda key: True)
        assert await waits_for() == resume
        lost = await detail(api)
        assert (lost["liveness_state"], lost["can_repair"]) == ("repair_needed", True)
        assert backing(lost, "update") == (False, "workflow", "missing")
        (missing,) = [task for task in lost["tasks"] if task["task_missing"]]
        assert (missing["id"], missing["workflow_update_id"]) == (f"missing:workflow:update:{id}", id)
        assert (await api.control("POST", "/workflows/o-1/repair", {})).json()["outcome"] == "repair_dispatched"
        assert await waits_for() == resume
        requested = next(e for e in await api.history() if e["event_type"] == "RepairRequested")["payload"]
        assert requested["wait_kind"] == "update"
        task = await api.poll()
        assert (task["workflow_wait_kind"], task["workflow_update_id"]) == ("update", id)


WAITS: dict[str, tuple[dict[str, Any], str, str]] = {
    "activity": (CHARGE, "waits for activity 'charge'", "activity_task_ready"),
    "timer": ({"type": "start_timer", "delay_seconds": 60}, "waits for a timer", "timer_scheduled"),
    "condition": (WAIT, "waits until condition 'paid' is true", "waiting_for_condition"),
    "signal": ({"type": "open_signal_wait", "signal_name": "go"}, "waits for signal 'go'", "waiting_for_signal"),
    "child": ({"type": "start_child_workflow", "workflow_type": "order"}, "waits for child", "waiting_for_child"),
}


@pytest.mark.contract("LIVE-01")
@pytest.mark.parametrize("kind", WAITS)
async def test_a_run_says_what_it_waits_for_since_when_and_until_when(kind: str) -> None:
    command, reason, liveness = WAITS[kind]
    async with serving() as api:
        await doing(api, command)
        found = await detail(api)
        assert (found["wait_kind"], found["liveness_state"]) == (kind, liveness)
        assert found["wait_reason"].startswith(reason)
        (wait,) = found["waits"]
        assert (found["open_wait_id"], found["wait_started_at"]) == (wait["wait_id"], wait["opened_at"])
        assert found["wait_deadline_at"] == wait["deadline_at"]
        if kind == "activity":
            task = await api.poll("activity")
            leased = await detail(api)
            assert (leased["next_task_id"], leased["next_task_type"], leased["next_task_status"]) == (
                *(task["task_id"], "activity", "leased"),
            )
            assert leased["next_task_lease_expires_at"] is not None


async def test_a_run_whose_activity_keeps_failing_says_so() -> None:
    async with serving() as api:
        run = (await doing(api, CHARGE | {"retry_policy": RETRIED}))["run_id"]
        await api.activity("fail", await api.poll("activity"), failure={"message": "declined", "type": "card.declined"})
        found = await detail(api)
        assert (found["state"], found["attention"], found["attempt"]) == ("retrying", "retrying", 1)
        assert (found["exception_count"], found["last_error"]) == (1, "declined")
        assert found["wait_reason"] == "waits for the next attempt of activity 'charge'"
        assert (found["next_task_at"], found["tasks"][0]["transport_state"]) == (
            *(found["activities"][0]["available_at"], "scheduled"),
        )
        (failure,) = found["exceptions"]
        assert (failure["propagation_kind"], failure["attempt_number"], failure["message"]) == ("retry", 1, "declined")
        assert (await api.describe())["exception_count"] == 1
        assert (await export(api, run))["failures"] == found["failures"]
        summary = await api.server.node.projector.summary(
            (await api.server.store.run("default", run)) or pytest.fail("it is there")
        )
        assert summary.exception_count == 1


async def blocked_by(api: Api, block: Block) -> None:
    """The worker of `o-1` reports that its code cannot go on."""
    task = await api.poll()
    await api.server.api.call(
        ask.FailTask(
            task_id=task["task_id"],
            namespace="default",
            lease_owner=ME,
            workflow_task_attempt=task["workflow_task_attempt"],
            failure=block,
        )
    )


async def test_a_blocked_replay_says_what_history_has_and_what_the_code_asked_for() -> None:
    block = Block(
        message="step 1 differs",
        replay_blocked=True,
        reason="history_shape_mismatch",
        workflow_sequence=1,
        expected_history_shape="timer",
        recorded_event_types=["ActivityScheduled"],
        difference=[("1: activity charge", "timer 5s"), ("2: ", "activity charge"), ("3: timer", "timer")],
    )
    async with serving() as api:
        run = (await doing(api, CHARGE))["run_id"]
        await api.activity("complete", await api.poll("activity"), result=blob(1))
        assert (await detail(api))["replay_block"] is None
        await blocked_by(api, block)
        found = await detail(api)
        told = found["replay_block"]
        assert (told["reason"], told["workflow_sequence"], told["message"]) == (
            *("history_shape_mismatch", 1, "step 1 differs"),
        )
        assert (told["expected_history_shape"], told["recorded_event_types"]) == ("timer", ["ActivityScheduled"])
        assert told["difference"] == [
            {"workflow_sequence": 1, "recorded": "activity charge", "expected": "timer 5s", "same": False},
            {"workflow_sequence": 2, "recorded": None, "expected": "activity charge", "same": False},
            {"workflow_sequence": 3, "recorded": "timer", "expected": "timer", "same": True},
        ]
        (task,) = found["tasks"]
        assert (task["replay_block"], task["replay_blocked"], task["transport_state"]) == (told, True, "replay_blocked")
        assert (found["liveness_state"], found["state"], found["attention"]) == (
            *("workflow_replay_blocked", "blocked", "blocked"),
        )
        assert (found["can_repair"], found["task_problem"]) == (True, True)
        assert (await export(api, run))["selected_run"]["replay_block"] == told


@pytest.mark.contract("FAIL-07", "FAIL-08")
@pytest.mark.parametrize("source", ["unresolved", "misconfigured", "unrestorable"])
async def test_a_failure_that_blocks_replay_says_why_its_class_was_not_found(source: str) -> None:
    failure = {"message": "declined", "type": "card.declined", "class": "shop:CardDeclined", "non_retryable": True}
    async with serving() as api:
        run = (await doing(api, CHARGE))["run_id"]
        await api.activity("fail", await api.poll("activity"), failure=failure)
        (before,) = (await detail(api))["exceptions"]
        assert (before["resolved_class"], before["resolution_source"]) == ("shop:CardDeclined", "exception_type")
        assert before["exception_replay_blocked"] is False
        block = Block(
            message="cannot restore",
            type="UnresolvedWorkflowFailureException",
            replay_blocked=True,
            reason="failure_resolution",
            exception_class="shop:CardDeclined",
            exception_type="card.declined",
            resolution_source=source,
            resolution_error="no module has it",
        )
        await blocked_by(api, block)
        found = await detail(api)
        (told,) = found["exceptions"]
        assert (told["resolved_class"], told["resolution_source"], told["resolution_error"]) == (
            *(None, source, "no module has it"),
        )
        assert told["exception_replay_blocked"] is True
        assert found["replay_block"]["exception_replay_blocked"] is True
        assert found["tasks"][0]["replay_block"]["resolution_source"] == source
        assert (await export(api, run))["failures"] == found["failures"]


@pytest.mark.contract("FAIL-07")
@pytest.mark.parametrize(
    ("failure", "resolved"),
    [
        ({"type": "card.declined", "class": "shop:CardDeclined"}, ("shop:CardDeclined", "exception_type")),
        ({"type": "shop.CardDeclined", "class": "shop:CardDeclined"}, ("shop:CardDeclined", "recorded_class")),
        ({"class": "shop:CardDeclined"}, ("shop:CardDeclined", "recorded_class")),
        ({"type": "card.declined"}, (None, "exception_type")),
        ({}, (None, None)),
    ],
)
async def test_a_failure_says_by_what_its_class_is_found(failure: dict[str, Any], resolved: tuple[Any, Any]) -> None:
    async with serving() as api:
        await doing(api, CHARGE)
        await api.activity("fail", await api.poll("activity"), failure={"message": "no"} | failure)
        (told,) = (await detail(api))["exceptions"]
        assert (told["resolved_class"], told["resolution_source"]) == resolved


@pytest.mark.contract("START-08")
async def test_a_memo_is_on_the_start_event_in_the_detail_and_in_the_export_of_every_run() -> None:
    async with serving() as api:
        first = (await doing(api, {"type": "continue_as_new"}, memo={"customer": "ada"}))["run_id"]
        second = (await api.describe())["run_id"]
        for run in (first, second):
            found, exported = await of_run(api, run), await export(api, run)
            assert found["memo"] == {"customer": "ada"}
            assert value(exported["workflow"]["memo"]["customer"]) == "ada"
            started = next(event for event in exported["history_events"] if event["type"] == "WorkflowStarted")
            assert "customer" in started["payload"]["memo"]
        (flow,) = (await api.control("GET", "/flows/running")).json()["flows"]
        assert "memo" not in flow


@pytest.mark.contract("EXPORT-03")
@pytest.mark.parametrize("which", ["current", "earlier", "closed"])
async def test_the_selected_run_of_an_export_says_what_the_detail_says(which: str) -> None:
    async with serving() as api:
        run = (await doing(api, CHARGE, WAIT))["run_id"]
        if which != "current":
            await api.activity("complete", await api.poll("activity"), result=blob(1))
            ended = {"earlier": "continue_as_new", "closed": "complete_workflow"}[which]
            await api.complete(await api.poll(), {"type": ended})
        found, exported = await of_run(api, run), await export(api, run)
        selected = exported["selected_run"]
        shared = selected.keys() & found.keys()
        assert (
            set(FLAT)
            - {*("compatibility_namespace", "compatibility_fleet", "compatibility_fleet_reason")}
            - {
                *("collections", "history_damage"),
            }
            <= shared
        )
        for name in shared:
            if not name.endswith("_projection_source"):
                assert selected[name] == found[name], name
        for section in ("waits", "timeline", "activities", "timers", "signals", "updates", "commands", "failures"):
            assert exported[section] == [_recorded(entry) for entry in found[section]], section


def _recorded(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a detail without what could be done to it at this moment, which no export tells."""
    return {name: value for name, value in entry.items() if not re.match("can_|.*_blocked_reason$", name)}


async def test_a_payload_that_cannot_be_decoded_says_so() -> None:
    broken = {"codec": "avro", "blob": avro.to_text(dumps("x")[:10] + b"\xff\xff\xff")}
    async with serving() as api:
        await doing(api, {"type": "complete_workflow", "result": broken})
        for found in (await api.describe(), await detail(api)):
            assert found["output"] == broken | {"undecodable": True, "reason": found["output"]["reason"]}
            assert found["output"]["reason"]
            assert found["output_envelope"] == broken


async def long_run(api: Api, steps: int, result: Any = 1) -> str:
    """A run of `o-1` with so many side effects behind it, waiting for a condition."""
    run: str = (await doing(api, WAIT))["run_id"]
    effects = [{"type": "record_side_effect", "result": blob(result)} for _ in range(100)]
    for _ in range(steps // 100):
        await api.control("POST", "/workflows/o-1/signal/go", {"input": []})
        answer = await api.complete(await api.poll(), *effects, WAIT)
        assert answer.status_code == 200, answer.text
    return run


async def test_of_a_long_run_a_page_of_each_list_is_shown() -> None:
    async with serving() as api:
        run = await long_run(api, 600)
        for found in (await detail(api), await of_run(api, run)):
            told = found["collections"]["timeline"]
            assert told == {
                "total": found["history_event_count"],
                "shown": 200,
                "truncated": True,
                "href": f"/api/workflows/o-1/runs/{run}/history",
            }
            assert len(found["timeline"]) == 200
            assert found["timeline"][-1]["sequence"] == found["history_event_count"]
            assert found["collections"]["signals"] == {
                "total": 6,
                "shown": 6,
                "truncated": False,
                "href": f"/api/workflows/o-1/runs/{run}/messages",
            }
            for name, about in found["collections"].items():
                assert about["shown"] == len(found[name]), name
            assert found["open_wait_count"] == 1
            assert found["waits"][0]["status"] == "open"
        for about in (await detail(api))["collections"].values():
            page = await api.control("GET", about["href"].removeprefix("/api"))
            assert page.status_code == 200, about
        exported = await export(api, run)
        assert len(exported["timeline"]) == found["history_event_count"]


@pytest.mark.parametrize("cached", [True, False])
async def test_the_history_of_a_long_run_is_read_in_pages(cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as api:
        run = await long_run(api, 600)
        store, engine = api.server.store, api.server.engine
        if not cached:
            for entry in engine.cache:
                engine.discard_cached(entry)
        pages: list[int] = []
        read = store.history

        async def history(*given: Any) -> Any:
            found = await read(*given)
            pages.append(len(found))
            return found

        monkeypatch.setattr(store, "history", history)
        monkeypatch.setattr(store, "load", None)  # which would read it at once
        found = (await api.control("GET", "/workflows/o-1")).json()
        assert found["history_event_count"] > 600
        assert sum(pages) < 10 if cached else sum(pages) >= found["history_event_count"]
        pages.clear()
        for path in ("/workflows/o-1/detail", f"/workflows/o-1/runs/{run}/detail"):
            assert (await api.control("GET", path)).status_code == 200
        assert max(pages) <= 500
        assert sum(pages) >= 2 * found["history_event_count"]


async def test_the_description_of_a_long_run_has_the_newest_entries_of_its_lists() -> None:
    async with serving() as api:
        await long_run(api, 500)
        for number in range(210):
            await api.control("POST", "/workflows/o-1/signal/go", {"input": [], "request_id": f"r-{number}"})
        found = await api.server.api.call(ask.DescribeWorkflow(workflow_id="o-1"))
        assert (len(found.signals), len(found.commands)) == (200, 200)
        assert found.totals == {"signals": 215, "commands": 216}
        assert found.commands[-1].request_id == "r-209"
        assert found.signals[-1].command_id == found.commands[-1].id
        whole, _, _ = await api.server.api.look(ask.DescribeWorkflow(workflow_id="o-1"))
        assert (len(whole.signals), whole.totals) == (215, {})


async def test_a_detail_has_at_most_two_mebibytes_whatever_the_payloads() -> None:
    async with serving() as api:
        await long_run(api, 100, "x" * 50_000)
        answer = await api.control("GET", "/workflows/o-1/detail")
        assert len(answer.content) < 2 * 1024 * 1024
        found = answer.json()
        assert found["payloads_omitted"] >= 100
        effect = next(point for point in found["timeline"] if point["type"] == "SideEffectRecorded")
        assert effect["result"] is None
        assert effect["payloads_omitted"]["result"] > 50_000
        event = await api.control("GET", f"/workflows/o-1/runs/{found['run_id']}/events/{effect['sequence']}")
        assert "xxxxx" in event.text


async def test_a_state_in_memory_is_used_only_if_no_row_contradicts_it() -> None:
    async with serving() as api:
        await doing(api, {"type": "start_timer", "delay_seconds": 60})
        loading = api.server.engine.loading
        key = await api.server.store.find("default", "o-1")
        assert key is not None

        async def unchanged() -> bool:
            opening = await api.server.store.opening(key)
            assert opening is not None
            return loading.unchanged(opening) is not None

        assert await unchanged()
        for change, back in (
            ("next_wake = next_wake + 1", "next_wake = next_wake - 1"),
            ("cursor = cursor + 1", "cursor = cursor - 1"),
            ("expects = expects + 1", "expects = expects - 1"),
            ("checksum = checksum + 1", "checksum = checksum - 1"),
            ("command_sequence = command_sequence + 1", "command_sequence = command_sequence - 1"),
        ):
            assert sql(api, f"update workflow set {change}") == 1
            assert not await unchanged(), change
            assert sql(api, f"update workflow set {back}") == 1
        assert await unchanged()
        assert (await api.control("GET", "/workflows/o-1")).status_code == 200
        assert sql(api, "delete from event where sequence = (select max(sequence) from event)") == 1
        damaged = await api.control("GET", "/workflows/o-1")
        assert (damaged.status_code, damaged.json()["reason"]) == (409, "history_damaged")
