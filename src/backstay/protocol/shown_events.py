"""Events of a history as operators read them: the recorded facts, their subject, and a line of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, cast

from msgspec import Struct

from backstay.codec import avro
from backstay.codec.errors import PayloadError
from backstay.kernel.event import Recorded
from backstay.kernel.values import Micros
from backstay.kernel.views.timeline import WORDS, tell
from backstay.kernel.words import Story
from backstay.protocol.format import UtcFormat
from backstay.protocol.hidden_payloads import HIDDEN, hide
from backstay.protocol.history import iso, operator_event
from backstay.protocol.payloads import plain_value
from backstay.protocol.shown_payloads import BRIEF, WHOLE, PayloadMode, payload_places, show_payloads, shown_payload

KINDS = sorted({words.about.kind for words in WORDS.values()})
TYPES = sorted(kind.__name__ for kind in WORDS)
SEARCHED = 64 << 10  # bytes of a payload that a search looks into


class EventFilter(Struct, frozen=True, kw_only=True):
    """A filter of events of a history; empty matches all."""

    kinds: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    step: int | None = None
    text: str = ""
    payloads: bool = True  # a text is also looked for in payloads

    @property
    def matches_all(self) -> bool:
        return not (self.kinds or self.types or self.step is not None or self.text)

    def matches(self, entry: Recorded) -> bool:
        return (
            (not self.kinds or WORDS[type(entry.event)].about.kind in self.kinds)
            and (not self.types or entry.type in self.types)
            and (self.step is None or getattr(entry.event, "sequence", None) == self.step)
            and (not self.text or _says(entry, self.text, self.payloads))
        )


def new_story(workflow_type: str, began: Micros, before: Iterable[Recorded] = (), quiet: bool = False) -> Story:
    """The story of a run up to the events that are shown. `quiet`: it quotes no payload."""
    story = Story(UtcFormat() if not quiet else QuietFormat(), workflow_type, began)
    for entry in before:
        tell(story, entry)
    return story


class QuietFormat(UtcFormat):
    """Words without payloads."""

    @staticmethod
    def value(blob: bytes | None, /) -> str:
        return "…"

    @staticmethod
    def arguments(blob: bytes | None, /) -> str:
        return "…"


class ShownEvent(TypedDict):
    """One event of a page: its recorded facts, its subject, and a line of text."""

    id: str
    sequence: int
    event_type: str
    payload: dict[str, Any]
    recorded_at: str
    workflow_task_id: str | None
    workflow_command_id: str | None
    timestamp: str
    decided_after: int | None
    step: int | None
    kind: str
    words: str
    mark: str
    tone: str
    shown: bool


def shown_event(entry: Recorded, run_id: str, story: Story, mode: PayloadMode = "blob") -> ShownEvent:
    wire = operator_event(entry, run_id)
    payload: dict[str, Any] = wire["payload"]
    show_payloads(payload, mode, BRIEF)
    shown = {
        **wire,
        "timestamp": wire["recorded_at"],
        "decided_after": entry.context.decided_after,
        "step": getattr(entry.event, "sequence", None),
        **_told(entry, story),
    }
    return cast(ShownEvent, shown)


def single_event(entry: Recorded, run_id: str, story: Story, quiet: bool = False) -> dict[str, Any]:
    """One event with its payloads as text, and what caused it."""
    wire = operator_event(entry, run_id)
    payload: dict[str, Any] = wire["payload"]
    places = list(payload_places(payload))
    found = [] if quiet else [{"field": place.path, **shown_payload(place.text, WHOLE)} for place in places]
    for place in places:
        place.holder[place.key] = None  # below, as text
    if quiet:
        show_payloads(payload, "none", 0)
    context = entry.context
    return {
        **wire,
        "timestamp": wire["recorded_at"],
        "decided_after": context.decided_after,
        "step": getattr(entry.event, "sequence", None),
        **_told(entry, story),
        "payloads": found,
        "payload_fields": [place.path for place in places],
        "context": {
            "task_id": context.task_id,
            "task_attempt": context.attempt,
            "worker": context.owner,
            "leased_at": _optional(context.leased_at),
            "lease_expires_at": _optional(context.lease_expires_at),
            "command_id": context.command_id,
            "command_sequence": context.command_sequence,
            "source": context.source,
            "decided_after": context.decided_after,
            "clock_skew_seconds": None if context.clock_skew is None else context.clock_skew / 1e6,
        },
        "size_bytes": len(entry.body),
    }


def blob_of(entry: Recorded, run_id: str, field: str) -> bytes | None:
    """The payload of an event that stands at this path; None if there is none."""
    for place in payload_places(operator_event(entry, run_id)["payload"]):
        if place.path == field:
            try:
                return avro.from_text(place.text)
            except PayloadError:
                return place.text.encode()
    return None


def _told(entry: Recorded, story: Story) -> dict[str, Any]:
    phrase = tell(story, entry)
    return {
        "kind": WORDS[type(entry.event)].about.kind,
        "words": phrase.text,
        "mark": phrase.mark,
        "tone": phrase.tone,
        "shown": phrase.shown,
    }


def _optional(at: Micros | None) -> str | None:
    return None if at is None else iso(at)


def _says(entry: Recorded, text: str, payloads: bool) -> bool:
    """Whether a text stands in an event: in its type, in its facts, or in a payload that is not too large to look into."""
    wanted = text.casefold()
    # Without the right to payloads, only the shown text is searched: a search in more would reveal it letter by letter.
    texts = _texts(entry.event) if payloads else _shown_texts(hide(operator_event(entry, "")))
    return wanted in entry.type.casefold() or any(wanted in said.casefold() for said in texts)


def _shown_texts(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for part in cast("dict[str, Any]", value).values():
            yield from _shown_texts(part)
    elif isinstance(value, list):
        for part in cast("list[Any]", value):
            yield from _shown_texts(part)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and value != HIDDEN:
        yield str(value)


def _texts(value: Any) -> Iterable[str]:
    match value:
        case str():
            yield value
        case bytes():
            if len(value) <= SEARCHED:
                try:
                    yield from _texts(plain_value(avro.decode(value)))
                except PayloadError:
                    return
        case bool() | None:
            return
        case int() | float():
            yield str(value)
        case Struct():
            for name in value.__struct_fields__:
                yield from _texts(getattr(value, name))
        case dict():
            for name, part in value.items():  # pyright: ignore[reportUnknownVariableType]
                yield str(name)  # pyright: ignore[reportUnknownArgumentType]
                yield from _texts(part)
        case list() | tuple():
            for part in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _texts(part)
        case _:
            return


def size_shown(events: Sequence[Recorded]) -> int:
    """About how large these events are in an answer."""
    return sum(len(entry.body) + len(entry.context_body) + 800 for entry in events)
