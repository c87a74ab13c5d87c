"""`dw fork` and `dw rewind`, beside an engine that is another process."""

from __future__ import annotations

from dw_support import Place

SHOP = """
from pathlib import Path
from backstay import activity, workflow


@activity
def charge(order: str) -> str:
    if not Path("money").exists():
        raise ValueError("no money")
    return "paid"


@activity
def ship(order: str) -> str:
    return "shipped"


@workflow
def buy(order: str) -> list:
    return [charge(order), ship(order)]
"""


def test_a_failed_run_is_rewound_and_one_that_ended_is_forked(place: Place) -> None:
    place.write("shop.py", SHOP)
    dev = place.dev("shop.py")
    dev.wait("ready")
    place.ask("start", "shop.py:buy", "o-1", '"a"')
    dev.wait("o-1  buy failed")
    plan = place.ask("rewind", "o-1", "--dry-run").stdout
    assert plan.startswith("o-1: keeps 2 events of run ")
    assert "step 1  activity charge  failed  " in plan
    place.write("money", "")
    assert place.ask("rewind", "o-1", "--reason", "payday").stdout.startswith("o-1: rewound; it goes on as run ")
    dev.wait("o-1  buy completed")
    assert "payday" in place.ask("history", "o-1").stdout
    forked = place.ask("fork", "o-1", "--at", "ship", "--id", "o-2", "--set", '{"1": "paid in cash"}').stdout
    assert forked.startswith("o-1: forked as o-2 (run ")
    dev.wait("o-2  buy completed")
    assert "paid in cash" in place.ask("history", "o-2").stdout
    wrong = place.dw("fork", "o-1", "--set", "cash")
    assert (wrong.returncode, "--set is a JSON object" in wrong.stderr) == (2, True), wrong.stderr
    nowhere = place.dw("fork", "o-1", "--at", "pay")
    assert (nowhere.returncode, "no activity or child of the type 'pay'" in nowhere.stderr) == (2, True)
