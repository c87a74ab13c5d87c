"""Why an open run is where it is: one rule for each situation, and the first that has something to say counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from msgspec import Struct

from backstay.kernel.features import repair
from backstay.kernel.features.pause import UNPAUSE
from backstay.kernel.features.retry_now import RETRY_NOW
from backstay.kernel.spans import utc, whole_span
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.facts import Facts, ReachedLimit, Takers
from backstay.kernel.views.summary import RunSummary

Tone = Literal["info", "good", "warning", "danger", "paused"]

LATE = 10 * SECOND  # after this, a wake that has passed and a lease that has ended are overdue
LONG_READY = 60 * SECOND  # after this, a task that waits although workers live is a warning
QUOTED = 120


class HelpfulAction(Struct, frozen=True, kw_only=True):
    """The one action that lets the run go on. `target`: the signal, activity, child or run that it is about."""

    verb: str
    label: str
    allowed: bool = True
    reason: str | None = None  # why a button cannot do it
    target: str | None = None


NO_ENGINE = "No engine runs this database, so no run moves"
START_ENGINE = ("start_engine", "Start an engine", "start a server, your program or `dw dev FILE`")
START_FITTING = (
    "start_engine",
    "Start an engine with code that fits",
    "the same code would be blocked again; `dw verdict --app FILE` says whether your code fits",
)


class Said(NamedTuple):
    """The part of an answer that depends on the situation."""

    verb: str
    tone: Tone
    sentence: str
    since: Micros
    until: Micros | None = None
    by_itself: str | None = None
    action: HelpfulAction | None = None
    attention: str | None = None


def explain_open(summary: RunSummary, facts: Facts, now: Micros) -> Said:
    said = next(found for rule in _RULES if (found := rule(summary, facts, now)) is not None)
    if facts.engine == "none":
        return said._replace(
            verb="needs_engine",
            tone="warning" if said.tone == "info" else said.tone,
            sentence=f"{said.sentence} {NO_ENGINE}.",
            by_itself=None,
            action=_not_here(
                *(START_FITTING if said.action is not None and said.action.verb == DEPLOY[0] else START_ENGINE)
            ),
        )
    if facts.engine == "down":
        return said._replace(
            verb="needs_database",
            tone="danger",
            sentence=f"{said.sentence} The database cannot commit now, so no run moves.",
            by_itself="the engine tries again every second",
            action=_not_here("restore_database", "Restore the database", "see the log of the server"),
        )
    return said


def quoted(text: str | None, most: int = QUOTED) -> str:
    """Text of unknown length and content as part of a sentence."""
    return f"“{one_line(text, most)}”"


def one_line(text: str | None, most: int = QUOTED) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text or "").split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _not_here(verb: str, label: str, how: str) -> HelpfulAction:
    return HelpfulAction(verb=verb, label=label, allowed=False, reason=how)


# -- the situations of an open run: the first rule that has something to say counts


def _paused(summary: RunSummary, facts: Facts, now: Micros) -> Said | None:
    if summary.state != "paused":
        return None
    by = f" by {facts.paused_by}" if facts.paused_by else ""
    why = f": {quoted(facts.pause_reason)}" if facts.pause_reason else ""
    sentence = f"Paused {whole_span(now - summary.since)} ago{by}{why}."
    itself = "events are still recorded, and deadlines still count"
    return Said(
        "paused",
        "paused",
        sentence,
        summary.since,
        None,
        itself,
        HelpfulAction(verb=UNPAUSE.name, label=UNPAUSE.label),
    )


def _lost(summary: RunSummary, facts: Facts, now: Micros) -> Said | None:
    """A row that history expects is missing, or a wake was lost."""
    if summary.liveness_state == "activity_running_without_task":
        sentence = f"{_activity(summary)} is running, but its task is missing."
        itself = "its report is still accepted, and the next sweep restores the task"
        return Said("needs_repair", "warning", sentence, summary.since, None, itself, REPAIR, "repair_needed")
    if summary.liveness_state != "repair_needed":
        return None
    sentence = f"Nothing would wake it: {_what_is_lost(summary)} is missing, which its history expects."
    itself = "the sweep restores it, within seconds on a busy engine and within 5 min on an idle one"
    return Said("needs_repair", "danger", sentence, summary.since, None, itself, REPAIR, "repair_needed")


def _what_is_lost(summary: RunSummary) -> str:
    return {
        "activity": f"the task of activity {summary.wait_name}",
        "timer": "the wake of its timer",
        "update": "the workflow task for its update",
        "signal": "the workflow task for its signal",
        "child": "the workflow task for the end of its child",
    }.get(summary.wait_kind or "", "its workflow task or wake")


def _blocked(summary: RunSummary, facts: Facts, now: Micros) -> Said | None:
    if summary.state != "blocked":
        return None
    block = facts.block
    where = f" at step {block.workflow_sequence}" if block is not None and block.workflow_sequence is not None else ""
    what = _BLOCKS.get(summary.blocked_reason or "", "its code cannot go on")
    by = f" by {one_line(summary.blocked_by)}" if summary.blocked_by else ""
    sentence = f"Blocked for {whole_span(now - summary.since)}{by}: {what}{where}: {quoted(summary.last_error)}."
    itself = "it is retried when a worker with different code connects"
    # The same code, tried again, would block again.
    action = _not_here(*DEPLOY) if summary.blocked_reason in _OF_CODE else REPAIR
    return Said("blocked", "danger", sentence, summary.since, None, itself, action, "blocked")


_OF_CODE = frozenset(
    {"history_shape_mismatch", "condition_wait_definition_mismatch", "workflow_entry_arguments_mismatch"}
)
"""Reasons for a block that only other code ends."""

_BLOCKS = {
    "history_shape_mismatch": "the code no longer fits the history of the run",
    "condition_wait_definition_mismatch": "the code waits for another condition than history has",
    "workflow_entry_arguments_mismatch": "the arguments do not fit the workflow function",
    "workflow_deadline_exceeded": "its code ran too long without waiting and was interrupted",
    "workflow_task_crashed": "ten workers in a row died while they ran its code",
}


def block_words(reason: str | None) -> str:
    """Why code is blocked, in words."""
    return _BLOCKS.get(reason or "", "the code cannot go on")


def _overdue(summary: RunSummary, facts: Facts, now: Micros) -> Said | None:
    """Something should have happened by now: the lease of its task has ended, or its wake has passed."""
    lease = summary.next_task_lease_expires_at
    if summary.next_task_state == "leased" and lease is not None and now - lease > LATE:
        sentence = (
            f"{summary.next_task_owner} took {_task(summary)} and did not report:"
            f" its lease ended {whole_span(now - lease)} ago."
        )
        itself = "the engine takes the task back and offers it again"
        return Said("overdue", "warning", sentence, lease, None, itself, REPAIR, "overdue")
    wake = summary.wake
    if wake is None or now - wake <= LATE or facts.engine not in ("here", "elsewhere"):
        return None
    sentence = f"Overdue for {whole_span(now - wake)}: {_waits(summary)}."
    itself = "the engine catches up as soon as it can"
    return Said("overdue", "warning", sentence, wake, None, itself, REPAIR, "overdue")


def _working(summary: RunSummary, facts: Facts, now: Micros) -> Said | None:
    if summary.next_task_state != "leased":
        return None
    since = summary.since
    where = f" at {summary.next_task_owner}" if summary.next_task_owner else ""
    if summary.next_task_kind == "workflow":
        about = f"for update {summary.wait_name} " if summary.wait_kind == "update" and summary.wait_name else ""
        sentence = f"Its code {_runs(facts, about, whole_span(now - since))}{where}."
        lease = summary.next_task_lease_expires_at
        itself = None if lease is None else f"its lease ends at {utc(lease, now)} unless the worker renews it"
        return Said("runs_code", "info", sentence, since, lease, itself)
    tries = _of(summary)
    runs = _runs(facts, "", whole_span(now - since))
    sentence = f"Activity {summary.next_task_type} {runs}{where}{tries}{_others(summary)}."
    failed = f" Its last attempt failed with {quoted(summary.last_error)}." if summary.last_error else ""
    until = summary.wait_until
    itself = None if until is None else f"it times out at {utc(until, now)}"
    tone: Tone = "warning" if summary.last_error else "info"
    return Said("runs_activity", tone, sentence + failed, since, until, itself)


def _runs(facts: Facts, about: str, span: str) -> str:
    """Without an engine it is unknown whether the process that took the task still lives."""
    return f"was begun {about}{span} ago" if facts.engine == "none" else f"runs {about}for {span}"


def _tries_again(summary: RunSummary, facts: Facts, now: Micros) -> Said | None:
    """Its next task has to wait for its time: a backoff, a delayed start, a task that failed."""
    at = summary.next_task_at
    if summary.next_task_state == "failed":
        soon = "soon" if at is None or at <= now else f"in {whole_span(at - now)}"
        sentence = f"Its workflow task failed with {quoted(summary.last_error)} and is retried {soon}."
        return Said("tries_again", "warning", sentence, summary.since, at, f"it is retried {soon}", REPAIR, "retrying")
    if summary.state != "retrying" or at is None or at <= now:
        return None
    pause = whole_span(at - now)
    if summary.next_task_kind == "workflow":
        itself = f"it begins at {utc(at, now)}"
        return Said("begins_later", "info", f"Begins in {pause}.", summary.since, at, itself)
    of = f" {summary.attempt} of {summary.attempts} times" if summary.attempts else f" {_times(summary.attempt)}"
    last = f", last with {quoted(summary.last_error)}" if summary.last_error else ""
    sentence = f"Tries again in {pause}: {summary.next_task_type} has failed{of}{last}{_others(summary)}."
    return Said(
        "tries_again",
        "warning",
        sentence,
        summary.since,
        at,
        f"attempt {summary.attempt + 1} begins at {utc(at, now)}",
        HelpfulAction(verb=RETRY_NOW.name, label=RETRY_NOW.label, target=_execution(summary)),
        "retrying",
    )


def _execution(summary: RunSummary) -> str | None:
    """The activity of the next task, if the run waits for it."""
    return summary.resume_source_id if summary.resume_source_kind == "activity_execution" else None


def _ready(summary: RunSummary, facts: Facts, now: Micros) -> Said | None:
    if summary.next_task_state != "ready":
        return None
    at = summary.next_task_at or summary.since
    task, waited, queue = _task(summary), whole_span(now - at), summary.queue
    takers, limit = facts.takers, facts.limit
    missing = takers.missing
    if missing is not None:
        sentence, how = _no_worker(summary, takers, missing, task, waited)
        action = _not_here("start_worker", "Start a worker", how)
        itself = "it goes on when such a worker connects"
        return Said("needs_worker", "danger", sentence, at, None, itself, action, "no_worker")
    if limit is not None:
        sentence = (
            f"{task} waits for {waited}: queue {queue!r} has reached {limit.name}"
            f" ({limit.used} of {limit.allowed}, {limit.source}){_held_by(limit)}."
        )
        itself = (
            "it goes on when the next minute begins"
            if "per_minute" in limit.name
            else "it goes on when one of those leases ends"
        )
        action = _not_here("raise_limit", "Raise the limit", f"set {limit.name} of queue {queue!r} higher")
        return Said("throttled", "warning", sentence[0].upper() + sentence[1:], at, None, itself, action, "throttled")
    who = (
        "of a worker" if not takers.known else "of its only worker" if takers.able == 1 else f"of {takers.able} workers"
    )
    sentence = f"{task} waits for {waited} for a free slot {who} on queue {queue!r}."
    tone: Tone = "warning" if now - at > LONG_READY else "info"
    itself = "it goes to the next worker that is free"
    return Said("queued", tone, sentence[0].upper() + sentence[1:], at, None, itself)


def _no_worker(summary: RunSummary, takers: Takers, missing: str, task: str, waited: str) -> tuple[str, str]:
    """The sentence about a task that no live worker can take, and how to get one that can."""
    queue, kind, type = summary.queue, summary.next_task_kind, summary.next_task_type
    if missing == "queue":
        sentence = f"No live worker serves queue {queue!r}; {task} has waited for {waited}."
        return sentence, f"start a worker of queue {queue!r} with {kind} {type}"
    there = "1 worker serves" if takers.on_queue == 1 else f"{takers.on_queue} workers serve"
    if missing == "type":
        sentence = f"{there} queue {queue!r}, none of them runs {kind} {type}; {task} has waited for {waited}."
        return sentence, f"register {kind} {type} with a worker of queue {queue!r}"
    if missing == "connection":
        needs = (
            "no connection" if summary.next_task_connection is None else f"connection {summary.next_task_connection!r}"
        )
        live = ", ".join(sorted(takers.connections or ())[:3])
        sentence = f"{there} queue {queue!r}, none of them takes {kind} {type} with {needs} (live: {live}); {task} has waited for {waited}."
        return sentence, f"start a worker of queue {queue!r} that takes tasks with {needs}"
    live = ", ".join(takers.builds[:3]) or "unversioned"
    sentence = (
        f"It is pinned to build {summary.build}, and no live worker of queue {queue!r} has that"
        f" (live: {live}); {task} has waited for {waited}."
    )
    return sentence, f"start a worker of queue {queue!r} with build {summary.build}"


def _held_by(limit: ReachedLimit) -> str:
    if not limit.holders:
        return ""
    more = f" and {len(limit.holders) - 3} others" if len(limit.holders) > 3 else ""
    return f"; held by {', '.join(limit.holders[:3])}{more}"


def _waiting(summary: RunSummary, facts: Facts, now: Micros) -> Said:
    since, until = summary.wait_since or summary.since, summary.wait_until
    itself = None if until is None else f"it continues without it at {utc(until, now)}"
    limit = "" if until is None else f"; it times out in {whole_span(until - now)}"
    waited, name = whole_span(now - since), summary.wait_name
    match summary.wait_kind:
        case "timer":
            at = until if until is not None else now
            sentence = f"Sleeps for another {whole_span(at - now)}, until {utc(at, now)}{_others(summary)}."
            return Said("sleeps", "info", sentence, since, until, f"its timer fires at {utc(at, now)}")
        case "signal":
            sentence = f"Waits for signal {name} for {waited}{limit}{_others(summary)}."
            act = HelpfulAction(verb="signal", label=f"Send signal {name}", target=name)
        case "condition":
            named = f" {quoted(name)}" if name else ""
            sentence = f"Waits for {waited} until its condition{named} holds{limit}{_others(summary)}."
            act = HelpfulAction(verb="signal", label="Send it a signal or an update")
        case "update":
            sentence = f"Update {name or 'of its caller'} is accepted and waits for the code of the run."
            act = None
        case "child":
            sentence = f"Waits for {_children(summary)} for {waited}{_others(summary, summary.open_children)}."
            act = (
                HelpfulAction(verb="open_children", label="Look at its children")
                if summary.open_children > 1
                else HelpfulAction(verb="open_child", label="Look at the child", target=name)
            )
        case "activity":
            sentence = f"{_activity(summary)} waits for its place in its group, for {waited}."
            act = None
        case _:
            sentence, act = f"Waits for {waited}.", None
    return Said(f"waits_for_{summary.wait_kind or 'input'}", "info", sentence, since, until, itself, act)


_RULES: tuple[Callable[[RunSummary, Facts, Micros], Said | None], ...] = (
    _paused,
    _lost,
    _blocked,
    _overdue,
    _working,
    _tries_again,
    _ready,
    _waiting,
)

REPAIR = HelpfulAction(verb=repair.REPAIR.name, label=repair.REPAIR.label)
DEPLOY = (
    "deploy",
    "Deploy code that fits",
    "deploy code that fits the recorded steps (`dw verdict --app FILE` tests it), and the run continues by itself",
)


# -- words


def _waits(summary: RunSummary) -> str:
    kind = summary.wait_kind or "its next task"
    return f"it waits for {kind}" + (f" {summary.wait_name}" if summary.wait_name else "")


def _activity(summary: RunSummary) -> str:
    return f"Attempt {summary.attempt} of activity {summary.wait_name or summary.next_task_type}"


def _task(summary: RunSummary) -> str:
    what = "activity" if summary.next_task_kind == "activity" else "the workflow task of"
    return f"{what} {summary.next_task_type}"


def _of(summary: RunSummary) -> str:
    if summary.attempts is None or summary.attempts == 1:
        return f", attempt {summary.attempt}" if summary.attempt > 1 else ""
    return f", attempt {summary.attempt} of {summary.attempts}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _children(summary: RunSummary) -> str:
    if summary.open_children < 2:
        return f"child {summary.wait_name}"
    of = f" of {summary.children}" if summary.children > summary.open_children else ""
    return f"{summary.open_children}{of} children" + (f" ({summary.child_type})" if summary.child_type else "")


def _others(summary: RunSummary, told: int = 1) -> str:
    """The open steps beside those that the sentence has told of."""
    others = summary.steps - max(told, 1)
    return "" if others < 1 else "; 1 other step is open" if others == 1 else f"; {others} other steps are open"
