"""Messages for instances that are not known here by name. Names that come up together are looked up together."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING

from backstay.engine.cache import Reply
from backstay.engine.recalling import submit_again
from backstay.kernel.message import Message
from backstay.store import Now

if TYPE_CHECKING:
    from backstay.engine.engine import Engine

log = logging.getLogger("backstay.engine")

Asked = tuple[str, Message, Reply]
"""An instance id, what it is told, and who waits for the answer."""


class Naming:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unknown: dict[str, list[Asked]] = {}  # by namespace

    def add(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None:
        if not self._unknown:
            self._engine.world.soon(self._look)
        self._unknown.setdefault(namespace, []).append((workflow_id, message, reply))

    def _look(self) -> None:
        unknown, self._unknown = self._unknown, {}
        for namespace, asked in unknown.items():
            try:
                found = self._engine.store.find_all(namespace, [id for id, _, _ in asked])
            except Exception as error:
                self._failed(asked, error)
                continue
            if isinstance(found, Now):
                self._found(namespace, asked, found.value)
            else:
                self._engine.world.spawn(self._later(namespace, asked, found), "backstay-find")

    async def _later(self, namespace: str, asked: Sequence[Asked], found: Awaitable[Mapping[str, int]]) -> None:
        try:
            keys = await found
        except Exception as error:
            self._failed(asked, error)
            return
        self._found(namespace, asked, keys)

    def _found(self, namespace: str, asked: Sequence[Asked], keys: Mapping[str, int]) -> None:
        engine = self._engine
        for id, message, reply in asked:
            # While we looked, another message may have created it: perhaps an earlier try of this one.
            key = keys.get(id) or engine.cache.named(namespace, id)
            try:
                if key is None:
                    engine.create(namespace, id, message, reply)
                else:
                    submit_again(engine, key, message, reply)
            except Exception:
                log.exception("deciding %s for workflow %s failed", type(message).__name__, id)

    def _failed(self, asked: Sequence[Asked], error: Exception) -> None:
        for _, _, reply in asked:
            reply(None, error)
