"""`dw` with a server in place of a database: a worker of its own process, and every command that talks to workflows."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..interop.conftest import TOKEN, Running

DW = (sys.executable, "-P", "-m", "backstay.cli.main")

EXPENSE = """
from backstay import activity, query, signal, update, wait, workflow


@activity
def pay(cents: int) -> str:
    return f"paid {cents}"


@workflow
class Expense:
    by = ""
    cents = 0

    @signal
    def approve(self, by: str) -> None:
        self.by = by

    @query
    def status(self) -> str:
        return self.by or "waiting"

    @update
    def amend(self, cents: int) -> int:
        self.cents = cents
        return cents

    @amend.validator
    def _check(self, cents: int) -> None:
        if cents < 0:
            raise ValueError("negative")

    def handle(self, cents: int) -> str:
        self.cents = cents
        wait(lambda: self.by, key="approved")
        return f"{pay(self.cents)} for {self.by}"
"""


NAP = """
import time
from backstay import workflow

@workflow
def nap() -> None:
    time.sleep(1)

@workflow
def doze() -> None:
    time.sleep(1)
"""


class Shop:
    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url

    def dw(self, *arguments: str, token: str = TOKEN, code: int = 0) -> str:
        done = subprocess.run(
            [*DW, *arguments, "--server", self.url, "--token", token],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout + done.stderr


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    (tmp_path / "expense.py").write_text(EXPENSE)
    running = Running(tmp_path / "expense.db")
    try:
        yield Shop(tmp_path, running.url)
    finally:
        running.stop()


def test_a_worker_says_what_is_doubtful_about_its_file(shop: Shop) -> None:
    (shop.directory / "nap.py").write_text(NAP)
    worker = subprocess.Popen(
        [*DW, "worker", "nap.py", "--server", shop.url, "--token", TOKEN],
        cwd=shop.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    try:
        assert "works for" in worker.stdout.readline()
    finally:
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=30)
    assert worker.returncode == 0
    warnings = [line for line in said.splitlines() if " WARNING backstay.worker: nap.py:" in line]
    assert len(warnings) == 2, said
    assert "nap.py:7: " in warnings[0]
    assert "time.sleep" in warnings[0]


def test_a_worker_and_every_command_over_a_server(shop: Shop) -> None:
    worker = subprocess.Popen(
        [*DW, "worker", "expense.py", "--server", shop.url, "--token", TOKEN],
        cwd=shop.directory,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    try:
        assert "works for" in worker.stdout.readline()
        assert "started e-1" in shop.dw("start", "expense.py:Expense", "e-1", "100")
        assert "e-1" in shop.dw("list", "--status", "open")
        assert shop.dw("query", "e-1", "status").strip() == '"waiting"'
        assert "250" in shop.dw("update", "e-1", "amend", "250")
        assert "negative" in shop.dw("update", "e-1", "amend", "-1", code=2)
        assert "waits for" in shop.dw("describe", "e-1")
        assert "1 open run: 1 fit, 0 would be blocked" in shop.dw("verdict", "--app", "expense.py")
        (shop.directory / "new.py").write_text(EXPENSE.replace("        wait(", "        pay(1)\n        wait("))
        told = shop.dw("verdict", "--app", "new.py", code=1)
        assert "1 run of Expense would be blocked, for example e-1: replay diverged at step 1" in told
        assert "accepted" in shop.dw("signal", "e-1", "approve", '"ann"')
        assert "paid 250 for ann" in shop.dw("history", "e-1", "--follow")
        shop.dw("start", "expense.py:Expense", "e-2", "1")
        assert "cancelled" in shop.dw("cancel", "e-2")
        assert "e-2" in shop.dw("list", "--id", "e-2")
        assert "created monthly" in shop.dw(
            "schedule", "create", "expense.py:Expense", "monthly", "9", "--cron", "@monthly"
        )
        assert "monthly" in shop.dw("schedule", "list")
        assert "schedule:monthly" in shop.dw("schedule", "trigger", "monthly")
        assert "on queue default" in shop.dw("schedule", "describe", "monthly")
        assert "Triggered" in shop.dw("schedule", "history", "monthly")
        assert "deleted monthly" in shop.dw("schedule", "delete", "monthly")
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        worker.stdout.close()


def test_tokens_are_made_by_the_server_that_is_named(shop: Shop) -> None:
    made = shop.dw("token", "create", "--role", "worker", "--note", "billing").splitlines()
    id = made[1].split()[0]
    assert made[1] == f"{id} (worker); shown once:"
    assert f"{id}  worker" in shop.dw("token", "list")
    assert f'"token_id":"{id}"' in shop.dw("token", "list", "--json")
    assert "role" in shop.dw("token", "list", token=made[0], code=2)
    assert shop.dw("token", "revoke", id) == f"{id}: revoked\n"
    assert "there is no token" in shop.dw("token", "revoke", "nobody", code=1)
    assert not (shop.directory / "backstay.db").exists()


def test_a_server_that_is_not_there_is_waited_for_with_a_word(shop: Shop) -> None:
    shop.url = "http://127.0.0.1:9"
    said = shop.dw("list", code=2).splitlines()
    assert said[0] == "still waiting for an answer from http://127.0.0.1:9; Ctrl-C stops"
    assert "no Backstay server at http://127.0.0.1:9" in said[1]


def test_mistakes_are_said_in_one_line(shop: Shop) -> None:
    assert "token" in shop.dw("list", token="wrong", code=2)
    assert "no workflow 'x'" in shop.dw("describe", "x", code=1)
    said = shop.dw("list", "--db", "a.db", code=2)
    assert "not both" in said


def test_lists_of_a_server_take_filters_and_saved_views(shop: Shop) -> None:
    for number in range(3):
        shop.dw("start", "expense.py:Expense", f"exp-{number}", "100")
    shop.dw("terminate", "exp-0")
    assert "exp-1" in shop.dw("list", "--state", "ready", "--attention", "no_worker")
    assert "no runs match" in shop.dw("list", "--state", "sleeping")
    assert "exp-0" not in shop.dw("list", "--view", "system:running")
    assert shop.dw("list", "--view", "system:running", "--count").strip() == "2"
    assert "No live worker" in shop.dw("list", "--search", "exp-1", "--why")
    assert "there is no saved view 'gone'" in shop.dw("list", "--view", "gone", code=2)
