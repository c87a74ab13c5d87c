"""The links of a node to the others: calls over HTTP, each with a proof by the secret that all nodes of a database share.

A link that fails three times in a row rests for a second, and then until the node answers a ping. Meanwhile calls fail
at once, so that no caller waits for an unreachable node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import msgspec

from backstay.kernel.message import Refused
from backstay.link.call_batcher import CallBatcher
from backstay.link.http import HttpClient, Lost, NotHttp, Reply
from backstay.link.replies import damage_in
from backstay.protocol import requests as ask
from backstay.protocol.native import client as calls
from backstay.protocol.native import node_proofs, nodes
from backstay.protocol.native.nodes import LinkFailed, Misdirected, Owner

R = TypeVar("R")

log = logging.getLogger("backstay.nodes")

PATIENCE = 2.0  # seconds to connect, and of silence until a node is pinged
REPLY_SECONDS = calls.PATIENCE + 10  # to wait for one reply; a node keeps no call waiting for longer than PATIENCE
FAILURES = 3
REST = 1.0  # seconds
UNUSED = 60.0  # seconds after which an unused link is closed
NOT_TAKEN = (404, 413, 422)
"""Statuses of a node that does not take this request: it is too large for it, or of a later release. It takes others."""
NOT_DONE = (400, 401, 421, 429)
"""Statuses of a node that takes no request now, and has not done this one."""


Sign = Callable[[str, int, str, str, bytes], str]
"""Makes the proof of a request: with a secret, to a node, of its method, its path and its body."""


class NodeLink:
    """The link to one node."""

    def __init__(self, owner: Owner, secret: str, sign: Sign) -> None:
        assert owner.address is not None, "a node without an address is not called"
        self.secret = secret
        headers = {
            nodes.HEADER: str(nodes.SPEAKS[1]),
            nodes.TO_HEADER: str(owner.id),
            "Content-Type": "application/json",
        }
        self.name = f"node {owner.id} at {owner.address}"

        def proof(path: str, body: bytes) -> str:
            return f"{node_proofs.HEADER}: {sign(secret, owner.id, 'POST', path, body)}\r\n"

        self._http = HttpClient(owner.address, headers, patience=PATIENCE, sign=proof)
        self._calls = CallBatcher(self._http, REPLY_SECONDS, path=nodes.PATH, many=nodes.MANY)
        self._failures = 0
        self._rests_until = 0.0
        self._pinging: asyncio.Task[None] | None = None
        self.used = time.monotonic()

    @property
    def lost(self) -> str | None:
        """The node, if it cannot be reached."""
        return None if self._failures < FAILURES else self.name

    def is_resting(self) -> bool:
        """Whether it is not to be used now. After a rest the node is pinged, and used again once it answers."""
        self.used = time.monotonic()
        if self._failures < FAILURES:
            return False
        if self.used >= self._rests_until and (self._pinging is None or self._pinging.done()):
            self._pinging = asyncio.get_running_loop().create_task(self._ping(), name="backstay-ping")
        return True

    async def _ping(self) -> None:
        if await self._http.reached(PATIENCE):
            self._failures = 0
            log.info("%s can be reached again", self.name)
        else:
            self._rests_until = time.monotonic() + REST

    async def post(self, verb: str, body: bytes) -> Reply:
        try:
            reply = await self._calls.post(verb, body)
        except (Lost, NotHttp) as error:
            raise self.failed(str(error), sent=isinstance(error, NotHttp) or error.sent) from None
        return reply

    def answered(self) -> None:
        self._failures = 0

    def failed(self, why: str, *, sent: bool) -> LinkFailed:
        """Count a failure. Returns it, to be raised."""
        self._failures += 1
        if self._failures == FAILURES:
            log.warning("%s cannot be used: %s; requests for its instances go through the database", self.name, why)
        self._rests_until = time.monotonic() + REST
        return LinkFailed(f"{self.name}: {why}", sent=sent)

    def close(self) -> None:
        """Calls that are under way fail, and are repeated elsewhere."""
        if self._pinging is not None:
            self._pinging.cancel()
        self._http.abandon()
        self._http.close()


class NodeLinks:
    """The links to all nodes that were called. `secret` returns that of the database; `refresh` looks for it there
    again."""

    def __init__(
        self, secret: Callable[[], Awaitable[str]], refresh: Callable[[], Awaitable[None]], sign: Sign
    ) -> None:
        self._sign = sign
        self._secret = secret
        self._refresh = refresh
        self._links: dict[tuple[int, str | None], NodeLink] = {}
        self._closed = False

    async def call(self, owner: Owner, request: ask.Request[R]) -> R:
        """Let a node carry out a request. Raises `Refused` or `HistoryDamaged` as its engine does, `Misdirected`, or `LinkFailed`."""
        verb = nodes.OF[type(request)]
        link = self._links.get((owner.id, owner.address)) or await self._open(owner)
        if link.is_resting():
            raise LinkFailed("the link rests", sent=False)
        reply = await link.post(verb.name, nodes.encode(request))
        if reply.status == 200:
            link.answered()
            return verb.decode_reply(reply.body)
        said = _said(reply)
        fields: Any = said.get("fields")
        if reply.status == 409 and isinstance(fields, dict):
            link.answered()
            raise Refused(str(said.get("reason")), str(said.get("message")), **fields)
        if reply.status == 421 and said.get("reason") == nodes.ELSEWHERE:
            link.answered()
            raise Misdirected(Owner(said["owner"], said["address"], said["term"]))
        damage = damage_in(said)
        if damage is not None:
            link.answered()
            raise damage
        why = str(said.get("message") or f"it answered with HTTP {reply.status}")
        if reply.status in NOT_TAKEN:
            link.answered()
            raise LinkFailed(f"{link.name}: {why}", sent=False)
        if reply.status == 401:
            await self._renew(owner, link)
        # A node that stops or is full also answers: the request is then done here.
        raise link.failed(why, sent=reply.status not in NOT_DONE)

    async def _open(self, owner: Owner) -> NodeLink:
        try:
            secret = await self._secret()
            if self._closed:
                raise LinkFailed("this node is stopping", sent=False)
            place = (owner.id, owner.address)
            if place not in self._links:
                self._close_unused()
                self._links[place] = NodeLink(owner, secret, self._sign)
        except LinkFailed:
            raise
        except Exception as error:  # an address that is none, or a database that does not answer
            raise LinkFailed(str(error), sent=False) from error
        return self._links[place]

    async def _renew(self, owner: Owner, link: NodeLink) -> None:
        """Use another secret, if the database has one: the node did not accept this."""
        try:
            await self._refresh()
            secret = await self._secret()
        except Exception as error:
            log.warning("the secret of the nodes cannot be read: %s", error)
            return
        if secret != link.secret and self._links.get((owner.id, owner.address)) is link:
            self._links[owner.id, owner.address] = NodeLink(owner, secret, self._sign)
            link.close()

    def _close_unused(self) -> None:
        now = time.monotonic()
        for place, link in list(self._links.items()):
            if now - link.used > UNUSED:
                del self._links[place]
                link.close()

    @property
    def unreachable(self) -> list[str]:
        """The nodes that were called in vain, and have not answered since."""
        return [link.lost for link in self._links.values() if link.lost is not None]

    def keep(self, living: Collection[int]) -> None:
        """Close the links to all nodes but these: a caller that waits for one of them calls its successor."""
        for place, link in list(self._links.items()):
            if place[0] not in living:
                del self._links[place]
                link.close()

    def close(self) -> None:
        self._closed = True
        self.keep(())


def _said(reply: Reply) -> dict[str, Any]:
    try:
        return msgspec.json.decode(reply.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}
