"""`dw list`, `describe`, `history`: what they show, and that they only read."""

from __future__ import annotations

import json
import re
from typing import get_args

import click
import pytest
from dw_support import Place, mistaken, until

from backstay import (
    Backstay,
    WorkflowFailed,
    activity,
    child,
    continue_as_new,
    emit,
    heartbeat,
    side_effect,
    sleep,
    version,
    workflow,
)
from backstay.cli import listing
from backstay.cli.main import dw, sections
from backstay.protocol.requests import Status


@activity(retries=2, backoff="20ms")
def flaky(times: int) -> str:
    from backstay import activity_info

    if activity_info().number <= times:
        raise ConnectionError("no [answer]\x1b[31m")
    return "done"


@activity
def beat() -> int:
    heartbeat("working", current=1, total=4, unit="rows")
    return 1


@workflow
def busy() -> list[object]:
    version("change")
    value = side_effect(lambda: 7)
    result = flaky(1)
    beat()
    sleep("20ms")
    try:
        flaky.options(retries=0)(5)
    except ConnectionError:
        return [value, result]
    return []


@workflow
def talkative() -> None:
    emit("news", "a", "b")
    emit("news", "c")


@workflow
def counted(left: int) -> str:
    if left:
        continue_as_new(counted, left - 1)
    return "zero"


@workflow
def asleep() -> None:
    sleep("1h")


@workflow
def kid(name: str) -> str:
    if name == "bad":
        raise ValueError("no")
    return name


@workflow
def family() -> None:
    kid("good")
    try:
        kid("bad")
    except ValueError:
        child.options(parent_close="terminate").step(asleep).run()


def test_history_and_describe_tell_of_children(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [family, kid, asleep]) as backstay:
        backstay.start(family, "family-1")
        until(lambda: backstay.list(type="asleep"))
        (last,) = backstay.list(type="asleep")
    told = place.ask("history", "family-1").stdout
    assert re.search(r"1  ⤷ child kid\('good'\) called as \w{26}\n", told)
    assert "✓ child kid completed → 'good'" in told
    assert "✗ child kid failed: ValueError: no" in told
    assert f"⤷ child asleep() called as {last.workflow_id} (terminate at its end)" in told
    assert "child run started" not in told
    assert f"step 3: child asleep {last.workflow_id}, for" in place.ask("describe", "family-1").stdout
    assert re.search(r"child of +family-1\n", place.ask("describe", last.workflow_id).stdout)


def test_history_is_a_timeline_in_words(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [busy, flaky, beat]) as backstay:
        backstay.execute(busy, "busy-1")
    shown = place.ask("history", "busy-1")
    assert shown.returncode == 0
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert re.match(r"busy-1  busy  run 1 \(\w{26}\), started 20", lines[0])
    assert re.search(r"0\.000 s +▶ busy\(\) started", lines[1])
    text = shown.stdout
    assert re.search(r" 1  ◆ version 1 of change 'change' taken", text)
    assert re.search(r" 2  ◆ side effect recorded → 7", text)
    assert re.search(
        r" 3  ↻ flaky attempt 1 of 3 failed in [\d.]+ ms: ConnectionError: no \[answer\].*; again in 20 ms", text
    )
    assert re.search(r" 3  ✓ flaky completed in [\d.]+ ms, [\d.]+ ms in all → 'done'", text)
    assert re.search(r" 5  ◷ timer set for 20 ms", text)
    assert re.search(r" 5  ◷ timer fired", text)
    assert re.search(r" 6  ✗ flaky failed at attempt 1 in .*ConnectionError", text)
    assert "the code caught the failure of step 6 and went on" in text
    assert re.search(r"✓ busy completed in .* → \[7, 'done'\]", lines[-1])
    assert "\x1b" not in text, "neither our colours nor what a payload holds may reach a pipe"


def test_dw_history_shows_emitted_items(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [talkative]) as backstay:
        backstay.execute(talkative, "t-1")
    told = place.ask("history", "t-1").stdout
    assert "≋ 2 items emitted to stream 'news'" in told
    assert "≋ 1 item emitted to stream 'news'" in told
    assert "side effect" not in told


def test_json_is_the_wire_form_a_line_each(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [busy, flaky, beat]) as backstay:
        backstay.execute(busy, "busy-1")
    events = [json.loads(line) for line in place.ask("history", "busy-1", "--json").stdout.splitlines()]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[1]["event_type"] == "WorkflowStarted"
    assert events[-1]["event_type"] == "WorkflowCompleted"
    assert events[0]["recorded_at"].endswith("Z")


def test_earlier_runs_are_shown_by_run_id(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [counted]) as backstay:
        assert backstay.start(counted, "count-1", 2).result(timeout=20) == "zero"
        first = backstay.list(workflow_id="count-1")[-1]
    shown = place.ask("history", "count-1", "--run", first.run_id).stdout
    assert "run 1 (" in shown
    assert "counted continued as run 2" in shown
    listed = place.ask("list", "--id", "count-1").stdout
    assert listed.count("continued") == 2
    assert "has no run" in mistaken(place.ask("history", "count-1", "--run", "nonsense"), 1)


def test_reading_never_becomes_the_engine_nor_makes_files(place: Place) -> None:
    database = place.directory / "backstay.db"
    with Backstay(database, [asleep]) as backstay:
        backstay.start(asleep, "asleep-1")
    (place.directory / "backstay.db-engine").unlink()
    for command in (("history", "asleep-1"), ("describe", "asleep-1"), ("list",)):
        assert place.ask(*command).returncode == 0
    assert not (place.directory / "backstay.db-engine").exists()


def test_an_open_run_says_what_it_waits_for(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [asleep]) as backstay:
        backstay.start(asleep, "asleep-1")
        until(lambda: backstay.describe("asleep-1").wait_kind == "timer")
        described = place.ask("describe", "asleep-1").stdout
        assert "asleep-1  asleep  waiting" in described
        assert re.search(r"waits for +step 1: timer of 1 h, due in (1 h|59 min)", described)
        assert re.search(r"liveness +timer scheduled", described)
        assert "… timer of 1 h, due in" in place.ask("history", "asleep-1").stdout


def test_describe_shows_the_last_failure_and_open_tasks(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [busy, flaky, beat]) as backstay:
        backstay.execute(busy, "busy-1")
    shown = place.ask("describe", "busy-1").stdout
    assert "busy-1  busy  completed" in shown
    assert re.search(r"last failure +flaky: ConnectionError: no \[answer\]", shown)
    with Backstay(place.directory / "backstay.db", client_only=True) as backstay:
        backstay.start(asleep, "stuck-1")
        shown = place.ask("describe", "stuck-1").stdout
        assert "no engine runs this database, so no run moves; start one" in shown
    with Backstay(place.directory / "backstay.db"):
        shown = place.ask("describe", "stuck-1").stdout
        assert "no engine runs this database" not in shown
    assert "no engine runs this database" not in place.ask("describe", "busy-1").stdout, "it has ended"
    assert re.search(r"task +workflow asleep, ready, waiting for a worker of queue 'default'", shown)


def deeper(depth: int) -> None:
    if depth == 0:
        raise LookupError("\x1b[31mnothing there")
    deeper(depth - 1)


@activity
def deep() -> None:
    deeper(6)


@workflow
def digs() -> None:
    deep()


def test_history_and_describe_show_where_an_exception_was_raised(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [digs, deep]) as backstay, pytest.raises(WorkflowFailed):
        backstay.execute(digs, "digs-1")
    folded = place.ask("history", "digs-1").stdout
    assert "... 4 more, see --traces\n" in folded
    assert re.search(r" at \S+test_cli_reading.py:\d+ in deeper\n", folded)
    assert folded.count(" in deeper\n") == 4
    whole = place.ask("history", "digs-1", "--traces").stdout
    assert 'raise LookupError("' in whole
    assert re.search(r'File "\S+", line \d+, in digs\n', whole)
    described = place.ask("describe", "digs-1").stdout
    assert "Traceback (most recent call last)" in described
    assert "RemoteTraceback" in described
    assert re.search(r'File "\S+", line \d+, in deeper\n', described)
    assert "\x1b[31m" not in whole + folded + described


def test_list_filters_and_limits(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [counted, asleep]) as backstay:
        for number in range(4):
            backstay.execute(counted, f"count-{number}", 0)
        backstay.start(asleep, "asleep-1")
        until(lambda: backstay.describe("asleep-1").status != "pending")
    assert len(place.ask("list").stdout.splitlines()) == 6
    assert len(place.ask("list", "--limit", "2").stdout.splitlines()) == 3
    assert "asleep-1" not in place.ask("list", "--status", "completed").stdout
    assert "asleep-1" in place.ask("list", "--status", "open").stdout
    assert len(place.ask("list", "--type", "counted").stdout.splitlines()) == 5
    assert place.ask("list", "--type", "nothing").stdout.strip() == "no runs match"


def listed_ids(place: Place, *options: str) -> str:
    """The ids that `dw list` shows, in their order."""
    return " ".join(line.split()[0] for line in place.ask("list", *options).stdout.splitlines()[1:])


@pytest.mark.parametrize("views", [True, False], ids=["with stored views", "without"])
def test_list_takes_any_combination_of_filters(place: Place, views: bool) -> None:
    with Backstay(place.directory / "backstay.db", [counted, asleep, busy], views=views) as backstay:
        blue = backstay.options(business_key="k-1", labels={"team": "blue", "tier": "gold"}, search={"amount": 7})
        blue.execute(counted, "blue-1", 1)
        backstay.options(labels={"team": "red"}).start(asleep, "red-1")
        backstay.options(queue="far").start(asleep, "far-1")
        backstay.start(asleep, "stops-1").terminate()
        until(lambda: backstay.list(state="sleeping", labels={"team": "red"}))
        assert [run.workflow_id for run in backstay.list(attention="no_worker")] == ["far-1"]
        assert backstay.list(queue="far", state="paused") == []
        with pytest.raises(ValueError, match="did you mean 'sleeping'"):
            backstay.list(state="sleepin")
    for options, found in (
        (("--label", "team=red"), "red-1"),
        (("--label", "team=blue", "--label", "tier=gold", "--type", "counted"), "blue-1 blue-1"),
        (("--label", "team=blue", "--label", "team=red", "--status", "open"), "red-1"),
        (("--attribute", "amount=7", "--state", "continued"), "blue-1"),
        (("--attribute", "amount=8"), ""),
        (("--business-key", "k-1", "--state", "completed"), "blue-1"),
        (("--state", "sleeping"), "red-1"),
        (("--status", "terminated"), "stops-1"),
        (("--status", "cancelled"), ""),
        (("--queue", "far"), "far-1"),
        (("--search", "st"), "stops-1"),
        (("--since", "1h", "--type", "asleep"), "stops-1 far-1 red-1"),
        (("--until", "1h"), ""),
        (("--closed-since", "1h", "--sort", "closed", "--type", "asleep"), "stops-1"),
        (("--type", "asleep", "--reverse"), "red-1 far-1 stops-1"),
        (("--view", "system:terminated"), "stops-1"),
    ):
        assert listed_ids(place, *options) == found, options
    assert place.ask("list", "--count", "--status", "open").stdout.strip() == "2"
    by = [line.split() for line in place.ask("list", "--by", "status").stdout.splitlines()[1:]]
    assert ["completed", "2"] in by
    assert ["terminated", "1"] in by
    assert "until" in place.ask("list", "--state", "sleeping", "--why").stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--state", "sleepin"), "did you mean 'sleeping'?"),
        (("--attention", "blockd"), "did you mean 'blocked'?"),
        (("--sort", "closd"), "did you mean 'closed'?"),
        (("--by", "statte"), "did you mean 'state'?"),
        (("--label", "team"), "--label is KEY=VALUE"),
        (("--since", "yesterday"), "a time like"),
        (("--since", "1h", "--until", "2h"), "nothing can match"),
        (("--view", "gone"), "there is no saved view 'gone'"),
    ],
)
def test_list_says_what_is_wrong_with_a_filter(place: Place, options: tuple[str, ...], told: str) -> None:
    with Backstay(place.directory / "backstay.db", [counted]):
        pass
    assert told in mistaken(place.ask("list", *options))


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 160])
def test_ids_are_never_folded_or_cut(place: Place, columns: int) -> None:
    with Backstay(place.directory / "backstay.db", [counted]) as backstay:
        made = backstay.start(counted, None, 0).id
        long = "a-rather-long-id-of-some-order-that-somebody-made-up"
        backstay.start(counted, long, 0)
    lines = place.ask("list", COLUMNS=str(columns), FORCE_COLOR="1", TTY_COMPATIBLE="1").stdout.splitlines()
    shown = [re.sub("\x1b\\[[0-9;]*m", "", line).split() for line in lines]
    assert [line[:3] for line in shown] == [
        ["ID", "TYPE", "STATUS"],
        [long, "counted", "completed"],
        [made, "counted", "completed"],
    ]
    assert ("RUN" in shown[0]) == (columns >= 160)


def test_every_status_can_be_listed() -> None:
    assert get_args(Status) == listing.STATUSES


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("history", "x"), 2, "there is no database backstay.db"),
        (("describe", "x", "--db", "gone/x.db"), 2, "there is no database gone/x.db"),
        (("list", "--db", "shop.py"), 2, "not a"),
        (("list", "--db", "."), 2, "is a directory"),
        (("repair", "x"), 2, "there is no database"),
        (("list", "--status", "sad"), 2, "'sad' is not one of"),
        (("list", "--limit", "0"), 2, "0 is not in the range"),
        (("list", "--colour"), 2, "No such option"),
        (("history",), 2, "Missing argument 'ID'"),
        (("fly",), 2, "No such command 'fly'"),
    ],
)
def test_mistakes_are_told_in_one_line(place: Place, arguments: tuple[str, ...], code: int, says: str) -> None:
    assert says in mistaken(place.ask(*arguments), code)
    assert not (place.directory / "backstay.db").exists()


def test_a_command_about_an_unknown_workflow_ends_with_exit_code_1(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [counted]):
        pass
    for command in ("history", "describe", "repair"):
        assert "there is no workflow 'nobody'" in mistaken(place.ask(command, "nobody"), 1)
    assert "no runs yet" in place.ask("list").stdout


def test_a_command_that_cannot_be_read_is_named(place: Place) -> None:
    import sqlite3

    path = place.directory / "backstay.db"
    with Backstay(path, [counted]) as backstay:
        backstay.execute(counted, "count-1", 0)
    with sqlite3.connect(path) as connection:
        connection.execute("update command set body = x'00'")
    connection.close()
    described = place.ask("describe", "count-1").stdout
    assert "count-1  counted  completed" in described
    assert "start command 1 (unreadable-1) cannot be read: JSON is malformed" in described
    with Backstay(path, [counted]) as backstay:
        assert [command.status for command in backstay.describe("count-1").commands] == ["unreadable"]


def test_a_database_of_another_program_is_left_alone(place: Place) -> None:
    import sqlite3

    connection = sqlite3.connect(place.directory / "theirs.db")
    connection.execute("create table t (x)")
    connection.commit()
    connection.close()
    assert "belongs to another program" in mistaken(place.ask("list", "--db", "theirs.db"))


def test_the_database_is_named_by_option_or_environment(place: Place) -> None:
    with Backstay(place.directory / "other.db", [counted]) as backstay:
        backstay.execute(counted, "count-1", 0)
    assert "count-1" in place.ask("list", "--db", "other.db").stdout
    assert "count-1" in place.ask("list", DW_DB="other.db").stdout


def test_help_has_examples_and_version_is_known(place: Place) -> None:
    from backstay import __version__

    for command in dw.list_commands(click.Context(dw)):
        shown = place.ask(command, "--help")
        assert shown.returncode == 0
        assert f"dw {command}" in shown.stdout, "an example"
    assert place.ask("--version").stdout.strip().endswith(__version__)
    assert place.ask().returncode == 0
    assert "dw dev shop.py" in place.ask().stdout


@pytest.mark.contract("EXPORT-01")
def test_an_export_of_a_file_is_what_the_app_exports(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [counted]) as app:
        app.execute(counted, "count-1", 1)
        exported = app.handle(counted, "count-1").export()
        first = app.list(workflow_id="count-1")[-1].run_id
    assert place.ask("export", "count-1", "-o", "c.json").stdout == ""
    for text in ((place.directory / "c.json").read_text(), place.ask("export", "count-1").stdout):
        again = json.loads(text)
        for name in exported.keys() - {"exported_at", "integrity", "selected_run"}:
            assert again[name] == exported[name], name
    earlier = json.loads(place.ask("export", "count-1", "--run", first).stdout)
    assert (earlier["workflow"]["run_number"], earlier["history_events"][-1]["type"]) == (1, "WorkflowContinuedAsNew")
    assert "nobody" in mistaken(place.ask("export", "nobody"), 1)
    assert "nonsense" in mistaken(place.ask("export", "count-1", "--run", "nonsense"), 1)


def test_help_has_every_command_once_in_a_section_and_cuts_no_summary(place: Place) -> None:
    named = [name for names in sections().values() for name in names]
    assert sorted(named) == sorted(name for name in dw.list_commands(click.Context(dw)) if ":" not in name)
    assert "cancel" in named
    shown = place.ask("--help").stdout
    assert "..." not in shown.partition("Run and develop:")[2]
    for title, names in sections().items():
        part = shown.partition(f"{title}:")[2].partition("\n\n")[0]
        assert all(re.search(rf"^  {name}  ", part, re.M) for name in names), title


def test_a_module_in_place_of_a_file_is_told_its_file(place: Place) -> None:
    (place.directory / "app").mkdir()
    (place.directory / "app" / "flows.py").write_text("")
    said = mistaken(place.ask("worker", "app.flows", "--server", "http://127.0.0.1:1"))
    assert "there is no file app.flows; it takes a file, so write app/flows.py" in said
