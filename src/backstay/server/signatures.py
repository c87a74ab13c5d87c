"""Signed requests: callers share a key with the server and sign each request with it.

    X-Signature: v1=HEX   X-Signature-Time: SECONDS   X-Signature-Nonce: ANYTHING

HEX is the HMAC-SHA256 of method, target, namespace, time, nonce and the SHA-256 of the body, a line each (`signed`). It is
valid for five minutes around that time, once.

Senders of webhooks sign the body only. Such a signature is valid for webhooks only: it names neither the route nor a time, so
it could be replayed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256

from backstay.kernel.values import SECOND, Micros
from backstay.server.http_errors import HttpError

WINDOW = 300  # seconds that the time of a signature may differ from now
REMEMBERED = 500_000  # signatures within one window
WEBHOOKS = "/webhooks/"
_FORM = "v1="


def signed(key: bytes, method: str, target: str, namespace: str, time: str, nonce: str, body: bytes) -> str:
    """The signature of a request. `target`: path and query as sent; `namespace`: the header, or an empty text."""
    lines = (method, target, namespace, time, nonce, sha256(body).hexdigest())
    return _FORM + hmac.new(key, "\n".join(lines).encode(), sha256).hexdigest()


class Signatures:
    def __init__(self, key: str, now: Callable[[], Micros]) -> None:
        self._key = key.encode()
        self._now = now
        self._seen: set[bytes] = set()  # signatures of the current window
        self._before: set[bytes] = set()  # of the window before
        self._turn = 0.0

    def check(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        """Refuse a request without a valid signature of its own."""
        given = headers.get("x-signature", "")
        if given.startswith(_FORM):
            self._check_request(given, method, target, headers, body)
        elif not target.startswith(WEBHOOKS) or not body:
            raise _unauthorized(
                "sign this request: X-Signature, X-Signature-Time and X-Signature-Nonce (docs/how-to/server.md); the signature"
                " of a body alone opens webhooks that have one"
            )
        else:
            wanted = hmac.new(self._key, body, sha256).hexdigest()
            if not _same(wanted, given.removeprefix("sha256=")):
                raise _unauthorized("the X-Signature header does not sign this body with the server's key")

    def _check_request(self, given: str, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        time, nonce = headers.get("x-signature-time", ""), headers.get("x-signature-nonce", "")
        wanted = signed(self._key, method, target, headers.get("x-namespace", ""), time, nonce, body)
        if not _same(wanted, given):
            raise _unauthorized("the X-Signature header does not sign this request with the server's key")
        now = self._now() / SECOND
        if not time.isdecimal() or len(time) > 12 or abs(int(time) - now) > WINDOW:
            raise _unauthorized(
                f"X-Signature-Time is {time[:20]!r}, which is not within {WINDOW} seconds of the server's clock ({now:.0f})"
            )
        self._once(given, now)

    def _once(self, given: str, now: float) -> None:
        # A signature is valid for at most two windows: one before its time and one after it.
        if now - self._turn > 2 * WINDOW:
            self._before = self._seen if now - self._turn <= 4 * WINDOW else set()
            self._seen, self._turn = set(), now
        short = bytes.fromhex(given[len(_FORM) :])[:16]
        if short in self._seen or short in self._before:
            raise _unauthorized("this signed request has been made already; sign each one with a nonce of its own")
        if len(self._seen) >= REMEMBERED:
            raise HttpError(
                429,
                "signature_capacity_exhausted",
                f"{REMEMBERED} signed requests were made in a few minutes, and no more can be told from repeated ones",
                retryable=True,
                retry_after_seconds=WINDOW,
            )
        self._seen.add(short)


def _same(wanted: str, given: str) -> bool:
    return hmac.compare_digest(wanted.encode(), given.encode())


def _unauthorized(message: str) -> HttpError:
    return HttpError(401, "unauthorized", message)
