"""Requests and responses of HTTP, as handlers see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote

import httptools
import msgspec

from backstay.server.auth import EVERY, Role
from backstay.server.http_errors import HttpError, invalid, undecodable

T = TypeVar("T")

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


class HttpRequest:
    """One request, as far as it has been received: its head at first, then its body."""

    keep_alive = True
    http_1_0 = False

    __slots__ = (
        "_gone",
        "_query",
        "_raw_query",
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

    def __init__(self, method: str, path: str, headers: Mapping[str, str], query: bytes = b"") -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self._raw_query = query
        self._query: dict[str, str] | None = None
        self._gone: asyncio.Future[None] | None = None
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
                raise HttpError(400, "malformed_query", "the query string has too many fields") from None
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

    async def gone(self) -> None:
        """Returns when the caller has hung up."""
        self._gone = asyncio.get_running_loop().create_future()
        await self._gone

    def hang_up(self) -> None:
        """The caller has hung up: whoever waits for that is told."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)


class ParsedRequest(HttpRequest):
    """A request whose head has been parsed, and whose body is still to come."""

    __slots__ = ("complete", "expects_continue", "http_1_0", "keep_alive", "target", "text", "too_large")

    def __init__(self, method: str, url: bytes, headers: Mapping[str, str]) -> None:
        try:
            parsed = httptools.parse_url(url)
            path = (parsed.path or b"").decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise HttpError(400, "malformed_request", "the URL of the request cannot be read") from None
        query = parsed.query or b""
        super().__init__(method, unquote(path) if "%" in path else path, headers, query)
        self.target = f"{path}?{query.decode('latin-1')}" if query else path  # as it was sent
        self.complete = False  # its body is here
        self.too_large = False  # its body is, and was dropped
        self.keep_alive = True  # the connection is for further requests
        self.http_1_0 = False
        self.expects_continue = False  # the client waits to hear that its body is wanted
        self.text: bytes | None = None  # of the head, by which it may be remembered


def decoded(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """What a body says, or a refusal of whatever is wrong with it."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise undecodable(error) from None
    except UnicodeDecodeError:
        raise HttpError(400, "malformed_json", "the body is not UTF-8", field="body") from None
    except RecursionError:
        raise HttpError(400, "malformed_json", "the body is nested too deeply", field="body") from None


def converted(value: Any, shape: type[T]) -> T:
    """A decoded body as this struct, or a refusal of whatever is wrong with it."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.MsgspecError as error:
        raise undecodable(error) from None


class HttpResponse(NamedTuple):
    """What a handler answers. `raw`: bytes of a type of its own, without the envelope of the plane. `parts`: the same, sent as they come.

    `last`: the connection ends with it, so that whoever asks again may be led to another server.
    """

    body: Mapping[str, Any]
    status: int = 200
    raw: bytes | None = None
    content_type: str = "application/json"
    parts: AsyncGenerator[bytes] | None = None
    last: bool = False


class ClientDisconnected(Exception):
    """The caller hung up; nobody is left to answer."""
