"""Refusals are checked against the database before they are sent.

An engine decides on the state in its memory. Another process may have committed to the instance, and this one has not
noticed yet. A decision that writes finds that out by its guard; a refusal writes nothing. So the row is read once more.
Without that, a process would deny what another one has acknowledged, and a replaced engine that does not know it yet
would wrongly stop the attempt of a worker. Only refusals pay for it. `tests/engine/test_refusals.py` shows it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from backstay.engine.core.cache import CachedInstance, Reply
from backstay.engine.core.idempotency import CommandLog, submit_late
from backstay.kernel.features.activity.attempts import HeartbeatReply
from backstay.kernel.message import Message, Refused
from backstay.kernel.values import SECOND
from backstay.store import Store

MOMENT = SECOND // 50  # for which an instance that is outdated and busy is left alone


class Rereads(CommandLog, Protocol):
    """The part of an engine that reads instances again."""

    store: Store

    def reload(self, key: int) -> bool: ...


def is_refusal(value: Any, error: BaseException | None) -> bool:
    """Whether a reply denies something, or stops a worker."""
    return isinstance(error, Refused) or (isinstance(value, HeartbeatReply) and not value.can_continue)


class Refusals:
    def __init__(self, engine: Rereads) -> None:
        self._engine = engine

    def tell(
        self, entry: CachedInstance, message: Message, reply: Reply, value: Any, error: BaseException | None
    ) -> None:
        """Answer a message that wrote nothing, on an instance without a commit on its way. A refusal is sent if the
        state that it was decided on is still that of the database; else the message is decided again."""
        if entry.on_disk and self._engine.store.shared and is_refusal(value, error):
            confirmation = self._confirmed(entry, entry.instance.last_decision, message, reply, value, error)
            self._engine.world.spawn(confirmation, "backstay-confirm")
        else:
            reply(value, error)

    async def _confirmed(
        self,
        entry: CachedInstance,
        decided_on: int,
        message: Message,
        reply: Reply,
        value: Any,
        refusal: BaseException | None,
    ) -> None:
        engine = self._engine
        key = entry.instance.key
        try:
            last = await engine.store.last(key)
        except Exception as unknown:
            reply(None, unknown)
            return
        if last == decided_on:
            reply(value, refusal)
        elif entry.dead or engine.reload(key):
            submit_late(engine, key, message, reply)
        else:  # the next commit of the instance fails by its guard, and then it is read again; code may take long until then
            world = engine.world
            pause = MOMENT if entry.inflight else 10 * MOMENT
            world.at(world.now() + pause, partial(submit_late, engine, key, message, reply))
