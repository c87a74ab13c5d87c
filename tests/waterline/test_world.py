"""The world that the other tests look at is as they expect it, told by the API."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.values import valid_id

from . import world_code as code
from .world import EXPECTED, HOSTILE_ID, World


def detail(world: World, workflow_id: str) -> dict[str, Any]:
    return world.get(f"/workflows/{workflow_id}/detail")


@pytest.mark.parametrize("workflow_id", EXPECTED)
def test_a_run_is_in_the_state_that_it_stands_for(world: World, workflow_id: str) -> None:
    state, verb, attention = EXPECTED[workflow_id]
    row, why = world.row(workflow_id), world.why(workflow_id)
    assert (row["state"], row["attention"]) == (state, attention)
    assert (why["verb"], why["state"], why["attention"]) == (verb, state, attention)


def test_every_state_of_the_list_is_there(world: World) -> None:
    listed = world.get("/flows/all", params={"definition": 0, "page_size": 200})["flows"]
    states = {"waiting", "sleeping", "working", "retrying", "ready", "blocked", "paused"}
    assert {row["state"] for row in listed} >= states | {"completed", "failed", "cancelled", "terminated", "continued"}


def test_the_approval_declares_messages_with_types(world: World) -> None:
    found = detail(world, "approval-1")
    (amended,) = found["updates"]
    assert (amended["update_name"], amended["status"]) == ("amend", "completed")
    declared = {contract["name"]: contract["parameters"] for contract in found["declared_signal_contracts"]}
    assert [parameter["name"] for parameter in declared["approve"]] == ["by", "urgent", "copies"]
    assert {contract["name"] for contract in found["declared_update_contracts"]} == {"amend"}


def test_the_invoice_can_be_found_by_all_that_is_said_of_it(world: World) -> None:
    row = world.row("invoice-1")
    assert row["business_key"] == "invoice-2027-0007"
    assert row["visibility_labels"] == {"team": "blue", "region": "emea"}
    assert row["search_attributes"] == {"customer": "acme", "stage": "sent", "priority": 7}
    for filters in ({"label[team]": "blue"}, {"attribute[customer]": "acme"}, {"business_key": "invoice-2027-0007"}):
        found = world.get("/flows/all", params={"definition": 0, **filters})["flows"]
        assert "invoice-1" in [flow["instance_id"] for flow in found], filters


def test_the_blocked_run_tells_where_code_and_history_part(world: World) -> None:
    block = detail(world, "shipping-1")["replay_block"]
    assert block["difference"]
    assert "history has activity pick, the code asked for timer" in world.why("shipping-1")["sentence"]


def test_the_delivery_backs_off_and_the_import_reports(world: World) -> None:
    (tried,) = detail(world, "delivery-1")["activities"]
    assert (tried["attempt_count"], len(tried["attempts"])) == (1, 1)
    assert world.why("delivery-1")["action"]["verb"] == "retry_now"
    (running,) = detail(world, "import-1")["activities"]
    progress = running["last_heartbeat_progress"]
    assert (progress["current"], progress["total"], progress["unit"]) == (400, 1000, "rows")


def test_the_order_has_a_traceback(world: World) -> None:
    failures = detail(world, "order-1")["exceptions"]
    assert failures
    assert any("world_code.py" in str(failure) for failure in failures)


def test_who_stopped_a_run_said_why(world: World) -> None:
    for workflow_id, reason in (
        ("cancelled-1", "changed her mind"),
        ("terminated-1", "started by mistake"),
        ("paused-1", "the warehouse is closed"),
    ):
        assert reason in world.why(workflow_id)["sentence"]


def test_the_poller_has_three_earlier_runs(world: World) -> None:
    runs = world.get("/flows/all", params={"instance_id": "poller-1", "definition": 0})["flows"]
    assert [(run["run_number"], run["state"]) for run in runs] == [
        (4, "waiting"),
        (3, "continued"),
        (2, "continued"),
        (1, "continued"),
    ]


def test_the_family_has_four_children_and_a_grandchild_that_failed(world: World) -> None:
    tree = world.get("/workflows/family-1/lineage", params={"depth": 3})["run"]
    children = [(child["workflow_type"], child["status_bucket"]) for child in tree["children"]]
    assert children == [
        ("welcome", "completed"),
        ("firm_child", "completed"),
        ("patient_child", "running"),
        ("patient_child", "running"),
    ]
    (grandchild,) = tree["children"][1]["children"]
    assert (grandchild["workflow_type"], grandchild["status_bucket"]) == ("grandchild", "failed")


def test_the_batch_has_steps_at_once_and_one_by_one(world: World) -> None:
    activities = detail(world, "batch-1")["activities"]
    groups = {activity["parallel_group_id"] for activity in activities}
    assert len(activities) == 18
    assert len(groups - {None}) == 2
    assert [activity["attempt_count"] for activity in activities].count(2) == 1


def test_hostile_text_is_stored_as_it_was_sent(world: World) -> None:
    assert len(HOSTILE_ID) == 191
    assert valid_id(HOSTILE_ID)
    row, found = world.row(HOSTILE_ID), detail(world, HOSTILE_ID)
    assert row["workflow_type"] == f"hostile {code.SCRIPT}"
    assert row["business_key"] == code.HOSTILE[:100]
    assert row["visibility_labels"]["team"] == code.HOSTILE[:60]
    assert row["search_attributes"]["customer"] == code.HOSTILE
    assert found["memo"]["note"] == code.HOSTILE
    assert found["memo"]["numbers"] == [str(code.LARGEST), str(code.SMALLEST), str(code.INEXACT)]
    assert found["activities"][0]["activity_type"] == f"echo {code.SCRIPT}"
    assert found["signals"][0]["signal_name"] == f"say {code.SCRIPT}"
    assert any(code.HOSTILE in failure["message"] for failure in detail(world, "hostile-2")["exceptions"])


def test_the_large_run_has_a_megabyte_each_way(world: World) -> None:
    assert detail(world, "large-1")["history_size_bytes"] > 2 << 20


def test_there_are_schedules_and_a_queue_without_a_worker(world: World) -> None:
    schedules = {schedule["schedule_id"]: schedule for schedule in world.get("/schedules")["schedules"]}
    assert {name: schedule["status"] for name, schedule in schedules.items()} == {
        "nightly": "active",
        "hourly": "paused",
    }
    assert schedules["hourly"]["note"] == code.HOSTILE[:200]
    queues = {queue["name"] for queue in world.get("/task-queues")["task_queues"]}
    assert queues >= {"default", "deploys", "nowhere"}


def test_a_test_has_runs_of_its_own(world: World) -> None:
    mine = world.begin("shop.invoice", "me", business_key="mine")
    other = world.begin("shop.invoice", "me")
    assert mine != other
    world.reach(mine, "waits_for_signal")
    assert world.call("POST", f"/workflows/{mine}/signal/payment", {"input": [{"cents": 5}]}).status_code == 202
    world.reach(mine, "completed")
    assert world.call("POST", f"/workflows/{other}/terminate", {}).status_code == 200
