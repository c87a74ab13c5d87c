"""Turns of requests that read: how many of one account (`accounts.py`) are answered at once. Further ones wait for their turn.

An answer about a run with a large history takes memory and a good part of a second of the server's thread. Hundreds of them at
once, of one caller, would make everybody else wait for all of them. With turns, another caller waits for a few.

A request that waits for news gives its turn back meanwhile. One whose caller hangs up while it waits for its turn is given up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from backstay.server.access.accounts import account_of
from backstay.server.http.messages import ClientDisconnected, HttpRequest

AT_ONCE = 8


class ReadingTurns:
    def __init__(self) -> None:
        self._held: dict[HttpRequest, str] = {}  # the account of each request that is answered
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}  # the oldest first

    @asynccontextmanager
    async def turn(self, request: HttpRequest) -> AsyncGenerator[None]:
        await self._take(request)
        try:
            yield
        finally:
            # Not at once: an answer that was made without waiting for anything would let the next one begin before the loop has
            # turned to other callers.
            asyncio.get_running_loop().call_soon(self._give_back, request)

    @asynccontextmanager
    async def rest(self, request: HttpRequest) -> AsyncGenerator[None]:
        """Give the turn of a request back while it waits for news, if it has one."""
        had = self._give_back(request)
        yield
        if had:
            await self._take(request)

    async def _take(self, request: HttpRequest) -> None:
        account = account_of(request.caller, request.address)
        if self._busy[account] < AT_ONCE:
            self._busy[account] += 1
        else:
            await self._wait(request, account)
        self._held[request] = account

    async def _wait(self, request: HttpRequest, account: str) -> None:
        """Wait until another request of the account hands its turn over."""
        waiting = self._waiting.setdefault(account, {})
        waiter = request.hung_up()
        waiting[waiter] = None
        try:
            await waiter
        except BaseException:
            if waiter not in waiting:
                self._hand_over(account)
            raise
        finally:
            is_over = waiting.pop(waiter, waiter) is None
            if not waiting and self._waiting.get(account) is waiting:
                del self._waiting[account]
        if is_over:
            raise ClientDisconnected

    def _give_back(self, request: HttpRequest) -> bool:
        account = self._held.pop(request, None)
        if account is None:
            return False
        self._hand_over(account)
        return True

    def _hand_over(self, account: str) -> None:
        """Let the oldest request that waits have the turn, if there is one."""
        waiting = self._waiting.get(account, {})
        for waiter in list(waiting):
            if not waiter.done():
                del waiting[waiter]
                waiter.set_result(None)
                return
        self._busy[account] -= 1
        if not self._busy[account]:
            del self._busy[account]
