"""`dw schedule`: beside an engine and without one."""

from __future__ import annotations

import pytest
from dw_support import Place, mistaken, until

REPORTS = """
from backstay import signal, wait, workflow


@workflow
def report(region: str, copies: int = 1) -> str:
    return f"{region} x{copies}"


@workflow
class Shift:
    over = False

    @signal
    def end(self) -> None:
        self.over = True

    def handle(self) -> None:
        wait(lambda: self.over)
"""


@pytest.fixture
def office(place: Place) -> Place:
    place.write("reports.py", REPORTS)
    return place


def test_a_schedule_beside_an_engine(office: Place) -> None:
    dev = office.dev("reports.py")
    dev.wait("ready")
    made = office.ask("schedule", "create", "reports.py:report", "fast", '"emea"', "3", "--every", "1s")
    assert made.stdout.startswith("created fast: next at ")
    assert made.stderr == "", "an engine is there"
    dev.wait("completed")
    until(lambda: "completed" in office.ask("schedule", "describe", "fast").stdout)
    assert office.ask("schedule", "pause", "fast", "--note", "enough").returncode == 0
    shown = office.ask("schedule", "describe", "fast").stdout
    for line in ("report on queue default", "every 1 s", "paused: enough", "overlap   skip"):
        assert line in shown
    table = office.ask("schedule", "list").stdout
    assert "fast  report  every 1 s  paused  -" in table
    started = office.ask("list", "--type", "report").stdout.splitlines()[1].split()[0]
    assert started.startswith("schedule:fast:2")
    assert "by schedule fast, number 1" in office.ask("history", _first(office)).stdout
    assert "started by    schedule fast" in office.ask("describe", started).stdout


def _first(office: Place) -> str:
    return office.ask("list", "--type", "report").stdout.splitlines()[-1].split()[0]


def test_schedule_commands_work_without_an_engine(office: Place) -> None:
    made = office.ask(
        *("schedule", "create", "reports.py:Shift", "shifts", "--cron", "0 6 * * *", "--timezone", "Europe/Berlin"),
        *("--overlap", "skip", "--jitter", "30s", "--max-runs", "9", "--note", "early", "--paused"),
    )
    assert made.stdout == "created shifts: paused\n"
    assert "it fires when one starts" in made.stderr
    assert "not started, the schedule is paused" in office.ask("schedule", "trigger", "shifts").stdout
    assert "resumed shifts: next at" in office.ask("schedule", "resume", "shifts").stdout
    assert "started schedule:shifts:trigger:1 (run " in office.ask("schedule", "trigger", "shifts").stdout
    assert "an earlier workflow still runs" in office.ask("schedule", "trigger", "shifts").stdout
    waits = office.ask("schedule", "trigger", "shifts", "--overlap", "buffer_one")
    assert "waits for the running workflow to end" in waits.stdout
    filled = office.ask(
        "schedule", "backfill", "shifts", "2026-01-01T00:00Z", "2026-01-03T00:00Z", "--overlap", "allow_all"
    )
    assert filled.stdout.splitlines()[0].startswith("started schedule:shifts:backfill:2026-01-01T05:00:00Z (run ")
    assert filled.stderr == "2 started, 0 not\n"
    assert "updated shifts: next at" in office.ask("schedule", "update", "shifts", "--every", "6h").stdout
    shown = office.ask("schedule", "describe", "shifts").stdout
    for line in (
        "every 6 h",
        "fired     3, 6 to go",
        "jitter    up to 30 s",
        "skipped   2, last because",
        "waiting   1",
    ):
        assert line in shown
    assert office.ask("schedule", "delete", "shifts").stdout == "deleted shifts\n"
    assert "shifts" in office.ask("schedule", "list", "--status", "deleted").stdout
    assert office.ask("schedule", "list").stdout == "no schedules yet\n"
    history = office.ask("schedule", "history", "shifts", "--limit", "4")
    assert [line.split()[3] for line in history.stdout.splitlines()] == [
        "Created",
        "TriggerSkipped",
        "Resumed",
        "Triggered",
    ]
    assert "more: dw schedule history shifts --after 4" in history.stderr


def test_a_schedule_that_has_had_its_runs_has_ended_and_was_not_deleted(office: Place) -> None:
    office.ask("schedule", "create", "reports.py:report", "once", '"emea"', "3", "--cron", "@yearly", "--max-runs", "1")
    assert "started schedule:once:trigger:1" in office.ask("schedule", "trigger", "once").stdout
    assert "status    ended" in office.ask("schedule", "describe", "once").stdout
    assert "once" in office.ask("schedule", "list", "--status", "ended").stdout
    last = office.ask("schedule", "history", "once").stdout.splitlines()[-1]
    assert last.split()[3:] == ["Ended", "max_runs_reached"]


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["create", "reports.py:report", "r", '"x"', "--cron", "never"], "five", 2),
        (["create", "reports.py:report", "r", '"x"', "--every", "soon"], "not a duration", 2),
        (["create", "reports.py:report", "r", '"x"', "--every", "1h", "--timezone", "Mars"], "no time zone", 2),
        (["create", "reports.py:report", "r", '"x"'], "needs --cron or --every", 2),
        (["create", "reports.py:report", "r", "--cron", "@daily"], "missing a required argument", 2),
        (["create", "reports.py:report", "there", '"x"', "--cron", "@daily"], "already", 2),
        (["create", "reports.py", "r", "--cron", "@daily"], "FILE:WORKFLOW", 2),
        (["create", "reports.py:report", "r", "x", "--cron", "@daily"], "not JSON", 2),
        (["describe", "nobody"], "there is no schedule 'nobody'", 1),
        (["trigger", "nobody"], "there is no schedule 'nobody'", 1),
        (["update", "there"], "nothing to change", 2),
        (["backfill", "there", "yesterday", "today"], "is not a time", 2),
        (["backfill", "there", "2026-01-02", "2026-01-01"], "start_time before end_time", 2),
        (["pause", "there", "--db", "missing.db"], "there is no database", 2),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], said: str, code: int, office: Place) -> None:
    office.ask("schedule", "create", "reports.py:report", "there", '"x"', "--cron", "@daily")
    assert said in mistaken(office.ask("schedule", *arguments), code)


def test_every_command_helps_with_examples(office: Place) -> None:
    from backstay.cli.schedule import command

    assert {"create", "list", "describe", "pause", "resume", "trigger", "backfill", "delete"} <= set(command.commands)
    for name in command.commands:
        assert f"dw schedule {name} " in office.ask("schedule", name, "--help").stdout + " "
