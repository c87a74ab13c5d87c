"""The words for the events of an output stream."""

from __future__ import annotations

from backstay.kernel.event import Event
from backstay.kernel.features.stream.records import StreamClosed, StreamItemAppended, StreamOpened, StreamRolledOver
from backstay.kernel.words import About, Phrase, Story, Words


def _opened(story: Story, event: StreamOpened) -> Phrase:
    after = f" at item {event.first_offset}" if event.first_offset else ""
    return Phrase("▶", f"stream {event.stream_name!r} of {event.workflow_instance_id} opened{after}", "title")


def _appended(story: Story, event: StreamItemAppended) -> Phrase:
    item = event.payload_reference if event.payload is None else story.form.value(event.payload)
    return Phrase("≋", f"item appended: {item}")


def _rolled_over(story: Story, event: StreamRolledOver) -> Phrase:
    story.close()
    return Phrase("↪", f"stream continued as run {event.continued_to_run_id}", "quiet")


def _closed(story: Story, event: StreamClosed) -> Phrase:
    story.close()
    text = f"stream {event.status}{story.because(event.error_reason)}"
    return Phrase("✗", text, "bad") if event.error_reason else Phrase("✓", text, "success")


_ABOUT = About("stream", "stream", None, ("stream_name",))

WORDS: dict[type[Event], Words] = {
    StreamOpened: Words(_ABOUT, _opened),
    StreamItemAppended: Words(_ABOUT, _appended),
    StreamRolledOver: Words(_ABOUT, _rolled_over),
    StreamClosed: Words(_ABOUT, _closed),
}
