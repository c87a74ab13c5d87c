"""A database whose answers take their time, for one read or for all of a kind."""

from __future__ import annotations

import asyncio
from typing import Any

from backstay.store import Deferred


class SlowRead:
    """One of the next reads of a store takes its time: what it answers was true when it began."""

    def __init__(self, store: Any, verb: str, before: int = 0) -> None:
        self._store, self._verb, self._before = store, verb, before
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        setattr(store, verb, lambda *asked, **more: Deferred(lambda: self._answer(*asked, **more)))

    async def _answer(self, *asked: Any, **more: Any) -> Any:
        found = await getattr(type(self._store), self._verb)(self._store, *asked, **more)
        if self._before:
            self._before -= 1
            return found
        delattr(self._store, self._verb)
        self.began.set()
        await self.may_end.wait()
        return found


def far(store: Any, *verbs: str) -> None:
    """From now on these are never answered at once."""
    for verb in verbs:

        def ask(*asked: Any, verb: str = verb) -> Deferred[Any]:
            async def answer() -> Any:
                await asyncio.sleep(0)
                return await getattr(type(store), verb)(store, *asked)

            return Deferred(answer)

        setattr(store, verb, ask)
