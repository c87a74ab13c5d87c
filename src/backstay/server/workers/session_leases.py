"""Leases of worker sessions that have ended at another server, so that their sessions have room for other activities."""

from __future__ import annotations

import logging
from collections.abc import Callable

from backstay.engine.core.engine import Engine
from backstay.kernel.values import SECOND
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.server")


class SessionLeases:
    """The activities of sessions that are leased, as this server knows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._checking: set[tuple[str, str]] = set()

    def count(self, namespace: str, session_id: str) -> int:
        engine = self._engine
        reserved = engine.matching.polls.count_reserved(namespace, session_id)
        return len(engine.leases.of_session(namespace, session_id)) + reserved

    def check(self, namespace: str, session_id: str, then: Callable[[], None]) -> None:
        """Find out which of them have ended elsewhere. `then` is called at once if one has, else after a pause."""
        engine = self._engine
        session = (namespace, session_id)
        if session not in self._checking and not engine.store.exclusive:
            self._checking.add(session)
            engine.world.spawn(self._check(session, then), "backstay-session")

    async def _check(self, session: tuple[str, str], then: Callable[[], None]) -> None:
        engine = self._engine
        ended = False
        try:
            for task in engine.leases.of_session(*session):
                rows = {row.id: row for row in await engine.store.tasks(task.workflow)}
                row = rows.get(task.id)
                if row is None or (row.state, row.owner, row.attempt) != ("leased", task.owner, task.attempt):
                    engine.leases.ended(task)
                    ended = True
        except Unavailable as error:
            log.warning("leases of session %s could not be read: %s", session[1], error)

        def again() -> None:
            self._checking.discard(session)
            then()

        engine.world.at(engine.world.now() + (0 if ended else SECOND), again)
