"""The messages of a run: commands with their sender and origin, and the outcomes of their signals and updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.kernel.decision import CommandRecord
from backstay.kernel.event import Recorded
from backstay.kernel.views.messages import READS, SignalView, UpdateView, signals, updates
from backstay.protocol.payloads import envelope
from backstay.protocol.plain import plain
from backstay.protocol.shown_payloads import PayloadMode, show_envelopes
from backstay.protocol.tasks import optional_iso
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.selected import (
    Page,
    PartAnswer,
    about_run,
    check_parameters,
    fitting_items,
    number,
    part,
    payload_mode,
    selected_run,
)
from backstay.server.server import Server


class MessageOfRun(Struct, frozen=True, kw_only=True):
    """A command, and the signal or update that it was."""

    command_sequence: int | None
    command_id: str | None
    type: str
    name: str | None
    status: str | None
    outcome: str | None
    rejection_reason: str | None
    source: str | None
    recorded_at: str | None
    request_id: str | None
    fingerprint: str | None
    validation_errors: dict[str, list[str]]
    who: Annotated[dict[str, Any], Meta(description="The request that sent it: route, address, token, caller.")]
    context: dict[str, Any]
    payload: Any
    signal: dict[str, Any] | None
    update: dict[str, Any] | None


class MessagesAnswer(PartAnswer, frozen=True, kw_only=True):
    messages: list[MessageOfRun]
    next_after: Annotated[int | None, Meta(description="The command after which the next page begins.")]


async def messages(server: Server, request: HttpRequest) -> MessagesAnswer:
    """The commands, signals and updates of a run in the order of their commands, with who, where, payload and outcome."""
    check_parameters(request, "after", "page_size", "payloads")
    row = await selected_run(server, request)
    after = number(request, "after") or 0
    size = request.integer("page_size", 100, 1, 500)
    mode = payload_mode(request)
    told: list[Recorded] = []

    def take(events: Sequence[Recorded]) -> None:
        told.extend(entry for entry in events if isinstance(entry.event, READS))

    await server.api.slices.through(row.key, take)
    commands = await server.api.looking.commands(row.workflow)
    own = [command for command in commands if command.may_be_of(row.key)]

    def make() -> Page[MessageOfRun]:
        found = [one for one in _joined(own, told) if one[0] > after]
        return fitting_items((_shown(*one[1:], mode) for one in found), size)

    page = await server.api.slices.aside(make)
    return MessagesAnswer(
        **about_run(row), messages=page.items, next_after=page.items[-1].command_sequence if page.more else None
    )


Message = tuple[int, CommandRecord | None, SignalView | None, UpdateView | None]
"""The sequence of a command, its record, and the signal or the update that it was."""


def _joined(commands: list[CommandRecord], told: list[Recorded]) -> list[Message]:
    by_command: dict[str | None, CommandRecord] = {command.id: command for command in commands}
    found: list[Message] = [
        (signal.command_sequence or 0, by_command.pop(signal.command_id, None), signal, None)
        for signal in signals(told, commands)
    ]
    found += [
        (update.command_sequence or 0, by_command.pop(update.command_id, None), None, update)
        for update in updates(told)
    ]
    found += [(command.sequence or 0, command, None, None) for command in by_command.values()]
    return sorted(found, key=lambda one: one[0])


def _shown(
    command: CommandRecord | None, signal: SignalView | None, update: UpdateView | None, mode: PayloadMode
) -> MessageOfRun:
    message = signal or update
    shown: dict[str, Any] = {
        "command_sequence": None if message is None else message.command_sequence,
        "command_id": None if message is None else message.command_id,
        "type": "update" if update is not None else "signal",
        "name": update.update_name if update is not None else signal.signal_name if signal is not None else None,
        "status": None if message is None else message.status,
        "outcome": None if message is None else message.outcome,
        "rejection_reason": None if message is None else message.rejection_reason,
        "source": None if message is None else message.source,
    }
    if command is not None:
        shown |= {
            "command_sequence": command.sequence,
            "command_id": command.id,
            "type": command.command_type,
            "name": command.target_name,
            "status": command.status,
            "outcome": command.outcome,
            "rejection_reason": command.rejection_reason,
            "source": command.source,
        }
    given = None if message is None else message.arguments
    if command is not None and command.payload is not None:
        given = command.payload
    told = update if update is not None else signal
    return MessageOfRun(
        **shown,
        recorded_at=optional_iso(None if command is None else command.at),
        request_id=None if command is None else command.request_id,
        fingerprint=None if command is None else command.fingerprint,
        validation_errors={} if command is None else command.validation_errors,
        who={} if command is None else command.context.get("request", {}),
        context={} if command is None else {k: v for k, v in command.context.items() if k != "request"},
        payload=show_envelopes({"payload": envelope(given)}, mode)["payload"],
        signal=show_envelopes(plain(told), mode) if isinstance(told, SignalView) else None,
        update=show_envelopes(plain(told), mode) if isinstance(told, UpdateView) else None,
    )


ROUTES = part("messages", messages)
