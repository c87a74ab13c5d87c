"""What may have been tried before is decided in the light of the record that the earlier try has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.engine.cache import Reply
from backstay.kernel.decision import CommandRecord
from backstay.kernel.message import Message

if TYPE_CHECKING:
    from backstay.engine.engine import Engine


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


def submit_again(engine: Engine, key: int, message: Message, reply: Reply | None) -> None:
    """Decide a message that may come late. What came in between may have been an earlier try of it, elsewhere."""
    if message.repeats() is None:
        engine.submit(key, message, reply)
    else:
        engine.world.spawn(_submit_recalled(engine, key, message, reply), "backstay-recall")


async def _submit_recalled(engine: Engine, key: int, message: Message, reply: Reply | None) -> None:
    try:
        engine.submit(key, await recalled(engine, key, message), reply)
    except Exception as error:
        if reply is not None:
            reply(None, error)
