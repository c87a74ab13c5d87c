"""Programs as tests see them: started, spoken to, waited for, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0


def eventually(what: str, look: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"still not after {seconds:g} s: {what}"
        time.sleep(0.005)
    return found


class Program:
    """A Python module of these tests in a process of its own, with its output read line by line."""

    def __init__(self, module: str, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", f"tests.processes.{module}", *args],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split()])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # what it forks can be ended with it
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=_read, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for_line(self, text: str, seconds: float = PATIENCE) -> str:
        def look() -> str | None:
            found = next((line for line in self.lines if text in line), None)
            assert found or self.process.poll() is None, f"the program has ended: {self.lines} {''.join(self.errors)}"
            return found

        return eventually(f"a line with {text!r}", look, seconds)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        assert self.ended() == -signal.SIGKILL

    def ended(self, seconds: float = PATIENCE) -> int:
        code = self.process.wait(timeout=seconds)
        for reader in self._readers:
            reader.join(timeout=seconds)
        return code

    def clean_up(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.ended()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


class Told(Exception):
    """The program answered with an error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Remote(Program):
    """A program with an open Backstay."""

    def __init__(self, path: Path | str, **options: Any) -> None:
        super().__init__("remote", str(path), json.dumps(options))
        self._orders = 0

    def opened(self) -> Remote:
        self.wait_for_line('"open"')
        return self

    def tell(self, verb: str, **arguments: Any) -> Callable[[], Any]:
        """Give an order; the answer is waited for by calling what is returned."""
        self._orders += 1
        number = self._orders
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([number, verb, arguments]) + "\n")
        self.process.stdin.flush()

        def answer(seconds: float = PATIENCE) -> Any:
            reply = json.loads(self.wait_for_line(f'{{"answer": {number}, ', seconds))
            if "error" in reply:
                raise Told(reply["error"], reply["message"])
            return reply["value"]

        return answer

    def ask(self, verb: str, **arguments: Any) -> Any:
        return self.tell(verb, **arguments)()

    def close(self) -> None:
        """End the program by the front door."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.ended() == 0, "".join(self.errors)


def _read(pipe: Any, lines: list[str]) -> None:
    for line in pipe:
        lines.append(line)  # noqa: PERF402 - a list that others look at while it grows
