"""Instance lookup: finds the keys of instances that are not in memory by name, then submits the messages for them.

Names that are looked up within one iteration of the event loop share one query, since starting and ending a read costs more
than its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from backstay.engine.core.cache import Cache, Reply
from backstay.engine.core.idempotency import NamedCommandLog, address_late, submit_late
from backstay.kernel.message import Message
from backstay.store import Ready, Store

log = logging.getLogger("backstay.engine")

NamedMessage = tuple[str, Message, Reply]
"""An instance id, the message for it, and the callback for the answer."""


class Creates(NamedCommandLog, Protocol):
    """The part of an engine that decides messages for instances, also for those that do not exist yet."""

    store: Store
    cache: Cache

    def create(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None: ...


class InstanceLookup:
    def __init__(self, engine: Creates) -> None:
        self._engine = engine
        self._unknown: dict[str, list[NamedMessage]] = {}  # by namespace

    def add(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None:
        if not self._unknown:
            self._engine.world.soon(self._look)
        self._unknown.setdefault(namespace, []).append((workflow_id, message, reply))

    def _look(self) -> None:
        unknown, self._unknown = self._unknown, {}
        for namespace, messages in unknown.items():
            try:
                answer = self._engine.store.find_all(namespace, [id for id, _, _ in messages])
            except Exception as error:
                self._failed(messages, error)
                continue
            if isinstance(answer, Ready):
                self._found(namespace, messages, answer.value)
            else:
                self._engine.world.spawn(self._later(namespace, messages, answer), "backstay-find")

    async def _later(
        self, namespace: str, messages: Sequence[NamedMessage], answer: Awaitable[Mapping[str, int]]
    ) -> None:
        try:
            keys = await answer
        except Exception as error:
            self._failed(messages, error)
            return
        self._found(namespace, messages, keys)

    def _found(self, namespace: str, messages: Sequence[NamedMessage], keys: Mapping[str, int]) -> None:
        engine = self._engine
        for id, message, reply in messages:
            try:
                if id in keys:
                    submit_late(engine, keys[id], message, reply)
                elif engine.cache.named(namespace, id) is None:
                    engine.create(namespace, id, message, reply)
                else:
                    # Another message, perhaps an earlier attempt of this one, has created the instance during the query.
                    address_late(engine, (namespace, id), message, reply)
            except Exception as error:
                log.exception("workflow %s: deciding %s failed", id, type(message).__name__)
                reply(None, error)

    def _failed(self, messages: Sequence[NamedMessage], error: Exception) -> None:
        for _, _, reply in messages:
            reply(None, error)
