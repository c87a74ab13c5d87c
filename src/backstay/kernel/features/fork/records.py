"""Events of forks and rewinds, and what a plan of one tells.

`HistoryInherited` follows the events that a run has taken over from another one: everything before it is a copy, and
everything after it is the run's own. `WorkflowRewound` closes the run that is rewound.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from backstay.kernel.event import Event, Recorded
from backstay.kernel.features import close
from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.state import Run
from backstay.kernel.task import Resume
from backstay.kernel.words import RUN, Phrase, Story, Words


class HistoryInherited(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The run begins with the events of another run up to `inherited_through`, of which it has taken over
    `inherited_events`. `replaced_steps`: the steps whose results were replaced."""

    workflow_command_id: str
    from_workflow_instance_id: str
    from_workflow_run_id: str
    inherited_through: int
    inherited_events: int
    rewound: bool = False
    replaced_steps: list[int] = []
    reason: str | None = None


class WorkflowRewound(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The run is over; the next run of the instance begins with its events up to `rewound_through`."""

    workflow_command_id: str
    continued_to_run_id: str
    continued_to_run_number: int
    rewound_through: int
    closed_reason: str = "rewound"
    reason: str | None = None


class RepeatedEffect(Struct, frozen=True, kw_only=True):
    """Work after the point that was begun before and may be done again. `idempotency_key`: the one that it had."""

    step: int
    kind: Literal["activity", "child", "stream"]
    type: str
    idempotency_key: str
    outcome: str


class ForkPlan(Struct, frozen=True, kw_only=True):
    """What a fork or a rewind keeps, and what it may do again."""

    workflow_id: str
    run_id: str
    through_event: int
    kept_events: int
    repeats: list[RepeatedEffect] = []


class ForkReply(Struct, frozen=True, kw_only=True):
    """The reply to a fork or a rewind. `plan` is None if an earlier request with the same id was answered."""

    command: CommandReply
    plan: ForkPlan | None = None


def inherited(run: Run, event: HistoryInherited, entry: Recorded) -> None:
    run.started_at = entry.at


def wake(run: Run, event: HistoryInherited, entry: Recorded) -> Resume:
    """The code runs in any case: it may have more to do at the point than history has."""
    return Resume(workflow_sequence=entry.sequence, workflow_event_type="HistoryInherited")


def rewound(run: Run, event: WorkflowRewound, entry: Recorded) -> None:
    close.shut(run, entry, "terminated", "rewound")


def _say_inherited(story: Story, event: HistoryInherited) -> Phrase:
    point = f"event {event.inherited_through}{story.because(event.reason)}"
    if event.rewound:
        return Phrase("⑂", f"goes on from run {event.from_workflow_run_id} as it was after {point}", "title", news=True)
    source = f"{event.from_workflow_instance_id} (run {event.from_workflow_run_id})"
    return Phrase("⑂", f"forked from {source} as it was after {point}", "title", news=True)


def _say_rewound(story: Story, event: WorkflowRewound) -> Phrase:
    story.close()
    goes_on = f"run {event.continued_to_run_number} ({event.continued_to_run_id}) goes on from there"
    because = story.because(event.reason)
    return Phrase("↶", f"rewound to event {event.rewound_through}; {goes_on}{because}", "retry", news=True)


WORDS: dict[type[Event], Words] = {
    HistoryInherited: Words(RUN, _say_inherited),
    WorkflowRewound: Words(RUN, _say_rewound),
}
