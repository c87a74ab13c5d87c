"""What the server says of itself, and that it is true."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.protocol.versions import LONG_POLL, accepts, clamp_long_poll, describe

from .kit import ME, Api, blob, serving

# One acceptable command of each type the server advertises.
COMMANDS: dict[str, dict[str, Any]] = {
    "schedule_activity": {"activity_type": "charge"},
    "start_timer": {"delay_seconds": 1},
    "record_side_effect": {"result": blob(1)["blob"]},
    "record_version_marker": {"change_id": "c", "version": 1, "min_supported": 1, "max_supported": 2},
    "upsert_search_attributes": {"attributes": {"a": 1}},
    "upsert_memo": {"entries": blob({"a": 1})},
    "record_local_activity": {"activity_type": "charge", "outcome": "completed", "attempts": [{}]},
    "cancel_timer": {"step": 1},
    "cancel_activity": {"step": 1},
    "complete_workflow": {},
    "fail_workflow": {"message": "no"},
    "continue_as_new": {},
    "cancel_workflow": {},
    "open_condition_wait": {"condition_key": "paid", "timeout_seconds": 5},
    "open_signal_wait": {"signal_name": "pay"},
    "start_child_workflow": {"workflow_type": "part"},
    "cancel_child": {"step": 1},
}


async def info(api: Api) -> dict[str, Any]:
    return (await api.control("GET", "/cluster/info")).json()


@pytest.mark.contract("PROTO-01", "PROTO-02")
async def test_a_caller_is_answered_in_the_version_it_speaks() -> None:
    async with serving() as api:
        assert (await info(api))["worker_protocol"]["version"] == "1.20"
        await api.register()
        for version in ("1.0", "1.15", "1.20"):
            body = {"worker_id": ME, "task_queue": "q"}
            answer = await api.worker("workflow-tasks/poll", body, version=version)
            assert answer.status_code == 200
            assert answer.json()["protocol_version"] == version
            assert answer.headers["X-Durable-Workflow-Protocol-Version"] == version
        for version in ("1.21", "2.0", "0.9", "1", "1.0.0", "one", ""):
            answer = await api.worker("workflow-tasks/poll", {}, version=version)
            assert (answer.status_code, answer.json()["reason"]) == (400, "unsupported_protocol_version")
            assert answer.json()["supported_version"] == "1.20"


@pytest.mark.contract("PROTO-04")
async def test_the_description_of_the_protocol_agrees_with_what_the_server_publishes() -> None:
    described = describe()
    assert (described["version"], described["evolution_rule"]) == ("1.20", "additive_minor_breaking_major")
    assert described["terminal_command_types"] == [
        *("complete_workflow", "fail_workflow", "continue_as_new", "cancel_workflow"),
    ]
    assert {"poll", "claim", "complete", "fail", "heartbeat"} <= set(described["activity_task_verbs"])
    assert "historyPayloadPaginated" in described["workflow_task_verbs"]
    async with serving() as api:
        found = (await info(api))["worker_protocol"]["server_capabilities"]
        commands = described["non_terminal_command_types"] + described["terminal_command_types"]
        assert sorted(found["supported_workflow_task_commands"]) == sorted(commands)
        assert found["default_history_page_size"] == described["default_history_page_size"] == 500
        assert found["history_page_size_max"] == described["max_history_page_size"] == 1000


@pytest.mark.contract("POLL-03", "POLL-04")
def test_long_polls_are_clamped_and_never_refused() -> None:
    assert LONG_POLL == {"default_timeout_seconds": 30, "min_timeout_seconds": 1, "max_timeout_seconds": 60}
    assert [clamp_long_poll(wish) for wish in (None, 0, -1, 0.2, 1, 30, 60, 600)] == [0, 0, 0, 1, 1, 30, 60, 60]
    assert accepts("1.0")
    assert not accepts("1.99")


@pytest.mark.contract("PROTO-05", "CODEC-02", "HIST-04")
async def test_the_published_capabilities_are_on_every_worker_answer() -> None:
    async with serving() as api:
        found = await info(api)
        assert found["capabilities"]["payload_codecs"] == ["avro"]
        capabilities = found["worker_protocol"]["server_capabilities"]
        assert capabilities["history_page_size_default"] == capabilities["default_history_page_size"] == 500
        answers = [await api.register(), await api.worker("heartbeat", {"worker_id": ME})]
        await api.start()
        poll = await api.worker("workflow-tasks/poll", {"worker_id": ME, "task_queue": "q"})
        task = poll.json()["task"]
        owner = {"lease_owner": ME, "workflow_task_attempt": 1}
        answers += [
            poll,
            await api.worker(f"workflow-tasks/{task['task_id']}/heartbeat", owner),
            await api.worker(f"workflow-tasks/{task['task_id']}/history", owner),
            await api.complete(task, {"type": "complete_workflow"}),
            await api.worker("workflow-tasks/nonsense/fail", {}),
            await api.worker("activity-tasks/poll", {"worker_id": "unknown", "task_queue": "q"}),
        ]
        for answer in answers:
            assert answer.json()["server_capabilities"] == capabilities, answer.text


@pytest.mark.contract("PROTO-06")
async def test_exactly_the_advertised_commands_are_accepted() -> None:
    async with serving() as api:
        capabilities = (await info(api))["worker_protocol"]["server_capabilities"]
        # These need an update, a child or a wait to speak of.
        others = {"complete_update", "fail_update", "signal_child", "signal_child_from_update"}
        others |= {"satisfy_condition_wait", "time_out_condition_wait", "apply_signal", "cancel_selection_operation"}
        assert set(capabilities["supported_workflow_task_commands"]) == COMMANDS.keys() | others
        await api.register()
        for name, fields in COMMANDS.items():
            await api.start(f"with-{name}")
            answer = await api.complete(await api.poll(), {"type": name, **fields})
            assert answer.status_code == 200, answer.text
        await api.start("unlisted")
        answer = await api.complete(await api.poll(), {"type": "make_coffee"})
        assert (answer.status_code, answer.json()["field"]) == (422, "commands[0].type")


@pytest.mark.contract("TOPO-06", "TOPO-07")
async def test_the_topology_of_this_node_is_published() -> None:
    async with serving() as api, serving(v2_matching_role_queue_wake=False, wake_signal_ttl_seconds=5) as quiet:
        here, there = (await info(api))["topology"], (await info(quiet))["topology"]
        assert (here["current_shape"], here["current_process_class"]) == ("standalone_server", "server")
        assert "matching" in here["current_roles"]
        frozen = {
            "task_dispatch_mode": "long_poll",
            "partition_primitives": ["namespace", "connection", "queue", "compatibility", "activity_type"],
            "backpressure_model": "lease",
        }
        for server, role, shape in (
            (api, here["matching_role"], (True, "in_server", "server", 60)),
            (quiet, there["matching_role"], (False, "dedicated", "repair_pass", 5)),
        ):
            told = ("queue_wake_enabled", "shape", "wake_owner", "wake_signal_ttl_seconds")
            assert tuple(role[name] for name in told) == shape
            assert {name: role[name] for name in frozen} == frozen
            metrics = (await server.control("GET", "/system/operator-metrics")).json()["operator_metrics"]
            assert metrics["matching_role"] == role, "the same wherever it is asked for"


async def test_health_and_readiness_need_no_credential() -> None:
    async with serving() as api:
        health = await api.http.get("/api/health")
        assert (health.status_code, health.json()["status"]) == (200, "serving")
        assert (await api.http.get("/api/ready")).json()["status"] == "ready"
        api.server.draining = True
        assert (await api.http.get("/api/ready")).status_code == 503
