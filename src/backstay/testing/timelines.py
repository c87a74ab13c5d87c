"""Timelines of runs as text, as `dw history` prints them, for the report of a failed test."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.values import Micros
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story
from backstay.protocol import format

RUNS = 20  # that one report shows


class RunHistory(Struct, frozen=True):
    """A run and what has happened in it, when the clock of the test said `now`."""

    row: RunRow
    history: Sequence[Recorded]
    now: Micros


def timeline(run: RunHistory) -> str:
    """Return the timeline of a run, a line an event, with the steps that are still open at its end."""
    row = run.row
    story = Story(format)
    lines = [
        f"{row.workflow_id}  {row.workflow_type}  run {row.number} ({row.run_id}), started {format.moment(row.started_at)}"
    ]
    for entry in run.history:
        phrase = tell(story, entry)
        if phrase.shown:
            step = entry.event.sequence if isinstance(entry.event, StepEvent) else ""
            lines.append(f"{format.offset(entry.at - story.began):>12} {step:>4}  {phrase.mark} {phrase.text}")
    lines += [f"{'':>12} {step.number:>4}  … {step.waits(format, run.now)}" for step in story.open.values()]
    return "\n".join(lines)


def timelines(runs: Sequence[RunHistory]) -> str:
    """Return the timelines of runs, one after the other."""
    shown = [timeline(run) for run in runs[:RUNS]]
    if len(runs) > RUNS:
        shown.append(f"... and {len(runs) - RUNS} more runs")
    return "\n\n".join(shown)
