"""`sleep`: a durable timer. The run is suspended until the timer fires, whatever happens to the process meanwhile."""

from __future__ import annotations

from backstay.kernel.command import Command
from backstay.kernel.feature import Outcome
from backstay.kernel.features.timer import CancelTimer, StartTimer
from backstay.sdk.author.durations import Duration, until
from backstay.sdk.author.step import Call, Step
from backstay.sdk.replay.live_run import LiveRun


class TimerCall(Call[None]):
    name = "sleep()"
    shape = "timer"
    detail = None

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def command(self, step: int) -> Command:
        return StartTimer(sequence=step, delay_seconds=self.seconds, parallel_group_path=self.group)

    def describe(self) -> str:
        return "timer"

    def finish(self, live_run: LiveRun, outcome: Outcome) -> None:
        return None

    def cancel(self, live_run: LiveRun, step: int) -> None:
        live_run.emit(CancelTimer(step=step))


class Sleep:
    """The type of `sleep`: `sleep(d)` waits; `sleep.step(d)` describes the wait."""

    def __call__(self, duration: Duration, /) -> None:
        Step(TimerCall(until(duration))).run()

    def step(self, duration: Duration, /) -> Step[None]:
        return Step(TimerCall(until(duration)))


sleep = Sleep()
"""Wait durably: `sleep("3d")`. `sleep.step(...)` describes the wait without starting it.

Durations are seconds, texts like "90s", "5m", "2h", "3d", "1w", or a `timedelta`.
"""
