"""The registry of namespaces. A workflow with everything that belongs to it is in one namespace."""

from __future__ import annotations

import re

from msgspec import Struct

from backstay.kernel.values import Micros
from backstay.server.http.errors import HttpError, invalid
from backstay.server.registries.registry import StoredRegistry
from backstay.store import Store

MOST = 10_000
_NAME = re.compile(r"[a-z0-9._-]{1,128}")


class Namespace(Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    retention_days: int = 30
    created_at: Micros = 0
    updated_at: Micros = 0


class Namespaces:
    def __init__(self, store: Store, default: str) -> None:
        self.kept = StoredRegistry(store, "namespace", Namespace, most=MOST)
        self.default = default

    async def load(self) -> None:
        await self.kept.load()

    async def open(self, now: Micros) -> None:
        await self.load()
        if self.get(self.default) is None:
            await self.put(Namespace(name=self.default, created_at=now, updated_at=now))

    def get(self, name: str) -> Namespace | None:
        return self.kept.get("", name)

    def all(self) -> list[Namespace]:
        return [namespace for _, namespace in self.kept.of("")]

    async def put(self, namespace: Namespace) -> None:
        await self.kept.put("", namespace.name, namespace)

    async def remove(self, name: str) -> None:
        await self.kept.remove("", name)

    def check(self, name: str) -> None:
        if self.get(name) is None:
            raise HttpError(
                404,
                "namespace_not_found",
                f"there is no namespace {name!r}",
                namespace=name,
                remediation="Create it with POST /api/namespaces, or name another in the X-Namespace header.",
            )


def checked_name(name: str) -> str:
    lowered = name.lower()
    if not _NAME.fullmatch(lowered):
        raise invalid("name", "a namespace name is 1 to 128 of a-z 0-9 . _ -")
    return lowered
