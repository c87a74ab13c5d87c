"""What people have done to a server itself: tokens, sessions, namespaces, builds, bulk operations. For the audit.

Commands to workflows have records of their own. The newest `MOST` actions are kept, in the registry. An action is on disk
before its request is answered, and never holds a credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from backstay.kernel.values import Micros
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.origin import origin, source
from backstay.server.registry import StoredRegistry
from backstay.store import Store

KIND = "system_action"
MOST = 1000

ACTIONS: Mapping[tuple[str, str], str] = {
    ("POST", "/api/tokens"): "token.create",
    ("POST", "/api/tokens/{token_id}/rotate"): "token.rotate",
    ("DELETE", "/api/tokens/{token_id}"): "token.revoke",
    ("POST", "/api/session"): "session.open",
    ("DELETE", "/api/session"): "session.end",
    ("DELETE", "/api/sessions/{session_id}"): "session.end",
    ("POST", "/api/namespaces"): "namespace.create",
    ("PUT", "/api/namespaces/{namespace}"): "namespace.update",
    ("DELETE", "/api/namespaces/{namespace}"): "namespace.delete",
    ("DELETE", "/api/workers/{worker_id}"): "worker.delete",
    ("POST", "/api/task-queues/{queue}/build-ids/drain"): "build.drain",
    ("POST", "/api/task-queues/{queue}/build-ids/resume"): "build.resume",
    ("POST", "/api/task-queues/{queue}/build-ids/promote"): "build.promote",
    ("POST", "/api/nodes/{node}/drain"): "node.drain",
    ("POST", "/api/nodes/{node}/resume"): "node.resume",
    ("POST", "/api/search-attributes"): "search_attribute.create",
    ("DELETE", "/api/search-attributes/{name}"): "search_attribute.delete",
    ("POST", "/api/bulk"): "bulk.start",
    ("POST", "/api/bulk/{bulk_id}/stop"): "bulk.stop",
}
"""The routes whose requests are kept, and what each does."""

_TOLD = ("role", "payloads", "note", "build_id", "action", "filter", "reason", "count", "retention_days", "type")
"""Fields of an answer that an entry keeps."""

_SHORT = 1000  # characters of such a field


class SystemAction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`namespace` None: it concerns the whole server."""

    id: str
    at: Micros
    action: str
    source: str
    target: str | None = None
    namespace: str | None = None
    outcome: str | None = None
    details: dict[str, Any] = {}
    request: dict[str, Any] = {}


class SystemActions:
    def __init__(self, store: Store) -> None:
        self.kept = StoredRegistry(store, KIND, SystemAction)

    async def load(self) -> None:
        await self.kept.load()

    def newest_first(self) -> list[SystemAction]:
        return sorted(self.kept.all(), key=lambda action: (action.at, action.id), reverse=True)

    async def record(self, id: str, now: Micros, route: str, request: HttpRequest, answer: HttpResponse) -> None:
        """Keep what a request has done, if the path of its route is one of those that are kept."""
        action = ACTIONS.get((request.method, route))
        if action is None:
            return
        body = answer.body
        names = [
            *request.params.values(),
            *(body.get(name) for name in ("token_id", "session_id", "name", "bulk_id", "id")),
        ]
        target = next((str(name) for name in names if name), None)
        entry = SystemAction(
            id=id,
            at=now,
            action=action,
            source=source(request),
            target=target,
            namespace=_namespace(action, target, request, body),
            outcome=body.get("outcome") or body.get("status"),
            details={name: _short(body[name]) for name in _TOLD if body.get(name) is not None},
            request=origin(request)["request"],
        )
        await self.keep(entry)

    async def keep(self, entry: SystemAction) -> None:
        await self.kept.put("", entry.id, entry)
        for old in self.newest_first()[MOST:]:
            await self.kept.remove("", old.id)


def _namespace(action: str, target: str | None, request: HttpRequest, body: Mapping[str, Any]) -> str | None:
    if action.startswith("namespace."):
        return target
    if action.startswith(("token.", "session.")):
        return body.get("namespace") or request.caller.namespace
    return request.namespace


def _short(value: Any) -> Any:
    return value[:_SHORT] if isinstance(value, str) else value
