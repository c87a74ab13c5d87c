"""The process in which `dw dev` runs a file: its start, and the report of its crash."""

from __future__ import annotations

import signal
import subprocess
import time

import click

from backstay.cli.dev_plan import RELOAD, DevPlan
from backstay.cli.file_watch import stamp_of

SHORT = 2.0  # seconds; a process that crashes sooner is started again only after a save
PATIENCE = 10.0  # seconds in which it must end when it is asked to


class DevChild:
    def __init__(self, plan: DevPlan) -> None:
        self._file = plan.file
        self._started = time.monotonic()
        # SIGINT is blocked until the process has set its own handler: a starting interpreter would answer Ctrl-C with a
        # traceback. A blocked signal is delivered later, while an ignored one would be lost, here and in the process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(plan.command_line())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def report_crash(self, code: int) -> SaveAwaited | None:
        """Report that the process was killed, crashed or called os._exit. Returns the save to wait for after a quick crash."""
        if code == RELOAD:
            return None
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if time.monotonic() - self._started >= SHORT:
            click.echo(f"the process of {self._file} ended ({how}); starting it again", err=True)
            return None
        click.echo(f"the process of {self._file} ended at once ({how}); waiting for the next save", err=True)
        return SaveAwaited(self._file)


class SaveAwaited:
    """The next save of a file whose process has crashed at once."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._before = stamp_of(file)

    @property
    def has_come(self) -> bool:
        return stamp_of(self._file) not in (None, self._before)
