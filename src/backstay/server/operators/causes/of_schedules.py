"""Causes of schedules."""

from __future__ import annotations

from backstay.kernel.spans import whole_span
from backstay.server.operators.causes.cause import Cause, CauseAction
from backstay.server.operators.causes.situation import Situation


def of_schedules(situation: Situation) -> list[Cause]:
    counts, now = situation.schedules, situation.now
    if not counts.overdue:
        return []
    oldest = counts.next if counts.next is not None else now
    number = "1 schedule has" if counts.overdue == 1 else f"{counts.overdue:,} schedules have"
    return [
        Cause(
            name="missed_schedules",
            severity="error",
            check="scheduler_role",
            sentence=f"{number} not fired in time, the first was due {whole_span(now - oldest)} ago.",
            count=counts.overdue,
            unit="schedule",
            since=oldest,
            link="/api/schedules?status=active",
            action=CauseAction(label="See whether an engine runs this database", command="dw nodes"),
        )
    ]
