"""The routes between nodes: a request about an instance that this node owns, handed on by the node that got it.

Role and namespace of a caller were judged where it called. Nodes prove their identity with each request
(`engine/cluster/node_proofs.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from backstay.engine.cluster.node_proofs import NotProven
from backstay.kernel.message import Refused
from backstay.protocol import requests as ask
from backstay.protocol.native import client as calls
from backstay.protocol.native import node_proofs, nodes
from backstay.protocol.native import worker as wire
from backstay.server.access.accounts import NODES
from backstay.server.access.auth import EVERY
from backstay.server.http.errors import HttpError, Stopping, undecodable
from backstay.server.http.messages import HttpRequest, HttpResponse, decode_body
from backstay.server.http.router import Route
from backstay.server.native.call_batches import LINES, answered
from backstay.server.native.client_routes import PendingCall, refused, submit

if TYPE_CHECKING:
    from backstay.server.server import Server

log = logging.getLogger("backstay.nodes")

SAID = 100  # addresses of nodes of earlier releases that are remembered, so that each is logged once
_PROOF = node_proofs.HEADER.lower()
_TO = nodes.TO_HEADER.lower()
_VIA = wire.VIA_HEADER.lower()


class NotANode(HttpError):
    """The caller is no node of this database. `refusal`: set if reading the rows again may lift it."""

    def __init__(self, status: int, refusal: NotProven) -> None:
        super().__init__(status, refusal.reason if status == 401 else nodes.OTHER_NODE, str(refusal))
        self.refusal = refusal if refusal.may_be_known else None


def check_proof(server: Server, request: HttpRequest) -> None:
    """Refuse a caller that is no node of this database, or that sends a request again."""
    if request.digest is None:
        _check_proof(server, request, 401)


def check_handed_on(server: Server, request: HttpRequest) -> None:
    """Refuse a request of a worker that another process than a node of this database has handed on."""
    if _VIA in request.headers and server.node_id() is not None and request.digest is None:
        _check_proof(server, request, 421)


def _check_proof(server: Server, request: HttpRequest, status: int) -> None:
    headers = request.headers
    sent = headers.get(_PROOF, "")
    if not sent and nodes.OLD_SECRET_HEADER.lower() in headers:
        raise NotANode(status, _of_an_earlier_release(request.address))
    try:
        request.digest = server.node_proofs.check(sent, headers.get(_TO, ""), request.method, request.target)
    except NotProven as refusal:
        raise NotANode(status, refusal) from None


def _of_an_earlier_release(address: str) -> NotProven:
    message = (
        f"the node at {address} runs an earlier release, which does not sign its requests; it sends them through the database."
        " Run the same release of Backstay on all nodes"
    )
    if address not in _told_of:
        if len(_told_of) >= SAID:
            _told_of.clear()
        _told_of.add(address)
        log.error("%s", message)
    return NotProven("not_a_node", message)


_told_of: set[str] = set()


def check_digest(request: HttpRequest) -> None:
    """Refuse a proven request whose body is another than the one that the node has sent."""
    if request.digest != node_proofs.digest_of(request.body):
        raise HttpError(401, "not_a_node", "the body of this request is not the body that the node has signed")


def check_link(headers: Mapping[str, str]) -> None:
    given = headers.get(nodes.HEADER.lower(), "")[:20]
    first, last = nodes.SPEAKS
    if given not in map(str, range(first, last + 1)):
        raise HttpError(
            400,
            "unsupported_link_version",
            f"this node speaks versions {first} to {last} of the messages between nodes, the caller {given or 'none'}",
            supported_version=last,
            requested_version=given,
        )


def _begin(server: Server, request: HttpRequest, verb: calls.Verb, body: bytes | Raw) -> PendingCall:
    try:
        asked = nodes.received(decode_body(verb.decode_request, body))
    except msgspec.MsgspecError as error:
        raise undecodable(error) from None
    me, meant = server.node_id(), request.headers.get(nodes.TO_HEADER.lower())
    if me is not None and meant != str(me):
        raise HttpError(421, nodes.OTHER_NODE, f"this is node {me}, not {meant}")
    share = (getattr(asked, "namespace", ""), NODES)
    if isinstance(asked, nodes.AskWorker):
        return submit(server, share, verb, asked, server.asked_questions.answer)
    if isinstance(asked, nodes.ReadRegistry):
        return submit(server, share, verb, asked, server.registries.read)
    if isinstance(asked, nodes.ReadRates):
        return submit(server, share, verb, asked, server.cluster.rates.here)
    if isinstance(asked, nodes.SweepShards):
        return submit(server, share, verb, asked, server.cluster.sweep.here)
    if isinstance(asked, nodes.SpareWorker):
        return submit(server, share, verb, asked, server.cluster.trials.here)
    owner = None if server.node.peers is None else server.node.peers.misdirected(asked)
    if owner is not None:
        said = {"owner": owner.id, "address": owner.address, "term": owner.term}
        raise HttpError(421, nodes.ELSEWHERE, "another node owns this instance", **said)
    if isinstance(asked, (nodes.FetchWorkflowTask, nodes.FetchActivityTask)):
        return _PendingFetch.of(server, verb, asked)
    return submit(server, share, verb, asked, server.api.here)


class _PendingFetch(PendingCall):
    """The reply to a fetch. A task that was leased for a node which has hung up is released."""

    @staticmethod
    def of(server: Server, verb: calls.Verb, asked: ask.Request[Any]) -> _PendingFetch:
        if server.draining:
            raise Stopping
        at_once: ask.Request[Any] = replace(asked, wait_seconds=0)
        answer: asyncio.Future[Any] = asyncio.ensure_future(server.api.here(at_once))
        return _PendingFetch(server, ("", NODES), verb, answer, waits=False, not_yet=None, seconds=0)

    def give_up(self) -> None:
        if not self.answer.done():
            self._given_up = True
            self.answer.cancel()


def _route(name: str, verb: calls.Verb) -> Route:
    def answer(server: Server, request: HttpRequest) -> PendingCall | HttpResponse:
        try:
            return _begin(server, request, verb, request.body)
        except Refused as refusal:
            return refused(refusal)

    answer.__doc__ = f"{verb.request.__name__}, forwarded by another node."
    return Route("POST", nodes.PATH + name, answer, "node", EVERY, body=verb.request)


async def many(server: Server, request: HttpRequest) -> HttpResponse:
    """Several of them; each is answered in a line of its own, or together with others."""
    return answered(request, nodes.VERBS, partial(_begin, server, request))


ROUTES = [
    *(_route(name, verb) for name, verb in nodes.VERBS.items()),
    Route("POST", nodes.MANY, many, "node", EVERY, body=calls.Calls, answers=LINES),
]


def advertised(address: str | None, listening: Sequence[str]) -> str | None:
    """The address by which other nodes call this one. If none is set: the first one that it listens on, unless it is a wildcard.

    Without one, other nodes reach it through the database.
    """
    if address is not None:
        return address
    return next((url for url in listening if not _is_wildcard(urlsplit(url).hostname or "")), None)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
