"""Tokens that are created at run time: stored as hashes, shown once, changed without a restart.

created → (rotated)* → revoked. A token is random and long, so it cannot be found from its SHA-256.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.values import Micros
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.http.errors import HttpError
from backstay.server.registries.registry import StoredRegistry
from backstay.store import Store

KIND = "token"
MOST = 10_000
MOST_BOUND = 1000
"""Tokens that are bound to one namespace."""
Role = Literal["worker", "viewer", "operator", "admin"]


class AccessToken(Struct, frozen=True, kw_only=True):
    id: str
    role: Role
    digest: str
    created_at: Micros
    rotated_at: Micros | None = None
    namespace: str | None = None  # the only one that it is valid for; None: all
    note: str | None = None
    payloads: bool = True  # whether it may read payloads; a viewer may be made without


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def new_token(
    id: str, role: Role, now: Micros, namespace: str | None, note: str | None, *, payloads: bool = True
) -> tuple[AccessToken, str]:
    """A new token: the entry that is stored, and the token itself, which cannot be shown again."""
    secret = f"hf_{secrets.token_urlsafe(32)}"
    made = AccessToken(
        id=id, role=role, digest=digest(secret), created_at=now, namespace=namespace, note=note, payloads=payloads
    )
    return made, secret


def shown(token: AccessToken) -> dict[str, Any]:
    return {
        "token_id": token.id,
        "role": token.role,
        "namespace": token.namespace,
        "payloads": token.payloads,
        "note": token.note,
        "created_at": iso(token.created_at),
        "rotated_at": optional_iso(token.rotated_at),
    }


class Tokens:
    def __init__(self, store: Store) -> None:
        self.kept = StoredRegistry(store, KIND, AccessToken, most=MOST)
        self._found: dict[str, AccessToken] = {}  # by digest
        self._found_at = -1  # as of this many changes

    async def load(self) -> None:
        await self.kept.load()

    def all(self) -> list[AccessToken]:
        return sorted(self.kept.all(), key=lambda token: token.id)

    def find(self, token: str) -> AccessToken | None:
        """The entry of a caller's token. It is looked up by its digest, so the time it takes says nothing about the token, and does
        not depend on how many there are."""
        if self._found_at != self.kept.changes:
            self._found = {entry.digest: entry for entry in self.kept.all()}
            self._found_at = self.kept.changes
        return self._found.get(digest(token))

    async def create(
        self, id: str, role: Role, now: Micros, namespace: str | None, note: str | None, *, payloads: bool = True
    ) -> tuple[AccessToken, str]:
        alike = sum(token.namespace == namespace for token in self.kept.all())
        if namespace is not None and alike >= MOST_BOUND:
            raise HttpError(
                429,
                "token_capacity_exhausted",
                f"{MOST_BOUND} tokens are bound to the namespace {namespace!r}; revoke unused ones",
                limit=MOST_BOUND,
            )
        made, secret = new_token(id, role, now, namespace, note, payloads=payloads)
        await self.kept.put("", id, made)
        return made, secret

    async def rotate(self, id: str, now: Micros) -> tuple[AccessToken, str]:
        """Replace the secret of a token; the old one is refused from now on."""
        before = self._named(id)
        made, secret = new_token(id, before.role, now, before.namespace, before.note, payloads=before.payloads)
        rotated = replace(made, created_at=before.created_at, rotated_at=now)
        await self.kept.put("", id, rotated)
        return rotated, secret

    async def revoke(self, id: str) -> AccessToken:
        token = self._named(id)
        await self.kept.remove("", id)
        return token

    def _named(self, id: str) -> AccessToken:
        found = self.kept.get("", id)
        if found is None:
            raise HttpError(404, "token_not_found", f"there is no token {id!r}", token_id=id)
        return found
