"""HTTP requests and responses, as handlers see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote

import httptools
import msgspec
from msgspec import Struct

from backstay.protocol.wire_fields import wire_fields
from backstay.server.access.accounts import account_of
from backstay.server.access.auth import ANYBODY, Caller, Role
from backstay.server.http.errors import HttpError, invalid, undecodable
from backstay.server.http.parked_requests import Share

T = TypeVar("T")

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


class HttpRequest:
    """One request, as far as it has been received: its head at first, then its body."""

    keep_alive = True
    http_1_0 = False

    __slots__ = (
        "_disconnected",
        "_query",
        "_repeated",
        "address",
        "body",
        "bound",
        "caller",
        "digest",
        "headers",
        "method",
        "namespace",
        "origin",
        "params",
        "path",
        "raw_query",
        "roles",
        "target",
        "version",
    )

    def __init__(self, method: str, path: str, headers: Mapping[str, str], query: bytes = b"") -> None:
        self.method = method
        self.path = path
        self.target = path  # as it was sent: in `path` names are decoded
        self.headers = headers
        self.raw_query = query
        self._query: dict[str, str] | None = None
        self._repeated: dict[str, list[str]] | None = None
        self._disconnected: asyncio.Future[None] | None = None
        self.params: dict[str, str] = {}
        self.body = b""
        self.digest: str | None = None  # that the body must have, by the proof of a node
        self.namespace = ""
        self.version = ""  # of the protocol that the caller speaks
        self.address = ""  # from which it came
        self.caller: Caller = ANYBODY
        self.origin: dict[str, Any] | None = None  # its origin, for records of commands; see `origin.py`
        self.roles: frozenset[Role] = ANYBODY.roles
        self.bound: str | None = None  # the only namespace that the caller may use

    @property
    def share(self) -> Share:
        """The account for which it waits, if it does."""
        return self.namespace, account_of(self.caller, self.address)

    @property
    def query(self) -> Mapping[str, str]:
        if self._query is None:
            self._query = {name: values[-1] for name, values in self.repeated.items()}
        return self._query

    @property
    def repeated(self) -> Mapping[str, list[str]]:
        """The query string with all values of each name."""
        if self._repeated is None:
            text = self.raw_query.decode("latin-1")
            try:
                self._repeated = parse_qs(text, True, max_num_fields=100)
            except ValueError:
                raise HttpError(400, "malformed_query", "the query string has too many fields") from None
        return self._repeated

    def values(self, name: str) -> list[str]:
        """Every value of a field that the query string may have several times."""
        try:
            return parse_qs(self.raw_query.decode("latin-1"), True, max_num_fields=100).get(name, [])
        except ValueError:
            raise HttpError(400, "malformed_query", "the query string has too many fields") from None

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number of the query string. One above `high` counts as `high`, so that a page is never too large."""
        text = self.query.get(name)
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < low:
            raise invalid(name, f"{name} must be a whole number from {low} to {high}, not {text!r}")
        return min(int(text), high)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("1", "true", "yes")

    @property
    def dry_run(self) -> bool:
        """Whether it is a dry run."""
        return bool(self.raw_query) and self.flag("dry_run")

    def decode(self, shape: type[T]) -> T:
        """The body as this struct; an empty body is an empty object."""
        decoder = _decoders.get(shape)
        if decoder is None:
            decoder = _decoders[shape] = msgspec.json.Decoder(shape)
        return decode_body(decoder, self.body or b"{}")

    async def until_disconnected(self) -> None:
        """Wait until the caller has hung up."""
        await self.hung_up()

    def hung_up(self) -> asyncio.Future[None]:
        """A future that is done when the caller has hung up. The last one counts."""
        self._disconnected = asyncio.get_running_loop().create_future()
        return self._disconnected

    def disconnect(self) -> None:
        """End `hung_up`, since the caller has hung up."""
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)


class ParsedRequest(HttpRequest):
    """A request whose head has been parsed; its body follows."""

    __slots__ = (
        "complete",
        "confirmed",
        "expects_continue",
        "head_text",
        "http_1_0",
        "keep_alive",
        "taken",
        "too_large",
    )

    def __init__(self, method: str, url: bytes, headers: Mapping[str, str]) -> None:
        try:
            parsed = httptools.parse_url(url)
            path = (parsed.path or b"").decode("ascii")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise HttpError(400, "malformed_request", "the URL of the request cannot be read") from None
        query = parsed.query or b""
        super().__init__(method, unquote(path) if "%" in path else path, headers, query)
        self.target = f"{path}?{query.decode('latin-1')}" if query else path
        self.complete = False  # the whole body has been received
        self.too_large = False  # the body is too large and was dropped
        self.keep_alive = True  # further requests may follow on the connection
        self.http_1_0 = False
        self.expects_continue = False  # the client sends its body after a 100 Continue
        self.head_text: bytes | None = None  # by which the head may be remembered
        self.taken = False  # its signature was used for it
        self.confirmed = False  # the registries were looked at again for it


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """The decoded body; raises an `HttpError` that names the field at fault."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise undecodable(error) from None
    except UnicodeDecodeError:
        raise HttpError(400, "malformed_json", "the body is not UTF-8", field="body") from None
    except RecursionError:
        raise HttpError(400, "malformed_json", "the body is nested too deeply", field="body") from None


def convert_body(value: Any, shape: type[T]) -> T:
    """Parsed JSON as this struct; raises an `HttpError` that names the field at fault."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.MsgspecError as error:
        raise undecodable(error) from None


class HttpResponse(NamedTuple):
    """The response of a handler.

    `raw`: bytes that are sent as they are, without the envelope of the plane; their type is `content_type`. `parts`: the
    same, sent one after the other as they are made. `last`: the connection ends with this response, so that the caller's next
    request may reach another server. `headers`: further headers, names in lower case.
    """

    body: Mapping[str, Any] | Struct
    status: int = 200
    raw: bytes | None = None
    content_type: str = "application/json"
    parts: AsyncGenerator[bytes] | None = None
    last: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the body, for code that reads an answer before it is encoded."""
        return wire_fields(self.body) if isinstance(self.body, Struct) else self.body


class ClientDisconnected(Exception):
    """The caller hung up, so no response can be sent."""
