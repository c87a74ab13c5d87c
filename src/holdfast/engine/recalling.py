"""What may have been tried before is decided in the light of the record that the earlier try has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.kernel.message import Message

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


async def recalled(engine: Engine, key: int, message: Message) -> Message:
    asked = message.repeats()
    if asked is None:
        return message
    kinds, request_id = asked
    for kind in kinds:
        record = await engine.retained(key, kind, request_id)
        if record is not None:
            return message.recalling(record)
    return message.recalling(None)
