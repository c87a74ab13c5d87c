"""The summary of a call: `dw history` and `dw describe` show it beside the step."""

from __future__ import annotations

import json
import re

import pytest
from dw_support import Place, until

from backstay import Backstay, activity, child, sleep, workflow
from backstay.sdk.errors import DefinitionError


@activity(retries=1, backoff="1h")
def charge(order: int) -> str:
    if order == 99:
        raise ConnectionError("offline")
    return "paid"


@activity(local=True)
def look_up(order: int) -> int:
    return order


@workflow
def asleep() -> None:
    sleep("1h")


@workflow
def paying() -> None:
    look_up.options(summary="customer of 17")(17)
    charge.options(summary="order 17")(17)
    charge(18)
    child.options(summary="the \x1b[31mreminder").start(asleep)
    charge.options(summary="order 99")(99)


def test_history_and_describe_show_the_summary_of_a_call(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [paying, charge, look_up, asleep]) as backstay:
        backstay.start(paying, "pay-1")
        until(lambda: "attempt 1 of 2 failed" in place.ask("history", "pay-1").stdout)
    told = place.ask("history", "pay-1").stdout
    assert "○ look_up(17) scheduled (local): customer of 17\n" in told
    assert "○ charge(17) scheduled: order 17\n" in told
    assert "○ charge(18) scheduled\n" in told
    assert re.search(r"⤷ child asleep\(\) called as \w{26}: the ", told)
    assert "\x1b[31m" not in told
    shown = place.ask("describe", "pay-1").stdout
    assert "step 5: activity charge (order 99), attempt 2" in shown
    assert re.search(r"step 4: child asleep \w{26} \(the ", shown)
    events = [json.loads(line) for line in place.ask("history", "pay-1", "--json").stdout.splitlines()]
    scheduled = [one for one in events if one["event_type"] == "ActivityScheduled"]
    assert [one["payload"]["activity"].get("summary") for one in scheduled] == [
        "customer of 17",
        "order 17",
        None,
        "order 99",
    ]


def test_a_summary_that_is_too_long_or_no_text_is_refused_where_it_is_given() -> None:
    with pytest.raises(ValueError, match="summary: 201 characters, at most 200 are accepted"):
        charge.options(summary="x" * 201)
    with pytest.raises(ValueError, match="summary: 300 characters"):
        child.options(summary="x" * 300)
    with pytest.raises(DefinitionError, match="summary must be text of at most 200 characters, not 17"):
        charge.options(summary=17)  # type: ignore[arg-type]
