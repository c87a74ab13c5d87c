"""The demo: an order survives three `kill -9`, and everything it does in the outside world happens once.

A process runs the shop of `shop.py`. This one watches its history, kills it with SIGKILL (while an activity waits for
its retry, during a durable timer, and in the middle of an activity), starts it again, and at the end compares history
with what really happened. It exits with 0 only if that comparison holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from backstay.cli import format
from backstay.cli.problems import Missing
from backstay.cli.reading import StoreReader
from backstay.cli.timeline import line_of
from backstay.demo.shop import DATABASE, WORKFLOW_ID, read
from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import ActivityCompleted, ActivityRetryScheduled, ActivityStarted
from backstay.kernel.features.close import WorkflowCompleted
from backstay.kernel.features.timer import TimerScheduled
from backstay.kernel.words import Story
from backstay.protocol.requests import GetHistory

PATIENCE = 20.0  # seconds for any one thing to happen


class Show:
    """One order, watched from outside."""

    def __init__(self, directory: Path, out: Console) -> None:
        self.directory = directory
        self.out = out
        self.history: list[Recorded] = []
        self.kills: list[int] = []
        self._story = Story(format)
        self._reader: StoreReader | None = None
        self._app: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "backstay.demo.shop", os.fspath(self.directory)]
        app = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert app.stdout is not None
        app.stdout.readline()  # it has opened its database
        self._app = app
        self._say(f"process {app.pid} runs the shop", "bold cyan")
        if self._reader is None:
            self._reader = StoreReader(str(self.directory / DATABASE)).__enter__()

    def kill(self, when: str) -> None:
        """SIGKILL: no handler, no goodbye, nothing flushed."""
        app = self._app
        assert app is not None
        os.kill(app.pid, signal.SIGKILL)
        code = app.wait(PATIENCE)
        assert app.stdout is not None
        app.stdout.close()
        self.kills.append(code)
        self._say(f"kill -9 {app.pid}, {when}", "bold red")
        self.look()
        before = len(self.history)
        time.sleep(0.7)
        self.look()
        ledger = len(read(self.directory / "ledger.jsonl"))
        assert len(self.history) == before, "history grew without a process"
        self._say(
            f"process {app.pid} is dead (signal {-code}): {before} events on disk,"
            f" {ledger} in the ledger of the world, nothing runs",
            "red",
        )

    def wait(self, what: str, seen: Callable[[], bool]) -> None:
        """Show the history as it grows, until something is there."""
        deadline = time.monotonic() + PATIENCE
        while not seen():
            if time.monotonic() > deadline:
                raise SystemExit(f"demo: {what} did not happen within {PATIENCE:.0f} s")
            time.sleep(0.02)
            self.look()

    def look(self) -> None:
        assert self._reader is not None
        after = self.history[-1].sequence if self.history else 0
        try:
            entries = self._reader.ask(GetHistory(workflow_id=WORKFLOW_ID, after=after))
        except Missing:
            return  # the order has not been started yet
        for entry in entries:
            self.history.append(entry)
            line = line_of(self._story, entry)
            if line is not None:
                self.out.print(line)

    def finish(self) -> int:
        assert self._app is not None
        code = self._app.wait(PATIENCE)
        if self._app.stdout is not None:
            self._app.stdout.close()
        return code

    def close(self) -> None:
        if self._app is not None and self._app.poll() is None:
            self._app.kill()
            self._app.wait(PATIENCE)
        if self._reader is not None:
            self._reader.__exit__(None, None, None)

    def _say(self, text: str, style: str) -> None:
        self.out.print(Text(f"{'':>12}       {text}", style))


def play(show: Show) -> None:
    """The order, interrupted three times."""

    def has(kind: type[object], activity: str | None = None) -> bool:
        return any(
            isinstance(entry.event, kind) and activity in (None, getattr(entry.event, "activity_type", None))
            for entry in show.history
        )

    def shipped() -> bool:
        return any(line["effect"] == "shipped" for line in read(show.directory / "ledger.jsonl"))

    show.start()
    show.wait("the failure of the card terminal", lambda: has(ActivityRetryScheduled, "charge_card"))
    show.kill("while charge_card waits for its second attempt")
    show.start()
    show.wait("the timer", lambda: has(TimerScheduled))
    show.kill("during the timer")
    show.start()
    show.wait("the shipping", lambda: has(ActivityStarted, "ship") and shipped())
    show.kill("in the middle of ship: the parcel has left, nobody has recorded it")
    show.start()
    show.wait("the end of the order", lambda: has(WorkflowCompleted))
    if show.finish() != 0:
        raise SystemExit("demo: the shop did not end well")


def prove(show: Show) -> list[str]:
    """Compare history with the outside world. Returns what does not hold; nothing is what we want."""
    asked = Counter(line["key"] for line in read(show.directory / "asked.jsonl"))
    ledger = read(show.directory / "ledger.jsonl")
    happened = Counter(line["key"] for line in ledger)
    effects = {line["key"]: f"{line['effect']} {line['detail']}" for line in ledger}
    attempts: Counter[str] = Counter()
    completed: dict[str, ActivityCompleted] = {}
    wrong: list[str] = []
    for entry in show.history:
        match entry.event:
            case ActivityStarted(activity_execution_id=key):
                attempts[key] += 1
            case ActivityCompleted(activity_execution_id=key) as event:
                if key in completed:
                    wrong.append(f"{event.activity_type} completed twice")
                completed[key] = event
            case _:
                pass

    table = Table(title="History and the outside world, by idempotency key", title_justify="left")
    for column in ("step", "activity", "idempotency key", "attempts", "requests", "happened", "in the world"):
        table.add_column(column, justify="right" if column in ("step", "attempts", "requests", "happened") else "left")
    for key, event in completed.items():
        once = happened[key] == 1
        if not once:
            wrong.append(f"{event.activity_type} happened {happened[key]} times")
        table.add_row(
            str(event.sequence),
            event.activity_type,
            f"…{key[-12:]}",
            str(attempts[key]),
            str(asked[key]),
            Text(f"{happened[key]} {'✓' if once else '✗'}", "green" if once else "bold red"),
            effects.get(key, "-"),
        )
    show.out.print()
    show.out.print(table)

    wrong += [f"{effects[key]} is in the world and not in history" for key in happened if key not in completed]
    if len(completed) != 5:
        wrong.append(f"{len(completed)} of 5 activities completed")
    if show.kills != [-signal.SIGKILL] * 3:
        wrong.append(f"the processes ended with {show.kills}, not by three SIGKILL")
    if [entry.sequence for entry in show.history] != list(range(1, len(show.history) + 1)):
        wrong.append("history has a hole")
    return wrong


def main() -> int:
    out = Console(highlight=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = 140
    began = time.monotonic()
    out.print("An order: reserve, charge (the terminal fails once), wait, pack, ship, e-mail.", style="bold")
    out.print("Its process is killed three times with SIGKILL. Watch its history.\n", style="bold")
    with tempfile.TemporaryDirectory(prefix="backstay-demo-") as directory:
        show = Show(Path(directory), out)
        try:
            play(show)
            wrong = prove(show)
        finally:
            show.close()
    if wrong:
        for line in wrong:
            out.print(f"NOT PROVEN: {line}", style="bold red")
        return 1
    out.print(
        "charge_card was tried twice because its first attempt failed. ship was running when its process was killed, so it\n"
        "was delivered again, with the same idempotency key: the carrier was asked twice and shipped once. That is what\n"
        "the key is for. Everything else was recorded before the kill and never asked for again.",
        style="bright_black",
    )
    out.print(
        f"PROVEN: 3 kills, 5 effects, each happened exactly once ({time.monotonic() - began:.1f} s).",
        style="bold green",
    )
    return 0
