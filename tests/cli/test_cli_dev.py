"""`dw dev`: a file runs, reloads on every save without losing anything, and says what is wrong with itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from dw_support import NAP, SHOP, Place, mistaken, until

from backstay import Backstay


def test_dw_dev_runs_the_workflows_of_a_file_and_prints_their_events(place: Place) -> None:
    dev = place.dev("shop.py")
    dev.wait("shop.py  on  backstay.db")
    assert dev.wait("workflows").split()[1:] == ["order,", "nap,", "decline"]
    assert dev.wait("activities").split()[1:] == ["charge,", "Warehouse.ship"]
    dev.wait("ready; start one with: dw start shop.py:order")
    assert place.dw("start", "shop.py:order", "order-1", '{"sku": "book"}').stderr == ""
    dev.wait("▶ order-1  order started")
    failed = dev.wait("↻ order-1  charge attempt 1 of 4 failed in")
    assert failed.endswith("ConnectionError: terminal [offline]; again in 100 ms")
    dev.wait("✓ order-1  order completed in")
    place.dw("start", "shop.py:declined", "d-1", '"no money"')
    dev.wait("✗ d-1  decline failed after")
    dev.wait("Traceback (most recent call last)")
    dev.wait("CardDeclined: no money")
    told = len(dev.lines)
    assert dev.interrupt() == 0
    dev.close()
    assert not any("Traceback" in line for line in dev.lines[told:])


def test_a_save_reloads_and_open_runs_go_on(place: Place) -> None:
    file = place.write("nap.py", NAP)
    dev = place.dev("nap.py")
    dev.wait("ready")
    place.dw("start", "nap.py:nap", "nap-1")
    dev.wait("nap-1  timer set for 1.5 s")
    file.write_text(NAP.replace('"done"', '"new"'))
    dev.wait("nap.py was saved; reloading")
    dev.wait("1 open runs go on")
    dev.wait("✓ nap-1  nap completed in")
    shown = place.ask("history", "nap-1").stdout
    assert "'new'" in shown


COMMANDING = """
import logging
from backstay import workflow

@workflow(type="in \\x1b]0;title\\x07\\u202e")
def order() -> str:
    logging.getLogger("shop").warning("\\x1b[2J cleared %s", "\\x9b31m")
    raise ValueError("\\x1b[31m")
"""


def test_no_text_of_a_run_commands_the_terminal(place: Place) -> None:
    place.write("app.py", COMMANDING)
    dev = place.dev("app.py")
    dev.wait("ready")
    place.dw("start", "app.py:order", "order-1")
    dev.wait(" [2J cleared  31m")
    dev.wait("✗ order-1  in  ]0;title")
    asked = [place.ask(*words) for words in (("list",), ("describe", "order-1"), ("why", "order-1"), ("overview",))]
    shown = "\n".join(
        (*dev.lines, *(done.stdout for done in asked), place.ask("history", "order-1", "--traces").stdout)
    )
    assert "title" in shown
    assert [c for c in shown if not c.isprintable() and c != "\n"] == []


SAVES_ITSELF = """
from pathlib import Path

file = Path(__file__)
if "# saved" not in file.read_text().splitlines()[-1]:
    file.write_text(file.read_text() + "# saved\\n")
"""


def test_a_save_while_the_file_is_imported_reloads_it(place: Place) -> None:
    place.write("itself.py", SAVES_ITSELF + NAP)
    dev = place.dev("itself.py")
    dev.wait("itself.py was saved; reloading")
    dev.wait("ready")


STEPS = """
from backstay import activity, sleep, workflow

@activity
def step(n: int) -> int:
    return n

@workflow
def walk() -> str:
    for n in range(5):
        step(n)
    sleep("1500ms")
    return "{text}"
"""


def test_steps_that_were_taken_before_a_reload_are_no_news(place: Place) -> None:
    file = place.write("walk.py", STEPS.format(text="old"))
    dev = place.dev("walk.py")
    dev.wait("ready")
    place.dw("start", "walk.py:walk", "w-1")
    dev.wait("w-1  timer set for 1.5 s")
    file.write_text(STEPS.format(text="new"))
    dev.wait("walk.py was saved; reloading")
    dev.wait("✓ w-1  walk completed in")
    assert sum("▸ w-1  step" in line for line in dev.lines) == 5
    assert sum("w-1  timer set" in line for line in dev.lines) == 1


def test_a_module_beside_it_reloads_it_too(place: Place) -> None:
    helper = place.write("helper.py", "TEXT = 'one'\n")
    place.write(
        "app.py", "import helper\nfrom backstay import workflow\n@workflow\ndef f() -> str:\n    return helper.TEXT\n"
    )
    dev = place.dev("app.py")
    dev.wait("ready")
    helper.write_text("TEXT = 'two, longer'\n")
    dev.wait("helper.py was saved; reloading")
    dev.wait("ready")
    assert "two, longer" in place.dw("start", "app.py:f", "f-1", "--wait").stdout


def test_dw_dev_prints_an_error_of_the_file_and_goes_on_after_the_next_save(place: Place) -> None:
    mistakes = [
        ("from backstay import workflow\n\ndef (:\n", "app.py:3: SyntaxError"),
        ("import os\nimport no_such_module\n", "app.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("\n\n1 / 0\n", "app.py:3: ZeroDivisionError: division by zero"),
        ("from backstay import workflow\n\n\n@workflow\ndef f():\n    yield 1\n", "app.py:4: workflow f uses `yield`"),
        (
            "from backstay import activity\n@activity(type='a')\ndef f(): ...\n@activity(type='a')\ndef g(): ...\n",
            "app.py: activity type 'a' is claimed by f and by g",
        ),
        ("import sys\nsys.exit(3)\n", "app.py exits while it is imported"),
    ]
    file = place.write("app.py", mistakes[0][0])
    dev = place.dev("app.py")
    for text, says in mistakes:
        if text != mistakes[0][0]:
            file.write_text(text)
            dev.wait("was saved; reloading")
        dev.wait(says)
        dev.wait("waiting for the next save")
    file.write_text(SHOP)
    dev.wait("was saved; reloading")
    dev.wait("ready")
    assert dev.interrupt() == 0
    dev.close()
    assert not any("Traceback" in line for line in dev.lines)


def test_doubtful_code_is_warned_about(place: Place) -> None:
    place.write(
        "app.py", "import time\nfrom backstay import workflow\n@workflow\ndef f() -> float:\n    return time.time()\n"
    )
    dev = place.dev("app.py")
    assert "app.py:5" in dev.wait("warning: ")
    dev.wait("ready")


def test_a_run_that_no_longer_fits_is_shown_side_by_side_and_tried_again_after_a_fix(place: Place) -> None:
    wrong = NAP.replace("    sleep(", "    say('first')\n    sleep(")
    file = place.write("nap.py", NAP)
    dev = place.dev("nap.py")
    dev.wait("ready")
    place.dw("start", "nap.py:nap", "nap-1")
    dev.wait("nap-1  timer set for")
    file.write_text(wrong)
    dev.wait("reloading")
    dev.wait("■ nap-1  is blocked: replay diverged at step 1: history has timer, the code asked for activity say")
    dev.wait("history has")
    assert "activity say" in dev.wait("1: timer")
    file.write_text(NAP + "\n# fixed\n")
    dev.wait("reloading")
    dev.wait("✓ nap-1  nap completed")


def test_a_killed_worker_is_started_again(place: Place) -> None:
    dev = place.dev("shop.py")
    dev.wait("ready")
    place.dw("start", "shop.py:nap", "nap-1", "2.5")
    dev.wait("nap-1  timer set for 2.5 s")
    os.kill(dev.worker(), signal.SIGKILL)
    dev.wait("SIGKILL")
    if "at once" in dev.lines[-1]:
        (place.directory / "shop.py").touch()
    dev.wait("ready")
    dev.wait("✓ nap-1  nap completed in")


def test_a_second_one_waits_for_the_first_to_end(place: Place) -> None:
    first = place.dev("shop.py")
    first.wait("ready")
    second = place.dev("shop.py")
    second.wait("is the engine of this database")
    assert first.interrupt() == 0
    second.wait("the other engine is gone; this one has taken over")
    place.dw("start", "shop.py:nap", "nap-1", "0")
    second.wait("✓ nap-1  nap completed")


def test_logs_of_workflows_stand_in_the_stream(place: Place) -> None:
    place.write(
        "app.py",
        "from backstay import logger, workflow\n@workflow\ndef f() -> None:\n    logger().info('hello from %s', 'f')\n",
    )
    dev = place.dev("app.py", "--db", "app.db")
    dev.wait("ready")
    place.dw("start", "app.py:f", "f-1", "--db", "app.db")
    assert "f-1" in dev.wait("hello from f")


def test_mistakes(place: Place) -> None:
    assert "there is no file gone.py" in mistaken(place.dw("dev", "gone.py"))
    assert "does not exist" in mistaken(place.dw("dev", "shop.py", "--db", "gone/x.db"))
    assert "is not a Python file" in mistaken(place.dw("dev", "."))


def test_a_stop_that_arrives_while_a_file_is_stuck_still_stops(place: Place) -> None:
    place.write("app.py", "print('stuck', flush=True)\nwhile True: pass\n")
    dev = place.dev("app.py")
    dev.wait("stuck")
    assert dev.interrupt() == 0


def test_dw_dev_leaves_no_process_running(place: Place) -> None:
    dev = place.dev("shop.py")
    dev.wait("ready")
    worker = dev.worker()
    dev.process.kill()  # not even a chance to stop its child
    dev.process.wait()
    until(lambda: not Path(f"/proc/{worker}").exists())
    with Backstay(place.directory / "backstay.db") as backstay:
        assert backstay.is_engine
