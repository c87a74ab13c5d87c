"""The process of the file that `dw dev` has running: how it is started, and what its end means."""

from __future__ import annotations

import signal
import subprocess
import time

import click

from backstay.cli.dev_plan import RELOAD, DevPlan
from backstay.cli.file_watch import stamp_of

SHORT = 2.0  # seconds: a process that crashes sooner is only started again after a save
PATIENCE = 10.0  # seconds to end after the request


class DevChild:
    def __init__(self, plan: DevPlan) -> None:
        self._file = plan.file
        self._started = time.monotonic()
        # Blocked until the process has set its own handler: a starting interpreter would answer Ctrl-C with a traceback.
        # Blocked and not ignored, so that one that comes meanwhile is not lost, here or there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(plan.command_line())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def report_crash(self, code: int) -> SaveAwaited | None:
        """Say that the process was killed, crashed or called os._exit. After a quick crash the next save is to be awaited."""
        if code == RELOAD:
            return None
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if time.monotonic() - self._started >= SHORT:
            click.echo(f"the process of {self._file} ended ({how}); starting it again", err=True)
            return None
        click.echo(f"the process of {self._file} ended at once ({how}); waiting for the next save", err=True)
        return SaveAwaited(self._file)


class SaveAwaited:
    """The next save of a file whose process does not live to see it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._before = stamp_of(file)

    @property
    def has_come(self) -> bool:
        return stamp_of(self._file) not in (None, self._before)
