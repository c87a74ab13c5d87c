"""The words of a history: for each event its subject, and its line of text.

Every feature brings the words of its events (`Feature.words`); the command line and the JSON of a run take kind and
text from there. Words are pure. A `Format` prints times and payloads, and the `Story` of a run knows what happened
before an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from backstay.kernel.event import Event, Recorded
from backstay.kernel.values import SECOND, Micros

Tone = Literal["plain", "title", "good", "success", "retry", "bad", "quiet"]


class About(NamedTuple):
    """The subject of an event. `source` is the contract's name of the thing, `id` and `name` are fields of the
    event."""

    kind: str
    source: str
    id: str | None = None
    """The field that holds the id of the thing. None: the id of the run."""
    name: tuple[str, ...] = ()
    """The fields that may hold what people call the thing; the first one that is set counts."""


RUN = About("workflow", "workflow_run")
COMMAND = About("command", "workflow_command", "workflow_command_id")


class Phrase(NamedTuple):
    """One event in words. `mark` is the one character by which the eye finds it."""

    mark: str
    text: str
    tone: Tone = "plain"
    shown: bool = True
    """False: the lines next to it say the same, so a timeline leaves it out."""
    news: bool = False
    """Whether a view of many runs shows it at once."""


class Format(Protocol):
    """Prints times and payloads. The shell implements it."""

    def span(self, length: Micros, /) -> str:
        """A length of time, such as `1.25 s`."""
        ...

    def moment(self, at: Micros, /) -> str:
        """A point in time."""
        ...

    def value(self, blob: bytes | None, /) -> str:
        """A payload."""
        ...

    def arguments(self, blob: bytes | None, /) -> str:
        """The payload of a call, as it stands between the parentheses."""
        ...

    def shortened(self, text: str, /) -> str:
        """Text of unknown length and content as part of one line."""
        ...

    def failure(self, type: str | None, message: str, /) -> str:
        """An exception by its type and message."""
        ...


class OpenStep:
    """A step of the run that has not ended."""

    __slots__ = (
        "attempt",
        "fires_at",
        "name",
        "number",
        "outside",
        "progress",
        "retry_at",
        "scheduled_at",
        "started_at",
    )

    def __init__(self, number: int, name: str, at: Micros) -> None:
        self.number = number
        self.name = name
        self.scheduled_at = at
        self.attempt = 0
        self.started_at: Micros | None = None  # while an attempt runs
        self.retry_at: Micros | None = None  # while it waits for its next attempt
        self.fires_at: Micros | None = None  # its timer or timeout
        self.progress: str | None = None
        self.outside = False  # it waits for something from outside the run

    def waits(self, form: Format, now: Micros) -> str:
        """The wait of the run at this step."""
        if self.outside:
            until = "" if self.fires_at is None else f", until {form.moment(self.fires_at)}"
            return f"{self.name}, for {form.span(now - self.scheduled_at)}{until}"
        if self.fires_at is not None:
            due = f"due in {form.span(self.fires_at - now)}" if self.fires_at > now else "due now"
            return f"{self.name}, {due} ({form.moment(self.fires_at)})"
        if self.started_at is not None:
            progress = f", says {self.progress}" if self.progress else ""
            return f"{self.name}, attempt {self.attempt} running for {form.span(now - self.started_at)}{progress}"
        if self.retry_at is not None:
            when = f"in {form.span(self.retry_at - now)}" if self.retry_at > now else "now"
            return f"{self.name}, attempt {self.attempt + 1} {when}"
        return f"{self.name}, waiting for a worker for {form.span(now - self.scheduled_at)}"


class Story:
    """A run up to the event in words: its begin, its open steps, its last failure.

    The phrase of an event reads it and brings it up to date, as a fold does with the state of a run.
    """

    __slots__ = ("at", "began", "closed", "event", "failed", "form", "last_failure", "open", "workflow_type")

    def __init__(self, form: Format, workflow_type: str = "workflow", began: Micros = 0) -> None:
        """`workflow_type` and `began` are passed for a story that begins in the middle of a history."""
        self.form = form
        self.workflow_type = workflow_type
        self.began = began
        self.at = began
        self.open: dict[int, OpenStep] = {}
        self.closed = False
        self.event: Event | None = None  # the current event
        self.failed: Event | None = None  # the last one that was a failure
        self.last_failure: tuple[Micros, str] | None = None

    def turn_to(self, entry: Recorded) -> None:
        """Move to the next event."""
        self.at, self.event = entry.at, entry.event
        if not self.began:
            self.began = entry.at

    def begin(self, number: int, name: str, *, outside: bool = False) -> OpenStep:
        step = self.open[number] = OpenStep(number, name, self.at)
        step.outside = outside
        return step

    def end(self, number: int) -> None:
        self.open.pop(number, None)

    def close(self) -> None:
        self.closed = True
        self.open.clear()

    def failure(self, type: str | None, message: str, where: str | None = None) -> str:
        """A failure in words, remembered as the last one of the run."""
        why = self.form.failure(type, message) if type else self.form.shortened(message)
        self.remember_failure(f"{where}: {why}" if where else why)
        return why

    def remember_failure(self, why: str) -> None:
        self.last_failure, self.failed = (self.at, why), self.event

    def running_for(self, number: int) -> str:
        """How long the attempt of this step has taken, as the end of a verb."""
        step = self.open.get(number)
        since = None if step is None else step.started_at
        return "" if since is None else f" in {self.form.span(self.at - since)}"

    def open_for(self, number: int) -> str:
        step = self.open.get(number)
        return "" if step is None else self.form.span(self.at - step.scheduled_at)

    def at_most(self, timeout: float | None) -> str:
        return "" if timeout is None else f", at most {self.form.span(round(timeout * SECOND))}"

    def because(self, reason: str | None) -> str:
        return f": {self.form.shortened(reason)}" if reason else ""

    def result(self, output: bytes | None) -> str:
        return "" if output is None else f" → {self.form.value(output)}"


class Words(NamedTuple):
    """The words of one type of event."""

    about: About
    phrase: Callable[[Story, Any], Phrase]
    note: Callable[[Any], str | None] | None = None
    """The author's summary of the call that the event begins."""
