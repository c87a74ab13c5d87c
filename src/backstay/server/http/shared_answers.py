"""Answers that several requests share: all pages that show the same list hear of the same news, and ask the same at once.

A request that comes while its answer is being made gets the next one, which is begun after the request has come. So it sees all
that was committed before it, and however many ask, at most one answer to the same question is being made at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any


class SharedAnswers:
    def __init__(self) -> None:
        self._made: dict[Hashable, asyncio.Future[Any]] = {}
        self._next: dict[Hashable, asyncio.Future[Any]] = {}

    async def get(self, question: Hashable, make: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a question. `make` makes it; of several that ask, one is called."""
        waiting = self._next.get(question)
        if waiting is None:
            made = self._made.get(question)
            if made is None:
                waiting = self._begin(question, make)
            else:
                waiting = self._next[question] = asyncio.ensure_future(self._after(made, question, make))
        return await asyncio.shield(waiting)  # a caller that gives up does not take the answer from the others

    async def _after(self, made: asyncio.Future[Any], question: Hashable, make: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.wait([made])
        del self._next[question]
        return await self._begin(question, make)

    def _begin(self, question: Hashable, make: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        making = self._made[question] = asyncio.ensure_future(make())
        making.add_done_callback(lambda _: self._ended(question, making))
        return making

    def _ended(self, question: Hashable, making: asyncio.Future[Any]) -> None:
        if self._made.get(question) is making:
            del self._made[question]
        if not making.cancelled():
            making.exception()  # of a caller that has given up
