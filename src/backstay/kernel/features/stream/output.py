"""Writes of workflow code to a stream of its run: a step like a side effect, and a send in the same commit.

The step's value is recorded, so a replay writes nothing again. The engine delivers the send right after the commit;
after a crash the next engine does. Every item has a key, so it is appended once.
"""

from __future__ import annotations

from typing import ClassVar

from backstay.kernel.command import Command, StepCommand
from backstay.kernel.features.side_effect import SideEffectRecorded
from backstay.kernel.features.stream.append import check_items, check_name
from backstay.kernel.features.stream.records import StreamItem, StreamKey
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.send import OutboxMessage
from backstay.kernel.turn import Turn
from backstay.kernel.values import STREAMS


class WriteStream(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="write_stream"):
    """Append `items` (each with an idempotency key), or end the stream."""

    result: bytes
    stream_name: str
    items: list[StreamItem] = []
    max_pending_items: int | None = None
    finish: bool = False
    error_reason: str | None = None
    retention_seconds: int | None = None
    command_identity: str | None = None


class WriteToStream(OutboxMessage, frozen=True, kw_only=True, omit_defaults=True):
    creates: ClassVar[bool] = True

    to: StreamKey
    items: list[StreamItem] = []
    finish: bool = False
    error_reason: str | None = None
    retention_seconds: int | None = None
    command_identity: str | None = None


def check(turn: Turn, command: WriteStream) -> None:
    check_name(command.stream_name)
    if not command.finish:
        check_items(command.items)
        for position, item in enumerate(command.items):
            if item.idempotency_key is None:
                field = f"items[{position}].idempotency_key"
                raise Refused(
                    "invalid_stream_items",
                    f"{field}: an item that code writes may arrive twice, so it needs a key",
                    field=field,
                )


def apply(turn: Turn, command: WriteStream) -> None:
    run = turn.run
    turn.record(
        SideEffectRecorded(
            sequence=run.step + 1,
            result=command.result,
            stream_name=command.stream_name,
            stream_items=len(command.items),
        )
    )
    to = StreamKey(
        stream_name=command.stream_name, workflow_instance_id=turn.instance.workflow_id, workflow_run_id=run.run_id
    )
    message = WriteToStream(
        to=to,
        items=command.items,
        finish=command.finish,
        error_reason=command.error_reason,
        retention_seconds=command.retention_seconds,
        command_identity=command.command_identity,
    )
    turn.send(turn.instance.namespace + STREAMS, to.id, message)


def limits(turn: Turn, commands: list[Command]) -> Breach | None:
    sizes = [
        len(item.payload or b"") for command in commands if isinstance(command, WriteStream) for item in command.items
    ]
    return over_count("payload_size", max(sizes), turn.features.limits.payload_size) if sizes else None
