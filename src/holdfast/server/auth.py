"""Who is calling, and what they may do. Tokens are compared in constant time and never shown.

Roles: a *worker* works, an *operator* reads and commands workflows, an *admin* also changes the house. One shared token has
every role.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Literal

from holdfast.server.problems import Problem
from holdfast.server.settings import Settings

Role = Literal["worker", "operator", "admin"]

EVERY: frozenset[Role] = frozenset({"worker", "operator", "admin"})
WORKER: frozenset[Role] = frozenset({"worker"})
OPERATOR: frozenset[Role] = frozenset({"operator", "admin"})
ADMIN: frozenset[Role] = frozenset({"admin"})


class Gate:
    def __init__(self, settings: Settings) -> None:
        self._mode = settings.auth
        self._key = (settings.signature_key or "").encode()
        granted: list[tuple[str | None, frozenset[Role]]] = [
            (settings.token, EVERY),
            (settings.worker_token, WORKER),
            (settings.operator_token, frozenset({"operator"})),
            (settings.admin_token, OPERATOR),
        ]
        # Digests of one length: comparing them tells nothing about the tokens, not even how long they are.
        self._tokens = [(_digest(token.encode()), roles) for token, roles in granted if token]

    def roles(self, headers: Mapping[str, str], body: bytes) -> frozenset[Role]:
        """The roles of a caller, or a refusal that says nothing of what would have been right."""
        if self._mode == "none":
            return EVERY
        if self._mode == "signature":
            wanted = hmac.new(self._key, body, sha256).hexdigest()
            given = headers.get("x-signature", "").removeprefix("sha256=")
            if hmac.compare_digest(wanted.encode(), given.encode()):
                return EVERY
            raise Problem(401, "unauthorized", "the X-Signature header does not sign this body with the server's key")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        found: frozenset[Role] = frozenset()
        if scheme.lower() == "bearer":
            digest = _digest(token.strip().encode())
            for known, roles in self._tokens:
                if hmac.compare_digest(known, digest):
                    found = found | roles
        if not found:
            raise Problem(401, "unauthorized", "send the server's token in the header: Authorization: Bearer TOKEN")
        return found

    @property
    def signs_bodies(self) -> bool:
        """Whether a caller is only known once its body is read."""
        return self._mode == "signature"


def admit(roles: frozenset[Role], allowed: frozenset[Role]) -> None:
    if not roles & allowed:
        raise Problem(
            403,
            "forbidden",
            f"this token has the role {', '.join(sorted(roles))}; this route is for {' or '.join(sorted(allowed))}",
            role=", ".join(sorted(roles)),
            allowed_roles=sorted(allowed),
        )


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()
