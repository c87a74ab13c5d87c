"""Message streams: ordered input of an instance under a name. Received → consumed, once the cursor has passed it.

A message has a position, counted from 1 for the life of the instance, and an id, which is accepted once: its command is
kept under the id like under a request id. Code moves the cursor with the completion of a task. A run that continues as
new carries over the cursors and the messages after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.event import NO_CONTEXT, Context, Event, Recorded
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Lifecycle
from backstay.kernel.features import standalone
from backstay.kernel.features.condition import Conditions
from backstay.kernel.features.instance_commands import (
    CommandReply,
    NamedCommand,
    accept,
    answer_retry,
    cause,
    target_rejection,
)
from backstay.kernel.limits import over_count
from backstay.kernel.message import Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Resume
from backstay.kernel.turn import Turn
from backstay.kernel.values import CODEC, signal_id
from backstay.kernel.words import About, Phrase, Story, Words

SIGNAL = "__durable_workflow_message_stream"
"""The name under which workers see messages, as signals."""

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
ID_MAX = 255


class MessageAppend(NamedCommand, frozen=True, kw_only=True):
    """Append a message to the stream `name`."""

    command_type = "message"

    message_id: str


class AdvanceMessageCursor(Command, frozen=True, kw_only=True, omit_defaults=True, tag="advance_message_cursor"):
    """Code has consumed the messages up to this position."""

    stream_name: str
    through_position: int


class MessageReceived(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    signal_id: str
    stream_name: str
    message_id: str
    position: int
    payload: bytes | None = None
    payload_codec: str = CODEC


class MessageCursorAdvanced(Event, frozen=True, kw_only=True, omit_defaults=True):
    stream_key: str
    previous_position: int
    new_position: int


class MessageCursorCarried(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The cursor of the run before."""

    stream_name: str
    through_position: int


class MessageReply(Struct, frozen=True, kw_only=True):
    """The reply to a message. `command.repeated`: a message with this id was there before, at this position."""

    command: CommandReply
    stream_name: str
    message_id: str
    position: int


class Inbox:
    """The messages of one stream. `unread` by position, oldest first."""

    __slots__ = ("cursor", "last", "unread")

    def __init__(self) -> None:
        self.cursor = 0
        self.last = 0
        self.unread: dict[int, tuple[int, MessageReceived, Context]] = {}


class Inboxes:
    __slots__ = ("streams",)

    def __init__(self) -> None:
        self.streams: dict[str, Inbox] = {}

    def named(self, name: str) -> Inbox:
        return self.streams.setdefault(name, Inbox())


def request_id(stream_name: str, message_id: str) -> str:
    """The request id of the command of a message. No stream name has a slash."""
    return f"{stream_name}/{message_id}"


def check_name(name: str, field: str = "stream_name") -> None:
    if _NAME.fullmatch(name) is None:
        raise Refused(
            "invalid_stream_name",
            f"a stream name is 1 to 128 characters out of A-Z a-z 0-9 . _ : -, not {name[:200]!r}",
            field=field,
        )


def append(turn: Turn, message: MessageAppend) -> None:
    """Append a message. Only an accepted message is kept under its id, so a refused one may be sent again."""
    check_name(message.name)
    if not 1 <= len(message.message_id) <= ID_MAX:
        raise Refused(
            "invalid_message_id", f"a message id is 1 to {ID_MAX} characters that no other has", field="message_id"
        )
    if answer_retry(turn, message):
        assert message.retained is not None
        position: int = message.retained.context["message_stream"]["position"]
    else:
        position = _receive(turn, message)
    turn.reply = MessageReply(
        command=turn.reply, stream_name=message.name, message_id=message.message_id, position=position
    )


def _receive(turn: Turn, message: MessageAppend) -> int:
    why = target_rejection(turn, message)
    if why is not None:
        raise Refused(
            why.reason, f"workflow {turn.instance.workflow_id!r} has no running run that could take a message"
        )
    if standalone.applies(turn.run):
        raise Refused("run_not_active", f"{turn.instance.workflow_id!r} is an activity, which takes no messages")
    _refuse_too_much(turn, message)
    position = _last(turn.instance, message.name) + 1
    position_record = {"stream_name": message.name, "message_id": message.message_id, "position": position}
    command = accept(
        turn, replace(message, context={**message.context, "message_stream": position_record}), "message_received"
    )
    turn.record_or_buffer(
        MessageReceived(
            workflow_command_id=command.id,
            signal_id=signal_id(turn.run.run_id, command.sequence or 0),
            stream_name=message.name,
            message_id=message.message_id,
            position=position,
            payload=message.arguments,
        ),
        cause(command),
    )
    return position


def _buffered(instance: Instance) -> list[MessageReceived]:
    """The messages that were accepted in the middle of a task."""
    return [event for event, _ in instance.buffered_events if isinstance(event, MessageReceived)]


def _last(instance: Instance, name: str) -> int:
    found = instance.current.part(Inboxes).streams.get(name)
    return max(
        (event.position for event in _buffered(instance) if event.stream_name == name),
        default=0 if found is None else found.last,
    )


def _refuse_too_much(turn: Turn, message: MessageAppend) -> None:
    limits = turn.features.limits
    waiting = sum(len(inbox.unread) for inbox in turn.run.part(Inboxes).streams.values()) + len(
        _buffered(turn.instance)
    )
    breach = over_count("payload_size", len(message.arguments or b""), limits.payload_size) or over_count(
        "pending_signal_count", waiting + 1, limits.pending_signal_count
    )
    if breach is not None:
        raise Refused(
            "structural_limit_exceeded",
            breach.message,
            limit_kind=breach.kind,
            current_value=breach.value,
            configured_limit=breach.configured,
            retryable=breach.kind == "pending_signal_count",
        )


# -- commands of workflow code


def check(turn: Turn, command: AdvanceMessageCursor) -> None:
    check_name(command.stream_name)
    inbox = turn.run.part(Inboxes).streams.get(command.stream_name)
    last = 0 if inbox is None else inbox.last
    if not 0 <= command.through_position <= last:
        raise Refused(
            "invalid_commands",
            f"stream {command.stream_name!r} has delivered up to position {last}; its cursor cannot be at"
            f" {command.through_position}",
            field="through_position",
        )


def advance(turn: Turn, command: AdvanceMessageCursor) -> None:
    """Move the cursor forward. A command that does not is ignored."""
    inbox = turn.run.part(Inboxes).streams.get(command.stream_name)
    if inbox is not None and command.through_position > inbox.cursor:
        turn.record(
            MessageCursorAdvanced(
                stream_key=command.stream_name,
                previous_position=inbox.cursor,
                new_position=command.through_position,
            )
        )


# -- folds


def _received(run: Run, event: MessageReceived, entry: Recorded) -> None:
    inbox = run.part(Inboxes).named(event.stream_name)
    inbox.last = max(inbox.last, event.position)
    if event.position > inbox.cursor:
        inbox.unread[event.position] = (entry.sequence, event, entry.context)


def _go_past(inbox: Inbox, position: int) -> None:
    inbox.cursor = max(inbox.cursor, position)
    inbox.last = max(inbox.last, position)
    for read in [unread for unread in inbox.unread if unread <= position]:
        del inbox.unread[read]


def _advanced(run: Run, event: MessageCursorAdvanced, entry: Recorded) -> None:
    _go_past(run.part(Inboxes).named(event.stream_key), event.new_position)


def _carried(run: Run, event: MessageCursorCarried, entry: Recorded) -> None:
    _go_past(run.part(Inboxes).named(event.stream_name), event.through_position)


def _wake(run: Run, event: MessageReceived, entry: Recorded) -> Resume | None:
    """Wake code that waits on a condition, as code that waits for messages does. Other code sees messages with its next
    task.

    The published worker cannot end a task in which it sees a message and has no command.
    """
    if not run.part(Conditions).open:
        return None
    return Resume(
        workflow_wait_kind="signal",
        open_wait_id=f"signal-application:{event.signal_id}",
        resume_source_kind="workflow_signal",
        resume_source_id=event.signal_id,
        workflow_signal_id=event.signal_id,
        signal_name=SIGNAL,
        workflow_command_id=event.workflow_command_id,
        workflow_sequence=entry.sequence,
        workflow_event_type="SignalReceived",
    )


def _carry(run: Run) -> Iterable[tuple[int, Event, Context]]:
    """Carry over the cursors, and after them the unread messages: the cursor says whether a message is new."""
    if Inboxes not in run.parts:
        return
    for name, inbox in run.part(Inboxes).streams.items():
        if inbox.cursor:
            yield 0, MessageCursorCarried(stream_name=name, through_position=inbox.cursor), NO_CONTEXT
        yield from inbox.unread.values()


def _say_received(story: Story, event: MessageReceived) -> Phrase:
    return Phrase(
        "✉", f"message {event.position} of stream {event.stream_name!r} received{story.result(event.payload)}"
    )


def _say_advanced(story: Story, event: MessageCursorAdvanced) -> Phrase:
    return Phrase("✉", f"messages of stream {event.stream_key!r} up to {event.new_position} consumed", "quiet")


def _say_carried(story: Story, event: MessageCursorCarried) -> Phrase:
    text = f"messages of stream {event.stream_name!r} up to {event.through_position} were consumed by the run before"
    return Phrase("✉", text, "quiet")


_ABOUT = About("workflow", "workflow_run", None, ("stream_name", "stream_key"))


FEATURE = Feature(
    name="message_stream",
    deciding=Deciding(
        messages={MessageAppend: append},
        commands={AdvanceMessageCursor: CommandRule(check, advance)},
    ),
    history=History(
        evolve={
            MessageReceived: _received,
            MessageCursorAdvanced: _advanced,
            MessageCursorCarried: _carried,
        },
        resume={MessageReceived: _wake},
    ),
    lifecycle=Lifecycle(carry=_carry),
    words={
        MessageReceived: Words(_ABOUT, _say_received),
        MessageCursorAdvanced: Words(_ABOUT, _say_advanced),
        MessageCursorCarried: Words(_ABOUT, _say_carried),
    },
)
