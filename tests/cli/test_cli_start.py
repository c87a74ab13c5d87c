"""`dw start` and `dw repair`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from dw_support import Place, mistaken, until

from backstay import Backstay, sleep, workflow
from backstay.cli.loading import load


def test_a_start_is_on_disk_and_runs_when_an_engine_comes(place: Place) -> None:
    started = place.dw("start", "shop.py:order", "order-1", '{"sku": "book"}')
    assert started.returncode == 0
    assert started.stdout.startswith("started order-1 (run ")
    assert "no engine runs this database now" in started.stderr
    assert "pending" in place.ask("list").stdout
    dev = place.dev("shop.py")
    dev.wait("1 open runs go on")
    dev.wait("order-1  order completed")


def test_wait_runs_it_here_when_no_other_process_does(place: Place) -> None:
    done = place.dw("start", "shop.py:order", "order-1", '{"sku": "book", "cents": 1}', "--wait")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == "receipt for book, book from Delft"
    assert "running it here" in done.stderr


def test_wait_beside_an_engine_waits_for_it(place: Place) -> None:
    dev = place.dev("shop.py")
    dev.wait("ready")
    done = place.dw("start", "shop.py:nap", "nap-1", "0.2", "--wait")
    assert json.loads(done.stdout) == "awake"
    assert "running it here" not in done.stderr
    dev.wait("nap-1  nap completed")


def test_a_failed_workflow_is_exit_code_1(place: Place) -> None:
    done = place.dw("start", "shop.py:declined", "d-1", '"no money"', "--wait")
    assert done.returncode == 1
    assert "workflow 'd-1' failed: shop.CardDeclined: no money" in done.stderr
    assert done.stderr.count("Traceback") == 1  # of the workflow's own code
    assert "raise CardDeclined(why)" in done.stderr


def test_workflows_are_found_by_name_and_by_type(place: Place) -> None:
    assert place.dw("start", "shop.py:decline", "d-1", '"x"').returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("shop.py", "x"), "write FILE:WORKFLOW"),
        (("gone.py:order", "x"), "there is no file gone.py"),
        (("shop.py:refund", "x"), "has no workflow 'refund'; it has: declined, nap, order"),
        (("shop.py:order", "x", "book"), "argument 1 is not JSON: 'book'; text needs quotes"),
        (("shop.py:order", "x"), "order(): missing a required argument: "),
        (("shop.py:order", "x", "1", "2"), "order(): too many positional arguments"),
        (("shop.py:nap", "x", '"long"'), "nap(): argument "),
        (("shop.py:nap", "not an id!", "1"), "a workflow id is 1 to 191 characters"),
        (("broken.py:x", "x"), "broken.py:2: SyntaxError"),
        (("notes.txt:x", "x"), "is not a Python file"),
        (("json.py:x", "x"), "rename it"),
    ],
)
def test_mistakes_start_nothing(place: Place, arguments: tuple[str, ...], says: str) -> None:
    place.write("broken.py", "\ndef (:\n")
    place.write("notes.txt", "")
    place.write("json.py", "")
    done = place.dw("start", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (place.directory / "backstay.db").exists() or "no runs yet" in place.ask("list").stdout


def test_an_id_is_used_once(place: Place) -> None:
    assert place.dw("start", "shop.py:nap", "nap-1", "0").returncode == 0
    assert "has already been started" in mistaken(place.dw("start", "shop.py:nap", "nap-1", "0"))


@workflow(type="shifting")
def before() -> None:
    sleep("1500ms")


@workflow(type="shifting")
def after() -> None:
    from backstay import side_effect

    side_effect(lambda: 1)
    sleep("1500ms")


def test_a_blocked_run_is_explained_and_repaired(place: Place) -> None:
    database = place.directory / "backstay.db"
    with Backstay(database, [before]) as backstay:
        backstay.start(before, "shift-1")
        until(lambda: backstay.describe("shift-1").wait_kind == "timer")
    assert place.ask("repair", "shift-1").stdout.strip() == "shift-1: nothing to repair"
    with Backstay(database, [after]) as backstay:
        until(lambda: backstay.describe("shift-1").liveness_state == "workflow_replay_blocked")
    shown = place.ask("describe", "shift-1").stdout
    assert "replay_blocked" in shown
    assert "blocked: replay diverged at step 1" in shown
    assert "history has" in shown
    assert "the code asked for" in shown
    assert "dw repair shift-1" in shown
    assert "blocked" in place.ask("list").stdout
    repaired = place.ask("repair", "shift-1")
    assert repaired.stdout.strip() == "shift-1: tasks 1 tried again"
    assert "no engine runs this database now" in repaired.stderr


def test_loading_finds_everything_that_can_be_registered(place: Place) -> None:
    place.write(
        "catalogue.py",
        """
from backstay import Types, activity, workflow, WorkflowFailed
import asyncio

class Mine(Exception): ...

@activity(queue="slow")
def plain() -> None: ...

@activity(extern=True)
def elsewhere() -> None: ...

class Tools:
    @activity
    def use(self) -> None: ...

class Unused:
    @activity
    def use(self) -> None: ...

tools = Tools()
use = Tools.use

@workflow
def one() -> None: ...

@workflow(type="second")
class Two:
    def handle(self) -> None: ...

again = one
types = Types(workflows={"first": one})
""",
    )
    program = load(place.directory / "catalogue.py")
    assert set(program.workflows) == {"one", "second"}
    assert program.activities == ["plain", "Tools.use"]
    assert program.queues == {"default", "slow"}
    assert program.types is not None
    assert [thing for thing in program.things if isinstance(thing, type) and issubclass(thing, Exception)] == [
        next(t for t in program.things if getattr(t, "__name__", "") == "Mine")
    ]
    assert len(program.hints) == 1
    assert "Unused has activity methods but no instance" in program.hints[0]


def test_a_negative_number_is_an_argument_and_an_unknown_option_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from backstay import workflow\n\n\n@workflow\ndef negate(n: int) -> int:\n    return -n\n"
    )
    dw = [sys.executable, "-m", "backstay.cli.main"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60, "check": False}
    done = subprocess.run([*dw, "start", "app.py:negate", "n", "-5", "--wait"], **options)
    assert (done.returncode, done.stdout.strip()) == (0, "5"), done.stderr
    wrong = subprocess.run([*dw, "start", "app.py:negate", "n", "5", "--wiat"], **options)
    assert wrong.returncode == 2
    assert "no option --wiat" in wrong.stderr
