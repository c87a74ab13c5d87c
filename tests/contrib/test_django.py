"""Backstay in a real Django project: the example, as its own processes, from an empty folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay import Backstay
from tests.selection import rotating

EXAMPLE = Path(__file__).parents[2] / "examples" / "django_shop"
DEADLINE = 60.0


class Project:
    """A copy of the example, and its `manage.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
        self.flows = folder / "flows.db"
        self.environment = {**os.environ, "SHOP_DATA": str(folder), "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}

    def manage(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.manage("shell", "--command", code)

    @contextmanager
    def running(self, *words: str) -> Generator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "manage.py", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "project")
    done = made.manage("migrate", "--verbosity", "0")
    assert done.returncode == 0, done.stderr
    return made


def awaited(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it has not come")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_an_order_is_started_with_its_commit_and_done_by_the_worker(project: Project) -> None:
    port = free_port()
    with (
        project.running("runserver", "--noreload", str(port)),
        project.running("backstay_worker") as worker,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        assert worker.stdout is not None
        assert worker.stdout.readline() == f"works for {project.flows}, queue default\n"

        def created() -> httpx.Response | None:
            try:
                return http.post("/orders", data={"customer": "ada"})
            except httpx.ConnectError:
                return None

        answer = awaited(created)
        assert (answer.status_code, answer.json()) == (202, {"id": 1})
        awaited(lambda: http.get("/orders/1").json()["workflow"] == "completed")
        assert http.get("/orders/1").json() == {"customer": "ada", "state": "confirmed", "workflow": "completed"}
        assert http.get("/orders/2").status_code == 404
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE) == 0


@pytest.mark.parametrize(
    "command", rotating([["check"], ["migrate"], ["showmigrations"], ["shell", "--command", "1"]], 1)
)
def test_a_command_that_needs_no_workflow_opens_nothing(project: Project, command: list[str]) -> None:
    done = project.manage(*command)
    assert done.returncode == 0, done.stderr
    assert not project.flows.exists()


def test_tests_neither_open_nor_run_the_workflows_of_the_project(project: Project) -> None:
    with Backstay(project.flows, client_only=True) as app:
        app.start("shop.order", "order-1", 1)
    before = project.flows.read_bytes()
    done = project.manage("test")
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr
    assert project.flows.read_bytes() == before
    with Backstay(project.flows, client_only=True) as app:
        assert app.describe("order-1").status == "pending"


def test_a_test_that_would_reach_the_workflows_of_the_project_is_told_so(project: Project) -> None:
    tests = project.folder / "shop" / "tests.py"
    tests.write_text(tests.read_text().replace("with testing() as backstay:", "if backstay := __import__('backstay'):"))
    done = project.manage("test")
    assert done.returncode == 1
    assert "put the test into `with testing():`" in done.stderr
    assert not project.flows.exists()


def test_a_transaction_that_is_rolled_back_starts_nothing(project: Project) -> None:
    done = project.python(
        """
from django.db import transaction
from backstay import RequestRefused
from backstay.contrib.django import client, start_on_commit
from shop.flows import order

class Stop(Exception): ...

try:
    with transaction.atomic():
        start_on_commit(order, "rolled-back", 1)
        raise Stop
except Stop:
    pass
try:
    with transaction.atomic():
        start_on_commit(order, "wrong", "no", "such", "arguments")
except TypeError as error:
    print("refused in the transaction:", error)
try:
    with transaction.atomic():
        start_on_commit(order, "no such id", 1)
except RequestRefused as error:
    print("refused in the transaction:", error)
with transaction.atomic():
    start_on_commit(order, "committed", 1)
    start_on_commit(order, "committed", 1)
    print("before the commit:", [run.workflow_id for run in client().list()])
start_on_commit(order, "at-once", 1)
print("after it:", sorted(run.workflow_id for run in client().list()))
"""
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[-4:-2]] == ["refused in the transaction"] * 2
    assert lines[-2:] == ["before the commit: []", "after it: ['at-once', 'committed']"]


def test_the_transaction_of_another_database_counts_if_the_default_one_has_none(project: Project) -> None:
    with (project.folder / "project" / "settings.py").open("a") as settings:
        settings.write('\nDATABASES["archive"] = DATABASES["default"] | {"NAME": DATA / "archive.db"}\n')
    done = project.python(
        """
from django.db import transaction
from backstay.contrib.django import client, start_on_commit
from shop.flows import order

class Stop(Exception): ...

try:
    with transaction.atomic(using="archive"):
        start_on_commit(order, "rolled-back", 1)
        raise Stop
except Stop:
    pass
with transaction.atomic(using="archive"):
    start_on_commit(order, "archived", 1)
    with transaction.atomic():
        start_on_commit(order, "of-the-default", 1)
    print("before the commit:", [run.workflow_id for run in client().list()])
print("after it:", sorted(run.workflow_id for run in client().list()))
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "before the commit: ['of-the-default']",
        "after it: ['archived', 'of-the-default']",
    ]


def test_a_process_that_was_forked_before_opens_its_own_and_one_after_is_told(project: Project) -> None:
    done = project.python(
        """
import os
from backstay import ForkedEngine
from backstay.contrib.django import client
from shop.flows import order

def fork(child):
    if not (pid := os.fork()):
        child()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def refused():
    try:
        client()
    except ForkedEngine:
        print("refused", flush=True)

fork(lambda: client().start(order, "of-the-child", 1))
client().start(order, "of-the-parent", 1)
fork(refused)
print(sorted(run.workflow_id for run in client().list()))
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["refused", "['of-the-child', 'of-the-parent']"]


@pytest.mark.parametrize(
    ("setting", "said"),
    rotating(
        [
            ("{}", "names a DATABASE or a SERVER"),
            ('{"DATABASE": "a", "SERVER": "b"}', "names a DATABASE or a SERVER"),
            ('{"DATABSE": "a"}', "BACKSTAY has no key 'DATABSE'"),
            ('{"DATABASE": "a", "MODULES": []}', "no app of INSTALLED_APPS has a module `flows`"),
        ],
        1,
    ),
)
def test_a_wrong_setting_is_named(project: Project, setting: str, said: str) -> None:
    with (project.folder / "project" / "settings.py").open("a") as settings:
        settings.write(f"\nBACKSTAY = {setting}\n")
    done = project.manage("backstay_worker")
    assert done.returncode == 1
    assert said in done.stderr
