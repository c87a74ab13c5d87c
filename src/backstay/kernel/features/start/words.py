"""The words for the events of a start."""

from __future__ import annotations

from backstay.kernel.event import Event
from backstay.kernel.features.start.records import StartAccepted, StartRejected, WorkflowStarted
from backstay.kernel.words import COMMAND, RUN, Phrase, Story, Words


def _accepted(story: Story, event: StartAccepted) -> Phrase:
    return Phrase("▸", f"start of {event.workflow_type} accepted", "quiet", shown=False)


def _rejected(story: Story, event: StartRejected) -> Phrase:
    return Phrase("✗", "another start of this id was rejected", "quiet")


def _started(story: Story, event: WorkflowStarted) -> Phrase:
    story.workflow_type = event.workflow_type
    continued = " (continued)" if event.continued_from_run_id else ""
    arguments = story.form.arguments(event.arguments)
    return Phrase("▶", f"{event.workflow_type}({arguments}) started{continued}", "title")


WORDS: dict[type[Event], Words] = {
    StartAccepted: Words(COMMAND, _accepted),
    StartRejected: Words(COMMAND, _rejected),
    WorkflowStarted: Words(RUN, _started),
}
