"""Who is calling, and what they may do. Tokens are compared in constant time and never shown.

Roles: a *worker* runs tasks, an *operator* reads and commands workflows, an *admin* also changes namespaces, tokens and
workers. The token of the setting `token` has every role.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, NamedTuple

from backstay.server.http_errors import HttpError
from backstay.server.settings import Settings

if TYPE_CHECKING:
    from backstay.server.tokens import Tokens

Role = Literal["worker", "operator", "admin"]

EVERY: frozenset[Role] = frozenset({"worker", "operator", "admin"})
WORKER: frozenset[Role] = frozenset({"worker"})
OPERATOR: frozenset[Role] = frozenset({"operator", "admin"})
ADMIN: frozenset[Role] = frozenset({"admin"})
OF_ROLE: Mapping[str, frozenset[Role]] = {"worker": WORKER, "operator": frozenset({"operator"}), "admin": OPERATOR}


class Caller(NamedTuple):
    """The roles of a caller, and the only namespace it may use, if its token is bound to one."""

    roles: frozenset[Role]
    namespace: str | None = None


class Authenticator:
    """Finds the caller of a request by its token: one of the settings, or of `tokens`, which are created at run time."""

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        self._made = tokens
        self._open = settings.auth == "none"
        granted: list[tuple[str | None, frozenset[Role]]] = [
            (settings.token, EVERY),
            (settings.worker_token, WORKER),
            (settings.operator_token, OF_ROLE["operator"]),
            (settings.admin_token, OF_ROLE["admin"]),
        ]
        # Digests have one length, so comparing them does not reveal how long the tokens are.
        self._tokens = [(_digest(token.encode()), roles) for token, roles in granted if token]

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """The caller of a request; raises a 401 that reveals nothing about valid tokens."""
        if self._open:
            return Caller(EVERY)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        found: frozenset[Role] = frozenset()
        bound: str | None = None
        if scheme.lower() == "bearer":
            digest = _digest(token.strip().encode())
            for known, roles in self._tokens:
                if hmac.compare_digest(known, digest):
                    found = found | roles
            made = None if found else self._made.find(token.strip())
            if made is not None:
                found, bound = OF_ROLE[made.role], made.namespace
        if not found:
            raise HttpError(401, "unauthorized", "send the server's token in the header: Authorization: Bearer TOKEN")
        return Caller(found, bound)


def require_namespace(namespace: str, bound: str | None) -> None:
    """Refuse another namespace than the one a token is bound to, without revealing whether it exists."""
    if bound is not None and namespace != bound:
        raise HttpError(403, "forbidden", f"this token opens the namespace {bound!r} only", namespace=namespace)


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
