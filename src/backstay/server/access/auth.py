"""Authentication and authorization of callers. Tokens are compared in constant time and never shown.

Roles: a *worker* runs tasks, a *viewer* reads what operators read and changes nothing, an *operator* reads and commands
workflows, an *admin* also changes namespaces, tokens and workers. The token of the setting `token` has every role.

A caller proves who it is with a token (`Authorization: Bearer`), with the cookie of a browser session that a token has opened
(`browser.py`), or with a signature (`signatures.py`).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, NamedTuple

from backstay.server.access.hosts import KnownHosts
from backstay.server.http.errors import HttpError
from backstay.server.settings import Settings

if TYPE_CHECKING:
    from backstay.server.access.browser import BrowserSessions
    from backstay.server.access.tokens import Tokens

Role = Literal["worker", "viewer", "operator", "admin"]
Method = Literal["token", "session", "signature", "none"]

EVERY: frozenset[Role] = frozenset({"worker", "viewer", "operator", "admin"})
WORKER: frozenset[Role] = frozenset({"worker"})
OPERATOR: frozenset[Role] = frozenset({"operator", "admin"})
READER: frozenset[Role] = frozenset({"viewer", "operator", "admin"})
ADMIN: frozenset[Role] = frozenset({"admin"})
OF_ROLE: Mapping[str, frozenset[Role]] = {
    "worker": WORKER,
    "viewer": frozenset({"viewer"}),
    "operator": frozenset({"operator"}),
    "admin": OPERATOR,
}
RANKS: tuple[Role, ...] = ("admin", "operator", "viewer", "worker")
"""The highest first."""

SETTING = "setting:"
"""The token id of a token of the settings is this with the name of its setting."""


class Caller(NamedTuple):
    """The caller of a request. `namespace`: the only one that it may use, if its token is bound to one."""

    roles: frozenset[Role]
    namespace: str | None = None
    token_id: str | None = None
    session_id: str | None = None
    payloads: bool = True  # it may read payloads
    method: Method = "token"

    @property
    def role(self) -> Role:
        """The highest of its roles."""
        return next(role for role in RANKS if role in self.roles)


ANYBODY = Caller(EVERY, method="none")
SIGNED = Caller(EVERY, method="signature")


class Credential(NamedTuple):
    """A valid token: the SHA-256 of it, and who calls with it."""

    digest: bytes
    caller: Caller


class Authenticator:
    """Finds the caller of a request by its token: one of the settings, or of `tokens`, which are created at run time."""

    def __init__(self, settings: Settings, tokens: Tokens, sessions: BrowserSessions) -> None:
        self._made = tokens
        self._sessions = sessions
        self._hosts = KnownHosts(settings) if settings.auth == "none" else None
        self._signed = settings.auth == "signature"
        granted: list[tuple[str, str | None, frozenset[Role]]] = [
            ("token", settings.token, EVERY),
            ("worker_token", settings.worker_token, WORKER),
            ("viewer_token", settings.viewer_token, OF_ROLE["viewer"]),
            ("operator_token", settings.operator_token, OF_ROLE["operator"]),
            ("admin_token", settings.admin_token, OF_ROLE["admin"]),
        ]
        # Digests have one length, so comparing them does not reveal how long the tokens are.
        known: dict[bytes, Credential] = {}
        for name, token, roles in granted:
            if token:
                digest = _digest(token.encode())
                first = known.get(digest, Credential(digest, Caller(frozenset(), token_id=SETTING + name)))
                known[digest] = Credential(digest, first.caller._replace(roles=first.caller.roles | roles))
        self._tokens = list(known.values())

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller of a request; raises a 401 that reveals nothing about valid tokens."""
        if self._hosts is not None:
            self._hosts.check(headers)
            refuse_other_sites(headers)
            return ANYBODY
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and not self._signed:
            found = self.of_token(token.strip())
            if found is not None:
                return found.caller
        elif "cookie" in headers:
            found = self._of_cookie(headers)
            if found is not None:
                return found
        raise HttpError(401, "unauthorized", "send the server's token in the header: Authorization: Bearer TOKEN")

    def of_token(self, token: str) -> Credential | None:
        """The credential that this token is, if it is one. Every token is compared, so that the time reveals nothing."""
        digest = _digest(token.encode())
        credential: Credential | None = None
        for candidate in self._tokens:
            if hmac.compare_digest(candidate.digest, digest):
                credential = candidate
        if credential is None:
            stored = self._made.find(token)
            credential = None if stored is None else self._of_made(stored.id)
        return credential

    def _of_cookie(self, headers: Mapping[str, str]) -> Caller | None:
        """The caller of a browser session. A session is over as soon as the token that opened it is not valid any more."""
        secret = self._sessions.secret(headers)
        session = None if secret is None else self._sessions.find(secret)
        if secret is None or session is None:
            return None
        opened_by = self._of_id(session.token_id)
        if opened_by is None or not session.was_opened_by(secret, opened_by.digest):
            raise HttpError(401, "session_ended", "this session has ended, and so has its token; sign in again")
        caller = opened_by.caller
        return caller._replace(roles=caller.roles - WORKER, session_id=session.id, method="session")

    def _of_id(self, token_id: str) -> Credential | None:
        if not token_id.startswith(SETTING):
            return self._of_made(token_id)
        return next((known for known in self._tokens if known.caller.token_id == token_id), None)

    def _of_made(self, token_id: str) -> Credential | None:
        made = self._made.kept.get("", token_id)
        if made is None:
            return None
        caller = Caller(OF_ROLE[made.role], made.namespace, made.id, payloads=made.payloads)
        return Credential(bytes.fromhex(made.digest), caller)


def refuse_other_sites(headers: Mapping[str, str]) -> None:
    """Where no credential is required, refuse requests that a page of another site makes a browser send. Programs do
    not say from which site they come: they send neither `Sec-Fetch-Site` nor `Origin`."""
    site = headers.get("sec-fetch-site")
    if site is None:
        origin = headers.get("origin")
        trusted = origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower() != ""
    else:
        trusted = site in ("same-origin", "none")  # none: the address was typed
    if not trusted:
        raise HttpError(403, "cross_site_request", "this server refuses requests from pages of other sites")


def require_namespace(namespace: str, bound: str | None) -> None:
    """Refuse another namespace than the one a token is bound to, without revealing whether it exists."""
    if bound is not None and namespace != bound:
        raise HttpError(403, "forbidden", f"this token is limited to namespace {bound!r}", namespace=namespace)


def require_role(roles: frozenset[Role], allowed: frozenset[Role]) -> None:
    if not roles & allowed:
        raise HttpError(
            403,
            "forbidden",
            f"this token has the role {', '.join(sorted(roles))}; this route is for {' or '.join(sorted(allowed))}",
            role=", ".join(sorted(roles)),
            allowed_roles=sorted(allowed),
        )


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()
