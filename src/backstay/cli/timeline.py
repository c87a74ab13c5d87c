"""A line of the timeline on the terminal: the time since the run began, the step, and the event in its feature's words."""

from __future__ import annotations

from rich.text import Text

from backstay.cli import format
from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story, Tone

STYLES: dict[Tone, str] = {
    "plain": "",
    "title": "bold",
    "good": "green",
    "success": "bold green",
    "retry": "yellow",
    "bad": "bold red",
    "quiet": "bright_black",
}
QUIET = STYLES["quiet"]


def line_of(story: Story, entry: Recorded) -> Text | None:
    """The next event of a run; None if the lines next to it say the same."""
    phrase = tell(story, entry)
    if not phrase.shown:
        return None
    style = STYLES[phrase.tone]
    step = entry.event.sequence if isinstance(entry.event, StepEvent) else ""
    line = Text()
    line.append(f"{format.offset(entry.at - story.began):>12}", QUIET)
    line.append(f" {step:>4}  ", QUIET)
    line.append(f"{phrase.mark} ", style or QUIET)
    line.append(phrase.text, style)
    return line
