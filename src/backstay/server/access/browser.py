"""Browser sessions: a cookie that stands for the token with which a person has signed in.

opened → ended: by its owner, after `session_lifetime_seconds`, or with its token (revoked, rotated, another setting).

The cookie holds a secret that is stored nowhere. Its SHA-256 finds the session, and a seal made with it and with the
token shows whether the token is still the same; from neither can the secret or the token be found.

A browser sends cookies along with requests that other sites make. So a cookie counts only if the browser says that the
request comes from a page of this server: `Sec-Fetch-Site: same-origin`, or from older browsers an `Origin` equal to `Host`.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256

from msgspec import Struct

from backstay.engine.core.local_kinds import BROWSER_SESSION
from backstay.kernel.values import SECOND, Micros
from backstay.server.access.accounts import account, network
from backstay.server.http.errors import HttpError
from backstay.server.registries.registry import StoredRegistry
from backstay.store import Store

KIND = BROWSER_SESSION
PLAIN = "dw"
SECURE = "__Host-dw"
"""The name of the cookie on TLS: browsers keep a cookie of this name only if it is safe, and for this host alone."""

MOST = 1000
"""Sessions that are kept at once. The oldest sessions make room, of the account (`accounts.py`) that has the most: no
account signs others out."""

WRONG = 10
"""Wrong tokens of one address that are looked up and recorded in a minute."""

WRONG_OF_ALL = 100
"""Wrong tokens of all addresses that are recorded in a minute."""

MINUTE = 60 * SECOND
ADDRESSES = 10_000  # whose wrong tokens are remembered


class BrowserSession(Struct, frozen=True, kw_only=True):
    id: str  # shown to people; the secret is in the cookie alone
    token_id: str
    seal: str
    role: str
    created_at: Micros
    expires_at: Micros
    namespace: str | None = None
    payloads: bool = True
    address: str = ""

    @property
    def account(self) -> str:
        return account(self.namespace, self.token_id)

    def was_opened_by(self, secret: str, digest: bytes) -> bool:
        """Whether a token with this digest has opened the session."""
        return hmac.compare_digest(self.seal, seal(secret, digest))


def seal(secret: str, digest: bytes) -> str:
    """A hash of a token's digest that only the bearer of the session's secret can make."""
    return hmac.new(secret.encode(), digest, sha256).hexdigest()


class BrowserSessions:
    """`tls`: this server itself speaks HTTPS."""

    def __init__(self, store: Store, now: Callable[[], Micros], lifetime_seconds: int, *, tls: bool) -> None:
        self.kept = StoredRegistry(store, KIND, BrowserSession)
        self.lifetime_seconds = lifetime_seconds
        self._now = now
        self._tls = tls

    async def load(self) -> None:
        await self.kept.load()

    # -- cookies

    def secret(self, headers: Mapping[str, str]) -> str | None:
        """The secret of a request's cookie, if it has one. Refuses it unless a page of this server sent the request."""
        cookies = _cookies(headers.get("cookie", ""))
        found = cookies.get(SECURE) or (None if self._tls else cookies.get(PLAIN))
        if found is not None and not self.same_origin(headers):
            raise cross_site()
        return found or None

    def same_origin(self, headers: Mapping[str, str]) -> bool:
        """Whether the browser says that a page of this server makes the request. Silence is a no."""
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        scheme, _, place = headers.get("origin", "").partition("://")
        secure = scheme == "https" or (scheme == "http" and not self._tls)
        return secure and place.lower() == headers.get("host", "").lower() != ""

    def cookie(self, headers: Mapping[str, str], secret: str, seconds: int) -> str:
        """The header that sets the cookie, or with 0 seconds deletes it."""
        # A proxy may speak TLS for this server: then the page that signs in says so.
        secure = self._tls or headers.get("origin", "").startswith("https://")
        name, more = (SECURE, "; Secure") if secure else (PLAIN, "")
        return f"{name}={secret}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Strict{more}"

    # -- sessions

    def find(self, secret: str) -> BrowserSession | None:
        """The session of a cookie; refuses one that is over."""
        session = self.kept.get("", _name(secret))
        if session is None or session.expires_at <= self._now():
            raise HttpError(401, "session_ended", "this session has ended; sign in again")
        return session

    async def open(
        self, id: str, token_id: str, digest: bytes, role: str, namespace: str | None, payloads: bool, address: str
    ) -> tuple[BrowserSession, str]:
        """Open a session for the token with this digest. Returns it, and the secret for the cookie."""
        await self.forget(room_for=1)
        secret = secrets.token_urlsafe(32)
        now = self._now()
        session = BrowserSession(
            id=id,
            token_id=token_id,
            seal=seal(secret, digest),
            role=role,
            namespace=namespace,
            payloads=payloads,
            created_at=now,
            expires_at=now + self.lifetime_seconds * SECOND,
            address=address,
        )
        await self.kept.put("", _name(secret), session)
        return session, secret

    async def end(self, session_id: str) -> None:
        await self._remove(lambda session: session.id == session_id)

    async def end_of_token(self, token_id: str) -> None:
        """End the sessions of a token that is not valid any more."""
        await self._remove(lambda session: session.token_id == token_id)

    async def forget(self, room_for: int = 0) -> None:
        """Remove the sessions that are over, and if there are too many the oldest of the account that has the most."""
        now = self._now()
        await self._remove(lambda session: session.expires_at <= now)
        while len(left := self.kept.all()) + room_for > MOST:
            ((largest, _),) = Counter(session.account for session in left).most_common(1)
            oldest = min((one for one in left if one.account == largest), key=lambda one: one.created_at)
            await self.end(oldest.id)

    async def _remove(self, over: Callable[[BrowserSession], bool]) -> None:
        for name, session in self.kept.of(""):
            if over(session):
                await self.kept.remove("", name)


class WrongTokens:
    """Counts wrong tokens by address, so that guessing costs the database little. An IPv6 network of a customer (/64)
    is one address.

    A known token is never refused because of others: all users of one proxy have one address.
    """

    def __init__(self, now: Callable[[], Micros]) -> None:
        self._now = now
        self._counts: dict[str, tuple[Micros, int]] = {}  # since when, how many; the longest unchanged first
        self._of_all: tuple[Micros, int] = (0, 0)

    def check(self, address: str) -> None:
        """Refuse an unknown token of an address that has sent too many in the last minute."""
        since, count = self._counts.get(network(address), (0, 0))
        left = since + MINUTE - self._now()
        if count >= WRONG and left > 0:
            seconds = -(-left // SECOND)
            raise HttpError(
                429,
                "too_many_wrong_tokens",
                f"{WRONG} wrong tokens came from this address within a minute; try again in {seconds} s",
                retryable=True,
                retry_after_seconds=seconds,
            )

    def add(self, address: str) -> bool:
        """Count a wrong token. Whether it is recorded for the audit: there is room for some in a minute."""
        now = self._now()
        place = network(address)
        since, count = self._counts.pop(place, (now, 0))
        self._counts[place] = (since, count + 1) if now < since + MINUTE else (now, 1)
        while len(self._counts) > ADDRESSES:
            del self._counts[next(iter(self._counts))]
        since, count = self._of_all
        self._of_all = (since, count + 1) if now < since + MINUTE else (now, 1)
        return self._of_all[1] <= WRONG_OF_ALL


def cross_site() -> HttpError:
    return HttpError(
        403,
        "cross_site_request",
        "the cookie of a session is valid only in requests that pages of this server make (Sec-Fetch-Site: same-origin, or an"
        " Origin equal to the Host)",
        remediation="Call the server with a token in the header Authorization, or from one of its own pages.",
    )


def _cookies(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _name(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
