"""`dw overview`, `dw queues` and `dw schedule preview`: on a database, and on a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dw_support import Place, mistaken

from backstay import Backstay, workflow


@workflow
def order(sku: str) -> str:
    return sku


@pytest.fixture
def shop(place: Place) -> Place:
    """A database with two runs that wait for a worker."""
    with Backstay(str(place.directory / "backstay.db"), queues=(), client_only=True) as app:
        app.start(order, "o-1", "book")
        app.start(order, "o-2", "pen")
    return place


def test_an_overview_of_a_database(shop: Place) -> None:
    shown = shop.ask("overview", "--window", "1h")
    assert shown.returncode == 0, shown.stderr
    for text in ("open runs", "the last hour", "2 tasks wait in 1 queues", "0 in the next hour", "QUEUE", "default"):
        assert text in shown.stdout, shown.stdout


def test_an_overview_as_json_is_that_of_the_route(shop: Place) -> None:
    seen: dict[str, Any] = json.loads(shop.ask("overview", "--json").stdout)
    assert (seen["stock"]["open"], seen["queues"]["backlog"], seen["window"]) == (2, 2, "24h")
    assert seen["queues"]["oldest_waiting"][0]["name"] == "default"
    assert seen["fleet"] is None, "the workers of a database are not known without a server"


def test_an_overview_says_first_that_no_process_runs_the_database(shop: Place) -> None:
    shown = shop.ask("overview")
    first = "No engine runs this database, so no run moves: 2 open runs wait."
    verdict, cause, helps, *_ = shown.stdout.splitlines()
    assert verdict == "1 thing needs attention."
    assert first in cause, shown.stdout
    assert helps.strip() == "Start an engine: start a server, your program or `dw dev FILE`: dw server"
    assert "none: no engine runs this database" in shown.stdout
    seen: dict[str, Any] = json.loads(shop.ask("overview", "--json").stdout)
    assert seen["engine"] == "none"
    cause = seen["causes"][0]
    assert (cause["name"], cause["severity"], cause["count"], cause["sentence"]) == ("no_engine", "error", 2, first)
    assert (shown.returncode, shop.ask("overview", "--check").returncode) == (0, 1)
    assert shop.ask("overview", "--check", "--json").returncode == 1


def test_an_overview_beside_an_engine_needs_no_attention(shop: Place) -> None:
    with Backstay(str(shop.directory / "backstay.db"), [order]) as app:
        assert [app.handle(order, id).result() for id in ("o-1", "o-2")] == ["book", "pen"]
        shown = shop.ask("overview", "--check")
        assert "nothing needs attention" in shown.stdout.splitlines()[0]
        assert shown.returncode == 0
        assert json.loads(shop.ask("overview", "--json").stdout)["engine"] == "elsewhere"


def test_a_schedule_without_an_engine_needs_attention_and_an_empty_database_does_not(place: Place) -> None:
    with Backstay(str(place.directory / "backstay.db"), queues=(), client_only=True) as app:
        assert place.ask("overview", "--check").returncode == 0
        app.schedules.options(cron="0 9 * * *").create(order, "daily", "book")
    shown = place.ask("overview", "--check")
    assert "no run moves: 1 active schedule waits." in shown.stdout
    assert shown.returncode == 1


def test_queues_and_what_waits_in_one(shop: Place) -> None:
    table = shop.ask("queues").stdout
    assert "QUEUE" in table
    assert "default" in table
    one, two = json.loads(shop.ask("queues", "default", "--json").stdout)
    assert (one["workflow_id"], one["task_type"], one["type"]) == ("o-1", "workflow", "order")
    assert two["workflow_id"] == "o-2"
    assert "o-1" in shop.ask("queues", "default").stdout
    assert "nothing waits in queue empty" in shop.ask("queues", "empty").stdout


def test_a_window_that_is_not_known_is_the_callers_mistake(shop: Place) -> None:
    assert "1h" in mistaken(shop.ask("overview", "--window", "2h"))


def test_a_schedule_is_previewed_without_a_database(place: Place) -> None:
    shown = place.ask("schedule", "preview", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--count", "3")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert len(lines) == 3
    assert all(" 02:30:00 +0" in line or "left out" in line for line in lines)
    every = place.ask("schedule", "preview", "--every", "6h", "--offset", "5m", "--count", "2").stdout
    assert every.count(":05:00 +0000") == 2


def test_a_schedule_that_cannot_be_read_is_the_callers_mistake(place: Place) -> None:
    assert "minute" in mistaken(place.ask("schedule", "preview", "--cron", "99 * * * *"))
    assert "cron_expressions" in mistaken(place.ask("schedule", "preview"))
    assert "often" in mistaken(place.ask("schedule", "preview", "--every", "often"))
