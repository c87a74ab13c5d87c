"""Requests of workers that are for another node of the database, handed on to it as they are.

A worker has a link to every node. Where it cannot reach a node itself, or a load balancer leads it to another one, the
node that gets the request passes it on, and the reply back. Both nodes authorize the caller. A request is handed on
once, only to the address of a living node in the database's table, and with a proof that this node is one, too.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from backstay.engine.cluster.node_proofs import NodeProofs
from backstay.engine.node import Node
from backstay.link.http import HttpClient, Lost, NotHttp
from backstay.protocol.native import node_proofs
from backstay.protocol.native import worker as wire
from backstay.protocol.versions import VERSION_HEADER
from backstay.server.http.errors import HttpError, too_many_parked
from backstay.server.http.messages import ClientDisconnected, HttpRequest, HttpResponse
from backstay.server.http.parked_requests import ParkedRequests
from backstay.server.settings import Settings
from backstay.store import Store
from backstay.store.ownership import NodeRow

PATIENCE = 2.0  # seconds to connect, and of silence until the node is pinged
ANSWER = 60.0  # seconds to wait for a reply, beside the time that a request is parked
DIGITS = 19  # at most, of the id of a node: it has 63 bits
HANDED_ON = (
    *("authorization", "content-type", "x-namespace", "x-backstay-protocol", VERSION_HEADER.lower()),
    *("x-signature", "x-signature-time", "x-signature-nonce"),
)
_TO = wire.TO_HEADER.lower()
_VIA = wire.VIA_HEADER.lower()


class ProxyServer(Protocol):
    """The part of a server that hands requests on."""

    parked: ParkedRequests
    draining: bool
    address: str | None
    settings: Settings
    store: Store
    node: Node
    node_proofs: NodeProofs


def node_id(server: ProxyServer) -> int | None:
    """The id of this node; None if its database has one server only."""
    return None if server.store.exclusive else server.node.shards.me


def nodes_of(server: ProxyServer) -> list[wire.WorkerNode]:
    """This node and the others that serve workers. None: the database has one server only, or this one leaves."""
    shards = server.node.shards
    if server.store.exclusive:
        return []
    found = [
        wire.WorkerNode(row.id, row.facts.address, row.facts.weight)
        for row in shards.nodes.values()
        if row.id != shards.me and not row.facts.draining and _why_not(row) is None
    ]
    if not (server.draining or server.node.facts.draining):
        found.append(wire.WorkerNode(shards.me, server.address, server.node.facts.weight))
    return sorted(found, key=lambda node: node.id)


def station_id(server: ProxyServer, unique: str) -> str:
    """The id of a new link. It names this node."""
    node = node_id(server)
    return unique if node is None else f"{node}.{unique}"


def meant(server: ProxyServer, request: HttpRequest, station: str = "") -> int | None:
    """The other node that a request is for, by its header or by the link that it names; None: it is for this one."""
    me = node_id(server)
    if me is None:
        return None
    named = request.headers.get(_TO) or station.partition(".")[0]
    is_id = len(named) <= DIGITS and named.isascii() and named.isdigit()
    return int(named) if is_id and int(named) != me else None


class NodeProxy:
    def __init__(self, server: ProxyServer) -> None:
        self._server = server
        self._clients: dict[str, HttpClient] = {}
        self.handed_on = 0

    async def hand_on(self, request: HttpRequest, node: int, wait: float = 0) -> HttpResponse:
        """The reply of another node. `wait`: seconds for which that node parks the request."""
        server = self._server
        row = server.node.shards.nodes.get(node)
        address = None if row is None else row.facts.address
        why_not = "was meant, and a request is forwarded only once" if _VIA in request.headers else _why_not(row)
        if why_not is not None or address is None:
            raise HttpError(421, wire.OTHER_NODE, f"this is node {node_id(server)}; node {node} {why_not}")
        if not server.parked.admits(request.share):
            raise _too_many()
        client = self._client(address)
        lines = [f"{name}: {request.headers[name]}\r\n" for name in HANDED_ON if name in request.headers]
        proof = await server.node_proofs.make(node, "POST", request.target, request.body)
        lines += [f"{_TO}: {node}\r\n", f"{_VIA}: {node_id(server)}\r\n", f"{node_proofs.HEADER}: {proof}\r\n"]
        loop = asyncio.get_running_loop()
        asking = loop.create_task(client.post(request.target, request.body, ANSWER + wait, "".join(lines)))
        leaving = loop.create_task(request.until_disconnected())
        giving_way = loop.create_future()
        server.parked.enter(request.share, giving_way, partial(giving_way.set_result, None))
        self.handed_on += 1
        try:
            await asyncio.wait((asking, leaving, giving_way), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() and not asking.done():
                raise ClientDisconnected
            if not asking.done():
                raise _too_many()
            reply = asking.result()
        except (Lost, NotHttp) as error:
            message = f"node {node} at {address} does not answer: {error}"
            raise HttpError(502, "node_unreachable", message, retryable=True, retry_after_seconds=1) from None
        finally:
            server.parked.leave(request.share, giving_way)
            asking.cancel()
            leaving.cancel()
        return HttpResponse({}, reply.status, raw=reply.body)

    def _client(self, address: str) -> HttpClient:
        if address not in self._clients:
            living = {row.facts.address for row in self._server.node.shards.nodes.values()}
            for gone in [known for known in self._clients if known not in living]:
                self._clients.pop(gone).close()
            self._clients[address] = HttpClient(address, {}, patience=PATIENCE)
        return self._clients[address]

    def close(self) -> None:
        for client in self._clients.values():
            client.abandon()
            client.close()


def _why_not(row: NodeRow | None) -> str | None:
    """Why requests of workers cannot be handed on to a node; None: they can."""
    if row is None or not row.is_alive:
        return "is not known here"
    if row.facts.embedded:
        return "is an embedded app, which serves no workers"
    if row.facts.address is None:
        return (
            "advertises no address, so nobody can hand requests on to it: let it advertise one, or let the load balancer keep"
            " each worker at one node"
        )
    return None


def _too_many() -> HttpError:
    return too_many_parked("this server has no room for another poll (max_parked_polls)")
