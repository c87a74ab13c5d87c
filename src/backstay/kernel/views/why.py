"""Why a run is where it is: one sentence, what happens by itself and when, and the one action that helps.

The summary of a run has its activity or wait; `Facts` are what only the fleet, the limits and the clock know at this
moment. Both are arguments, so every view gives the same reason: the page of a run, a list, `dw why`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.values import Micros
from backstay.kernel.views.causes import ChainLink, subject
from backstay.kernel.views.facts import Facts
from backstay.kernel.views.summary import OPEN_STATES, RunSummary
from backstay.kernel.views.why_closed import explain_closed
from backstay.kernel.views.why_open import HelpfulAction, Said, Tone, explain_open


class ResumeSource(Struct, frozen=True, kw_only=True):
    """The source that will resume the run, and the time at which the run continues without it."""

    kind: str | None
    id: str | None
    deadline: Micros | None


class Why(Struct, frozen=True, kw_only=True):
    """`by_itself`: what happens without an action, and when. `chain`: the events that led here, the first cause
    first."""

    workflow_id: str
    run_id: str
    state: str
    verb: str
    tone: Tone
    sentence: str
    since: Micros
    until: Micros | None = None
    by_itself: str | None = None
    action: HelpfulAction | None = None
    attention: str | None = None
    resume_source: ResumeSource | None = None
    chain: list[ChainLink] = []


def explain(
    summary: RunSummary,
    facts: Facts,
    now: Micros,
    chain: Sequence[ChainLink] = (),
    last: Recorded | None = None,
) -> Why:
    """Explain a run. `chain`: how it came there. `last`: the event that closed it, or the event in question."""
    said = _situation(summary, facts, now, last)
    is_open = summary.closed_at is None
    return Why(
        workflow_id=summary.workflow_id,
        run_id=summary.run_id,
        state=summary.state,
        verb=said.verb,
        tone=said.tone,
        sentence=said.sentence,
        since=said.since,
        until=said.until,
        by_itself=said.by_itself,
        action=said.action,
        attention=said.attention or summary.attention,
        resume_source=_source(summary, said) if is_open else None,
        chain=list(chain),
    )


def short(summary: RunSummary, facts: Facts, now: Micros) -> str:
    """The sentence alone, for one line of a list."""
    return _situation(summary, facts, now, None).sentence


def attention(summary: RunSummary, facts: Facts, now: Micros) -> str | None:
    """Why the run needs attention: the stored cause, else that of the fleet, a limit or the clock."""
    return _situation(summary, facts, now, None).attention or summary.attention


def explain_event(summary: RunSummary, entry: Recorded, chain: Sequence[ChainLink]) -> Why:
    """Why an event of the run was recorded. `chain`: its causes, itself last."""
    what = f"Event {entry.sequence}, {subject(entry)},"
    own, first = chain[-1], chain[0]
    before = chain[-2] if len(chain) > 1 else None
    if before is None:
        sentence = f"{what} came from {own.outside or 'an event too far back to look for'}."
    else:
        sentence = f"{what} follows from event {before.sequence}, {before.about}."
        if first is not before:
            sentence += f" It began with event {first.sequence}, {first.about}"
            sentence += f", which came from {first.outside}." if first.outside else "."
        elif first.outside:
            sentence = f"{sentence[:-1]}, which came from {first.outside}."
    return Why(
        workflow_id=summary.workflow_id,
        run_id=summary.run_id,
        state=summary.state,
        verb="happened",
        tone="info",
        sentence=sentence,
        since=entry.at,
        chain=list(chain),
    )


def damaged_state(row: RunRow) -> str:
    """The state of a run whose history cannot be read."""
    return "blocked" if row.is_open else row.status


def explain_damage(row: RunRow, damage: HistoryDamaged) -> Why:
    """The answer for a run whose history cannot be read, so that it does not move."""
    return Why(
        workflow_id=row.workflow_id,
        run_id=row.run_id,
        state=damaged_state(row),
        verb="damaged",
        tone="danger",
        sentence=f"Its history is damaged at event {damage.sequence}: {damage.why}.",
        since=row.started_at if row.closed_at is None else row.closed_at,
        action=HelpfulAction(
            verb="restore", label="Restore a backup", allowed=False, reason="restore the database from a backup"
        ),
        attention="blocked" if row.is_open else None,
    )


def _situation(summary: RunSummary, facts: Facts, now: Micros, last: Recorded | None) -> Said:
    if summary.state in OPEN_STATES:
        return explain_open(summary, facts, now)
    return explain_closed(summary, now, last)


def _source(summary: RunSummary, said: Said) -> ResumeSource:
    kind, id = summary.resume_source_kind, summary.resume_source_id
    deadline = said.until if said.until is not None else summary.wait_until
    return ResumeSource(kind=kind, id=id, deadline=deadline)
