"""One request, read and understood so far: who, where, what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from backstay.server.auth import EVERY, Role
from backstay.server.problems import Problem, invalid, undecodable

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
T = TypeVar("T")

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


class Call:
    __slots__ = (
        "_query",
        "_raw_query",
        "_receive",
        "body",
        "bound",
        "headers",
        "method",
        "namespace",
        "params",
        "path",
        "roles",
        "version",
    )

    def __init__(self, method: str, path: str, headers: Mapping[str, str], query: bytes, receive: Receive) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self._raw_query = query
        self._query: dict[str, str] | None = None
        self._receive = receive
        self.params: dict[str, str] = {}
        self.body = b""
        self.namespace = ""
        self.version = ""  # of the protocol that the caller speaks
        self.roles: frozenset[Role] = EVERY
        self.bound: str | None = None  # the only namespace that the caller may speak of

    @property
    def query(self) -> Mapping[str, str]:
        if self._query is None:
            text = self._raw_query.decode("latin-1")
            try:
                self._query = {name: values[-1] for name, values in parse_qs(text, True, max_num_fields=100).items()}
            except ValueError:
                raise Problem(400, "malformed_query", "the query string has too many fields") from None
        return self._query

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number of the query string, clamped from above: a page is never larger than it may be."""
        text = self.query.get(name)
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < low:
            raise invalid(name, f"{name} must be a whole number from {low} to {high}, not {text!r}")
        return min(int(text), high)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("1", "true", "yes")

    def decode(self, shape: type[T]) -> T:
        """The body as this struct; an empty body is an empty object."""
        decoder = _decoders.get(shape)
        if decoder is None:
            decoder = _decoders[shape] = msgspec.json.Decoder(shape)
        return decoded(decoder, self.body or b"{}")

    async def read(self, limit: int, seconds: float) -> None:
        """Take in the body, as much as is allowed and not slower than is allowed."""
        try:
            async with asyncio.timeout(seconds):
                await self._read(limit)
        except TimeoutError:
            raise Problem(408, "body_timeout", f"the body did not arrive within {seconds:g} seconds") from None

    async def _read(self, limit: int) -> None:
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part: bytes = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            more = message.get("more_body", False)
        self.body = b"".join(parts)

    async def gone(self) -> None:
        """Returns when the caller has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def decoded(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """What a body says, or a refusal of whatever is wrong with it."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise undecodable(error) from None
    except UnicodeDecodeError:
        raise Problem(400, "malformed_json", "the body is not UTF-8", field="body") from None
    except RecursionError:
        raise Problem(400, "malformed_json", "the body is nested too deeply", field="body") from None


class Gone(Exception):
    """The caller hung up; nobody is left to answer."""


def _too_large(limit: int) -> Problem:
    return Problem(
        413,
        "payload_too_large",
        f"the body is larger than {limit} bytes (max_body_bytes); store what is so large elsewhere and pass on where it"
        " is, or let this server take more",
        field="body",
        configured_limit=limit,
    )
