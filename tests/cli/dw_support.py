"""A directory with a shop in it, `dw` run in it, and a running `dw dev` whose output can be waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

DW = (sys.executable, "-P", "-m", "backstay.cli.main")
IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$0" "$@"')
"""As a script starts a program with `&`: with Ctrl-C ignored, which a program that needs it does not take over."""

PATIENCE = 20.0  # seconds until something that should happen counts as never

SHOP = """
from dataclasses import dataclass

from backstay import activity, activity_info, sleep, workflow


class CardDeclined(Exception):
    pass


@dataclass
class Order:
    sku: str
    cents: int = 4200


@activity(retries=3, backoff="100ms")
def charge(order: Order) -> str:
    if activity_info().number == 1:
        raise ConnectionError("terminal [offline]")
    return f"receipt for {order.sku}"


class Warehouse:
    def __init__(self, city: str) -> None:
        self.city = city

    @activity(queue="warehouse")
    def ship(self, sku: str) -> str:
        return f"{sku} from {self.city}"


warehouse = Warehouse("Delft")


@workflow
def order(order: Order) -> str:
    receipt = charge(order)
    sleep("50ms")
    return f"{receipt}, {Warehouse.ship(order.sku)}"


@workflow
def nap(seconds: float) -> str:
    sleep(seconds)
    return "awake"


@workflow(type="decline")
def declined(why: str) -> None:
    raise CardDeclined(why)
"""

NAP = """
from backstay import activity, sleep, workflow

@activity
def say(text: str) -> str:
    return text

@workflow
def nap() -> str:
    sleep("1500ms")
    return say("done")
"""


class Dev:
    """A running `dw dev`."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [*IN_THE_BACKGROUND, *DW, "dev", *arguments],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment() | environment,
        )
        self.lines: list[str] = []
        self._read = 0
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def wait_for_all(self, *texts: str) -> None:
        """Wait for lines with these texts, which two processes print in any order."""
        begin, last = self._read, self._read
        for text in texts:
            self._read = begin
            self.wait(text)
            last = max(last, self._read)
        self._read = last

    def wait(self, text: str) -> str:
        """The next line with this text, behind the last one waited for."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for index in range(self._read, len(self.lines)):
                if text in self.lines[index]:
                    self._read = index + 1
                    return self.lines[index]
            time.sleep(0.02)
        raise AssertionError(f"{text!r} was not printed; printed was:\n" + "\n".join(self.lines))

    def worker(self) -> int:
        """The pid of the process that runs the file."""
        (child,) = psutil.Process(self.process.pid).children()
        return child.pid

    def page(self) -> str:
        """The address of Waterline."""
        return self.wait("Waterline  at  ").rpartition("  ")[2]

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Place:
    """A directory, and `dw` in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[Dev] = []

    def write(self, name: str, text: str) -> Path:
        file = self.directory / name
        file.write_text(text)
        return file

    def dw(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DW, *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=_environment() | environment,
            check=False,
        )

    def shell(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A line as somebody types it."""
        return subprocess.run(
            command,
            shell=True,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
            env=_environment() | environment,
            check=False,
        )

    def ask(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The same in this process, which is much faster; for commands that load no file."""
        from click.testing import CliRunner

        from backstay.cli.main import dw

        before = Path.cwd()
        os.chdir(self.directory)
        try:
            done = CliRunner().invoke(dw, arguments, env={"DW_DB": None} | environment, prog_name="dw")
        finally:
            os.chdir(before)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def dev(self, *arguments: str, **environment: str) -> Dev:
        self._running.append(Dev(self.directory, *arguments, **environment))
        return self._running[-1]

    def close(self) -> None:
        for dev in self._running:
            dev.close()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("DW_DB", "COLUMNS", "FORCE_COLOR")}
    return kept | {"PYTHONUNBUFFERED": "1"}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def mistaken(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The one line that a mistake is told in."""
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]
