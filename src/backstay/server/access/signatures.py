"""Signed requests: callers share a key with the server and sign each request with it.

    X-Signature: v1=HEX   X-Signature-Time: SECONDS   X-Signature-Nonce: ANYTHING

HEX is the HMAC-SHA256 of method, target, namespace, time, nonce and the SHA-256 of the body, a line each (`signed`). It is
valid for five minutes around that time, once (`used_signatures.py`).

Senders of webhooks sign the body only. Such a signature is valid for webhooks only: it names neither the route nor a time, so
it could be replayed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import NamedTuple

from backstay.kernel.values import SECOND, Micros
from backstay.server.access.used_signatures import WINDOW
from backstay.server.http.errors import HttpError

WEBHOOKS = "/webhooks/"
_FORM = "v1="


def signed(key: bytes, method: str, target: str, namespace: str, time: str, nonce: str, body: bytes) -> str:
    """The signature of a request. `target`: path and query as sent; `namespace`: the header, or an empty text."""
    lines = (method, target, namespace, time, nonce, sha256(body).hexdigest())
    return _FORM + hmac.new(key, "\n".join(lines).encode(), sha256).hexdigest()


class RequestSignature(NamedTuple):
    """The signature of a request, and the signed time in seconds."""

    text: bytes
    time: int


class NotTaken(Exception):
    """A signature is valid, but may have been used before."""

    def __init__(self, signature: RequestSignature) -> None:
        super().__init__("this signature has not been compared with the used ones yet")
        self.signature = signature


class Signatures:
    def __init__(self, key: str, now: Callable[[], Micros]) -> None:
        self._key = key.encode()
        self._now = now

    def check(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> RequestSignature | None:
        """Refuse a request without a valid signature of its own. Returns that signature, which may be used once; None:
        it is of a body alone, and can be used again."""
        given = headers.get("x-signature", "")
        if given.startswith(_FORM):
            return self._check_request(given, method, target, headers, body)
        if not target.startswith(WEBHOOKS) or not body:
            raise _unauthorized(
                "sign this request: X-Signature, X-Signature-Time and X-Signature-Nonce (docs/how-to/server.md); a signature"
                " of the body alone is valid only for webhooks with a body"
            )
        wanted = hmac.new(self._key, body, sha256).hexdigest()
        if not _same(wanted, given.removeprefix("sha256=")):
            raise _unauthorized("the X-Signature header does not sign this body with the server's key")
        return None

    def _check_request(
        self, given: str, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> RequestSignature:
        time, nonce = headers.get("x-signature-time", ""), headers.get("x-signature-nonce", "")
        wanted = signed(self._key, method, target, headers.get("x-namespace", ""), time, nonce, body)
        if not _same(wanted, given):
            raise _unauthorized("the X-Signature header does not sign this request with the server's key")
        now = self._now() / SECOND
        if not time.isdecimal() or len(time) > 12 or abs(int(time) - now) > WINDOW:
            raise _unauthorized(
                f"X-Signature-Time is {time[:20]!r}, which is not within {WINDOW} seconds of the server's clock ({now:.0f})"
            )
        return RequestSignature(bytes.fromhex(given[len(_FORM) :]), int(time))


def _same(wanted: str, given: str) -> bool:
    return hmac.compare_digest(wanted.encode(), given.encode())


def _unauthorized(message: str) -> HttpError:
    return HttpError(401, "unauthorized", message)
