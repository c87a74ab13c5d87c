"""The end of a closed run: outcome, time, duration and cause."""

from __future__ import annotations

from backstay.kernel.event import Recorded
from backstay.kernel.features.cancel import Stopped
from backstay.kernel.features.close import WorkflowFailed
from backstay.kernel.features.continue_as_new import WorkflowContinuedAsNew
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.fork import WorkflowRewound
from backstay.kernel.spans import whole_span
from backstay.kernel.values import Micros
from backstay.kernel.views.summary import RunSummary
from backstay.kernel.views.why_open import HelpfulAction, Said, quoted


def explain_closed(summary: RunSummary, now: Micros, last: Recorded | None) -> Said:
    """`last`: the event that closed the run, if the caller has read it."""
    at = summary.closed_at or summary.since
    ago, took = whole_span(now - at), whole_span(at - summary.started_at)
    event = None if last is None else last.event
    match summary.state:
        case "completed":
            return Said("completed", "good", f"Completed {ago} ago, after {took}.", at)
        case "failed":
            how = (
                "Timed out" if isinstance(event, WorkflowTimedOut) or summary.closed_reason == "timed_out" else "Failed"
            )
            where = _where(event) if isinstance(event, WorkflowFailed) else ""
            what = f": {quoted(summary.last_error)}" if summary.last_error else ""
            return Said("failed", "danger", f"{how} {ago} ago{where}, after {took}{what}.", at)
        case "continued":
            if not isinstance(event, WorkflowContinuedAsNew):
                return Said("continued", "info", f"Continued as a new run {ago} ago, after {took}.", at)
            number, next_run = event.continued_to_run_number, event.continued_to_run_id
            sentence = f"Continued as run {number} ({next_run}) {ago} ago, after {took}."
            act = HelpfulAction(verb="open_run", label="Look at the next run", target=next_run)
            return Said("continued", "info", sentence, at, None, None, act)
        case _ if isinstance(event, WorkflowRewound):
            number, next_run = event.continued_to_run_number, event.continued_to_run_id
            because = f": {quoted(event.reason)}" if event.reason else ""
            sentence = (
                f"Rewound to event {event.rewound_through} {ago} ago; run {number} ({next_run}) goes on{because}."
            )
            act = HelpfulAction(verb="open_run", label="Look at the next run", target=next_run)
            return Said("rewound", "info", sentence, at, None, None, act)
        case stopped:
            why = f": {quoted(event.message)}" if isinstance(event, Stopped) and event.message else ""
            return Said(stopped, "info", f"{stopped.capitalize()} {ago} ago, after {took}{why}.", at)


def _where(event: WorkflowFailed) -> str:
    """The step whose failure the code did not handle; nothing if the code itself failed."""
    step = event.source_id.rpartition("-")[2]
    kind = {"activity_execution": "activity", "child_workflow_run": "child"}.get(event.source_kind)
    return "" if kind is None else f" by the {kind} at step {step}" if step.isdecimal() else f" by a {kind}"
