"""`dw signal`, `dw update`, `dw query` and the operator's commands, beside an engine and without one."""

from __future__ import annotations

import json

import pytest
from dw_support import Place, until

EXPENSES = """
from backstay import Cancelled, query, signal, update, wait, workflow


@workflow(handles_cancel="5m")
class Expense:
    def __init__(self) -> None:
        self.by = None
        self.cents = 0

    @signal
    def approve(self, by: str) -> None:
        self.by = by

    @update
    def amend(self, cents: int) -> dict:
        if cents == 13:
            raise LookupError("unlucky")
        self.cents = cents
        return {"cents": cents}

    @amend.validator
    def check(self, cents: int) -> None:
        if cents < 0:
            raise ValueError("negative")

    @query
    def status(self, loud: bool = False) -> str:
        said = f"{self.cents} by {self.by}"
        return said.upper() if loud else said

    def handle(self) -> str:
        wait(lambda: self.by, key="approved", timeout="3d")
        return f"paid {self.cents}"
"""


@pytest.fixture
def office(place: Place) -> Place:
    place.write("office.py", EXPENSES)
    return place


def test_talking_beside_an_engine(office: Place) -> None:
    dev = office.dev("office.py")
    dev.wait("ready")
    office.ask("start", "office.py:Expense", "e-1")
    unasked = office.dw("update", "e-1", "amend", "3900")
    assert (unasked.returncode, "(with dw: --app FILE)" in unasked.stderr) == (2, True)
    amended = office.ask("update", "e-1", "amend", "3900", "--app", "office.py")
    assert json.loads(amended.stdout) == {"cents": 3900}
    assert json.loads(office.ask("query", "e-1", "status", "--app", "office.py").stdout) == "3900 by None"
    assert json.loads(office.ask("query", "e-1", "status", "true", "--app", "office.py").stdout) == "3900 BY NONE"
    failed = office.dw("update", "e-1", "amend", "13", "--app", "office.py")
    assert (failed.returncode, "unlucky" in failed.stderr) == (1, True)
    refused = office.dw("update", "e-1", "amend", "-1", "--app", "office.py")
    assert (refused.returncode, "negative" in refused.stderr) == (2, True)
    waiting = office.ask("describe", "e-1").stdout
    assert "waits for     step 1: condition approved, for" in waiting
    assert "waiting for condition" in waiting
    assert office.ask("signal", "e-1", "approve", '"bob"').stdout == "e-1: signal approve accepted\n"
    dev.wait("e-1  Expense completed")
    assert json.loads(office.ask("query", "e-1", "status", "--app", "office.py").stdout) == "3900 by bob"
    told = office.ask("history", "e-1").stdout
    for line in (
        "waits for condition approved, at most 3 d",
        "timeout set for 3 d",
        "update amend(3900) accepted",
        "update amend completed → {'cents': 3900}",
        "update amend failed: LookupError: unlucky",
        "signal approve('bob') received",
        "signal approve applied",
        "condition approved holds",
        "Expense completed",
    ):
        assert line in told
    assert office.ask("archive", "e-1", "--reason", "audited").stdout == "e-1: archived; its history stays\n"
    assert office.ask("archive", "e-1").stdout == "e-1: archived already\n"
    assert "archived: audited" in office.ask("history", "e-1").stdout


def test_without_an_engine_it_is_on_disk_until_one_comes(office: Place) -> None:
    office.ask("start", "office.py:Expense", "e-1")
    office.ask("start", "office.py:Expense", "e-2")
    accepted = office.dw("update", "e-1", "amend", "7", "--app", "office.py")
    assert accepted.returncode == 0
    assert "update amend accepted (" in accepted.stderr
    assert "the message is applied when one starts" in accepted.stderr
    assert (
        "update amend accepted (" in office.ask("update", "e-2", "amend", "8", "--no-wait", "--app", "office.py").stdout
    )
    assert json.loads(office.ask("query", "e-1", "status", "--app", "office.py").stdout) == "0 by None"
    dev = office.dev("office.py")
    dev.wait("open runs go on")
    until(lambda: "7 by" in office.ask("query", "e-1", "status", "--app", "office.py").stdout)
    office.ask("signal", "e-1", "approve", '"ann"', "--request-id", "r")
    dev.wait("e-1  Expense completed")


def test_the_operators_commands(office: Place) -> None:
    dev = office.dev("office.py")
    dev.wait("ready")
    for id in ("e-1", "e-2"):
        office.ask("start", "office.py:Expense", id)
    assert office.ask("pause", "e-1", "--reason", "holiday").stdout.startswith("e-1: paused; ")
    assert office.ask("pause", "e-1").stdout == "e-1: paused already\n"
    assert "paused" in office.ask("describe", "e-1").stdout
    assert office.ask("unpause", "e-1").stdout == "e-1: resumed\n"
    assert "cancel requested" in office.ask("cancel", "e-1", "--reason", "enough").stdout
    until(lambda: "cancelled" in office.ask("describe", "e-1").stdout)
    told = office.ask("history", "e-1").stdout
    for line in ("paused: holiday", "unpaused", "cancel requested: enough, its code has 5 min", "Expense cancelled"):
        assert line in told
    assert office.ask("terminate", "e-2").stdout == "e-2: terminated\n"
    again = office.dw("terminate", "e-2")
    assert (again.returncode, "has ended" in again.stderr) == (2, True)


CARRIER = """
from pathlib import Path

from backstay import activity, workflow


@activity(retries=20, backoff="1h")
def carrier() -> str:
    if not Path("carrier.up").exists():
        raise ConnectionError("no answer")
    return "shipped"


@workflow
def shipping() -> str:
    return carrier()
"""


def test_an_activity_that_backs_off_is_tried_again_now(place: Place) -> None:
    place.write("carrier.py", CARRIER)
    dev = place.dev("carrier.py")
    dev.wait("ready")
    place.ask("start", "carrier.py:shipping", "s-1")
    dev.wait("again in 1 h")
    place.write("carrier.up", "")
    why = place.ask("why", "s-1").stdout
    assert why.startswith("s-1: Tries again in 59 min")
    assert "carrier has failed 1 of 21 times, last with “no answer”" in why
    assert "what helps Retry now: dw retry-now s-1" in why
    assert json.loads(place.ask("why", "s-1", "--json").stdout)["verb"] == "tries_again"
    wrong = place.dw("retry-now", "s-1", "--activity", "elsewhere-1")
    assert (wrong.returncode, "no such activity" in wrong.stderr) == (2, True), wrong.stderr
    done = place.ask("retry-now", "s-1", "--reason", "it is back").stdout
    assert done == "s-1: its next attempt is due now\n"
    dev.wait("s-1  shipping completed")
    assert "carrier is tried again now" in place.ask("history", "s-1").stdout
    assert place.ask("why", "s-1").stdout.startswith("s-1: Completed ")
    assert "follows from event" in place.ask("why", "s-1", "--event", "3").stdout
    nobody = place.dw("why", "nobody")
    assert (nobody.returncode, "nobody" in nobody.stderr) == (1, True)
    beyond = place.dw("why", "s-1", "--event", "99")
    assert (beyond.returncode, "not 99" in beyond.stderr) == (2, True)
    again = place.dw("retry-now", "s-1")
    assert (again.returncode, "has ended" in again.stderr) == (2, True)


def test_why_on_a_database_that_no_engine_runs(office: Place) -> None:
    office.ask("start", "office.py:Expense", "e-1")
    why = office.ask("why", "e-1").stdout
    assert "No engine runs this database, so no run moves." in why
    assert "what helps Start an engine: start a server, your program or `dw dev FILE`" in why


NAP = """
from backstay import sleep, workflow


@workflow
def nap() -> str:
    sleep("30d")
    return "rested"
"""


def test_a_sleep_is_skipped_from_the_command_line(place: Place) -> None:
    place.write("nap.py", NAP)
    dev = place.dev("nap.py")
    dev.wait("ready")
    place.ask("start", "nap.py:nap", "n-1")
    dev.wait("timer set for 30 d")
    wrong = place.dw("skip-wait", "n-1", "--timer", "elsewhere-t1")
    assert (wrong.returncode, "no such wait" in wrong.stderr) == (2, True), wrong.stderr
    assert place.ask("skip-wait", "n-1", "--reason", "up already").stdout == "n-1: its timer has fired\n"
    dev.wait("n-1  nap completed")
    assert "early: up already" in place.ask("history", "n-1").stdout


def test_mistakes_are_said_in_one_line(office: Place) -> None:
    office.ask("start", "office.py:Expense", "e-1")
    for arguments, code, says in [
        (["signal", "nobody", "approve", '"x"'], 1, "nobody"),
        (["signal", "e-1", "aprove", '"x"'], 2, "declared are: approve; did you mean 'approve'?"),
        (["signal", "e-1", "approve", "bob"], 2, "argument 1 is not JSON: 'bob'; text needs quotes"),
        (["signal", "e-1", "approve", "3"], 2, "by must be string, not int"),
        (["signal", "e-1", "approve"], 2, "by is missing"),
        (["signal", "e-1", "approve", "--force"], 2, "dw signal has no option --force"),
        (["update", "e-1", "amend", '"x"'], 2, "cents must be int, not string"),
        (["query", "e-1", "status"], 2, "a query runs the workflow's code; name its file with --app FILE"),
        (
            ["query", "e-1", "stat", "--app", "office.py"],
            2,
            "no query 'stat'; declared are: status; did you mean 'status'?",
        ),
        (["query", "e-1", "status", "--app", "shop.py"], 2, "Expense"),
        (["query", "e-1", "status", "--app", "nothing.py"], 2, "there is no file nothing.py"),
        (["archive", "e-1"], 2, "is still open; cancel or terminate it first"),
        (["cancel", "nobody"], 1, "nobody"),
        (["pause", "e-1", "--db", "other.db"], 2, "there is no database other.db"),
    ]:
        run = office.dw if "--app" in arguments else office.ask  # a file is loaded in a process of its own
        done = run(*arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert says in done.stderr, (arguments, done.stderr)
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name",
    ["signal", "update", "query", "cancel", "terminate", "pause", "unpause", "retry-now", "why", "archive", "repair"],
)
def test_every_command_helps_with_examples(name: str, place: Place) -> None:
    helped = place.ask(name, "--help").stdout
    assert "Examples:" in helped
    assert f"  dw {name} " in helped
    assert name in place.ask("--help").stdout
