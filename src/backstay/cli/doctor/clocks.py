"""Whether the clock of this machine agrees with another one."""

from __future__ import annotations

from backstay.cli.doctor.results import CheckResult, ok, warning
from backstay.cli.format import span
from backstay.kernel.values import SECOND, Micros

CLOSE = 2 * SECOND
NTP = "synchronize both machines by NTP (`timedatectl set-ntp true`)"


def compared(here: Micros, there: Micros, doubt: Micros, whose: str) -> CheckResult:
    """`doubt`: how long the answer of the other clock was under way."""
    away = here - there
    if abs(away) <= CLOSE + doubt:
        return ok("clock", f"agrees with the clock of {whose}")
    side = "ahead of" if away > 0 else "behind"
    return warning("clock", f"the clock of this machine is {span(abs(away))} {side} that of {whose}", NTP)
