"""Links between nodes: the interface by which one node calls another. `link/` has the one over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol, TypeVar

from backstay.kernel.event import HistoryDamaged
from backstay.kernel.message import Refused
from backstay.protocol import requests as ask
from backstay.protocol.native.nodes import LinkFailed, Misdirected, Owner

R = TypeVar("R")


class Links(Protocol):
    """Calls other nodes."""

    async def call(self, owner: Owner, request: ask.Request[R]) -> R:
        """Let the owner carry out a request. A wait may end sooner than requested.

        Raises `Refused` or `HistoryDamaged` as the owner's engine does, `Misdirected`, or `LinkFailed`.
        """
        ...

    def keep(self, living: Collection[int]) -> None:
        """Close the links to all nodes but these: a caller that waits for one of them calls its successor."""
        ...


async def asked_of(links: Links, node: Owner, request: ask.Request[R], seconds: float) -> R | None:
    """The answer of a node to a question that it may leave open; None: it gives none, or not within the time."""
    try:
        async with asyncio.timeout(seconds):
            return await links.call(node, request)
    except (LinkFailed, Misdirected, Refused, HistoryDamaged, TimeoutError):
        return None
