"""The routes between nodes: a request about an instance that this node owns, handed on by the node that got it.

Role and namespace of a caller were judged where it called. Nodes know each other by a secret in the database.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from backstay.kernel.message import Refused
from backstay.protocol import requests as ask
from backstay.protocol.native import client as calls
from backstay.protocol.native import nodes
from backstay.server.auth import EVERY
from backstay.server.http_errors import HttpError, Stopping, undecodable
from backstay.server.http_messages import HttpRequest, HttpResponse, decode_body
from backstay.server.native.call_batches import LINES, answered
from backstay.server.native.client_routes import PendingCall, refused, submit
from backstay.server.router import Route

if TYPE_CHECKING:
    from backstay.server.server import Server


def check_secret(server: Server, headers: Mapping[str, str]) -> None:
    """Refuse a caller that is no node of this database."""
    proof, node = headers.get(nodes.SECRET_HEADER.lower(), ""), headers.get(nodes.TO_HEADER.lower(), "")
    if not server.node_secrets.accepts(proof, node):
        raise HttpError(401, "not_a_node", "this route is for the nodes of this database, which have a secret in it")


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
        raise HttpError(421, nodes.OTHER_NODE, f"this is node {me}, and not {meant}")
    if isinstance(asked, nodes.AskWorker):
        return submit(server, verb, asked, server.asked_questions.answer)
    if isinstance(asked, nodes.ReadRegistry):
        return submit(server, verb, asked, server.registries.read)
    if isinstance(asked, nodes.ReadRates):
        return submit(server, verb, asked, server.rates_of_nodes.here)
    if isinstance(asked, nodes.SweepShards):
        return submit(server, verb, asked, server.sweep_of_nodes.here)
    owner = None if server.node.peers is None else server.node.peers.misdirected(asked)
    if owner is not None:
        said = {"owner": owner.id, "address": owner.address, "term": owner.term}
        raise HttpError(421, nodes.ELSEWHERE, "another node owns this instance", **said)
    if isinstance(asked, (nodes.FetchWorkflowTask, nodes.FetchActivityTask)):
        return _PendingFetch.of(server, verb, asked)
    return submit(server, verb, asked, server.api.here)


class _PendingFetch(PendingCall):
    """The reply to a fetch. A task that was leased for a node which has hung up is released."""

    @staticmethod
    def of(server: Server, verb: calls.Verb, asked: ask.Request[Any]) -> _PendingFetch:
        if server.draining:
            raise Stopping
        at_once: ask.Request[Any] = replace(asked, wait_seconds=0)
        answer: asyncio.Future[Any] = asyncio.ensure_future(server.api.here(at_once))
        return _PendingFetch(server, verb, answer, waits=False, not_yet=None, seconds=0)

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

    answer.__doc__ = f"{verb.request.__name__}, handed on by another node."
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
