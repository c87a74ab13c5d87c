"""How answers leave the server: in the envelope of their plane, with the headers of their status and of security.

Answers of the control plane say when they were made (`generated_at`) and hold no number that JavaScript would change.
An answer to a GET has an ETag of everything but that time, so that a caller with the same answer gets 304, and is
compressed on request.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import msgspec

from backstay.kernel.values import Micros
from backstay.protocol.history import iso
from backstay.protocol.versions import CONTROL_PLANE, CONTROL_PLANE_HEADER, VERSION, VERSION_HEADER
from backstay.protocol.wire_fields import wire_fields
from backstay.server.access.hidden_payloads import hidden
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.published.control.contract import control_plane

Headers = list[tuple[bytes, bytes]]

SECURITY = (
    b"x-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\ncross-origin-resource-policy: same-origin\r\n"
    b"x-frame-options: DENY\r\n"
)
"""Header lines of every answer but the short ones of the native protocol, which no browser can request."""

COMPRESSED_ABOVE = 1024
"""Bytes of an answer from which on it is compressed."""

AT_ONCE = 128 << 10
"""Bytes that are compressed on the server's thread; more are compressed beside it."""

LEVEL = 1
_GZIP = 16 + zlib.MAX_WBITS

SAFE = 2**53
"""JavaScript has no exact integers above this."""

_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_NO_STORE = (b"cache-control", b"no-store")
_REVALIDATED = (b"cache-control", b"private, no-cache")
_VARIES = (b"vary", b"authorization, cookie, x-namespace, accept-encoding")
_VERSION_HEADER = VERSION_HEADER.lower().encode()
_CONTROL_HEADER = (CONTROL_PLANE_HEADER.lower().encode(), CONTROL_PLANE.encode())
_STAMPED = ("control", "discovery", "sign_in")

_encode = msgspec.json.Encoder(decimal_format="number").encode
_RUNS = bytes(0x30 if 0x30 <= code <= 0x39 else 0x20 for code in range(256))
_LONG = b"0" * 16
_LONG_NUMBER = re.compile(rb"[:\[,]-?\d{16,}[,}\]]")


class Encoded(NamedTuple):
    """An answer as it is sent. `content` None: it is sent in parts."""

    status: int
    headers: Headers
    content: bytes | None


def encoded(
    route: Route | None, request: HttpRequest, answer: HttpResponse, now: Micros, capabilities: msgspec.Raw
) -> Encoded:
    """`capabilities`: of the server, sent to workers with every answer."""
    plane = "open" if route is None else route.plane
    headers: Headers = [(b"content-type", answer.content_type.encode()), *answer.headers]
    body = answer.body
    status = answer.status
    if plane == "worker":
        version = request.version or VERSION
        body = {**answer.fields, "protocol_version": version, "server_capabilities": capabilities}
        headers += ((_VERSION_HEADER, version.encode()), _NO_STORE)
    else:
        if plane in ("control", "sign_in"):
            headers.append(_CONTROL_HEADER)
        if not any(name == b"content-security-policy" for name, _ in answer.headers):
            headers.append(_POLICY)
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (429, 503):
        headers.append((b"retry-after", str(answer.fields.get("retry_after_seconds") or 1).encode()))
    if answer.parts is not None:
        headers += ((b"x-accel-buffering", b"no"), _NO_STORE)  # a proxy must not collect the parts
        return Encoded(status, headers, None)
    if plane in _STAMPED and answer.raw is None:
        assert route is not None
        if route.operation is not None:
            fields = answer.fields
            body = {**fields, "control_plane": control_plane(route.operation, request, fields)}
        return _stamped(request, status, headers, body if request.caller.payloads else hidden(body), now)
    if plane != "worker" and not any(name == b"cache-control" for name, _ in answer.headers):
        headers.append(_NO_STORE)
    return Encoded(status, headers, _encode(body) if answer.raw is None else answer.raw)


def _stamped(
    request: HttpRequest, status: int, headers: Headers, body: Mapping[str, Any] | msgspec.Struct, now: Micros
) -> Encoded:
    """An answer with the time at which it was made, and to a GET with its ETag."""
    if isinstance(body, Mapping) and "generated_at" in body:
        body = {name: value for name, value in body.items() if name != "generated_at"}
    content = _encode(body)
    if _may_have_large_numbers(content):
        content = _encode(with_safe_numbers(body))
    if request.method == "GET" and status == 200:
        tag = f'W/"{blake2b(content, digest_size=16).hexdigest()}"'
        headers += ((b"etag", tag.encode()), _REVALIDATED, _VARIES)
        if _knows(request, tag):
            return Encoded(304, headers, b"")
    else:
        headers.append(_NO_STORE)
    rest = b"}" if content == b"{}" else b"," + content[1:]
    return Encoded(status, headers, b'{"generated_at":"%b"%b' % (iso(now).encode(), rest))


def _knows(request: HttpRequest, tag: str) -> bool:
    """Whether the caller has this answer already."""
    known = request.headers.get("if-none-match", "")
    plain = tag.removeprefix("W/")
    return known.strip() == "*" or any(one.strip().removeprefix("W/") == plain for one in known.split(","))


# -- numbers


def _may_have_large_numbers(content: bytes) -> bool:
    """Whether encoded JSON may have an integer of 16 digits or more. Answers rarely have, so this has to be quick."""
    return _LONG in content.translate(_RUNS) and _LONG_NUMBER.search(content) is not None


def with_safe_numbers(value: Any) -> Any:
    """The same value with integers above 2^53 as strings."""
    if type(value) is int:
        return value if -SAFE <= value <= SAFE else str(value)
    if isinstance(value, Mapping):
        held = cast("Mapping[str, Any]", value)
        return {name: with_safe_numbers(part) for name, part in held.items()}
    if isinstance(value, list | tuple):
        return [with_safe_numbers(part) for part in cast("list[Any]", value)]
    if isinstance(value, msgspec.Raw):
        return with_safe_numbers(msgspec.json.decode(value))
    if isinstance(value, msgspec.Struct):
        return with_safe_numbers(wire_fields(value))
    return value


# -- compression


def compresses(request: HttpRequest, content_type: str) -> bool:
    """Whether an answer of this type may be compressed: on a GET whose caller accepts it, but no stream of events,
    whose parts must not wait for each other."""
    return request.method == "GET" and content_type == "application/json" and accepts_gzip(request.headers)


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    for one in headers.get("accept-encoding", "").split(","):
        coding, _, weight = one.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def compressor() -> Any:
    return zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP)


def compress(content: bytes) -> bytes:
    work = compressor()
    return work.compress(content) + work.flush()


GZIP = (b"content-encoding", b"gzip")
