"""What may have been tried before is decided in the light of the record that the earlier try has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.kernel.decision import CommandRecord
from holdfast.kernel.message import Message

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


async def recalled(engine: Engine, key: int, message: Message) -> Message:
    return message if message.repeats() is None else message.recalling(await record_of(engine, key, message))


async def record_of(engine: Engine, key: int, message: Message) -> CommandRecord | None:
    asked = message.repeats()
    if asked is None:
        return None
    kinds, request_id = asked
    for kind in kinds:
        record = await engine.retained(key, kind, request_id)
        if record is not None:
            return record
    return None
