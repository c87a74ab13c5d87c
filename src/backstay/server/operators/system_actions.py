"""Records of changes of a server itself: tokens, sessions, namespaces, builds, views, maintenance. For the audit.

Commands to workflows have records of their own. `MOST` actions are kept, in the registry. An action is on disk before its request
is answered, and never holds a credential.

Each action counts for its kind and for the account (`accounts.py`) that did it. When there are more than `MOST`, the oldest of the
share that has the most is removed: a caller that repeats an action pushes out only its own entries of that kind.
Sign-ins that were refused are one share, wherever they come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from backstay.kernel.values import Micros
from backstay.server.access.accounts import account_of
from backstay.server.access.origin import origin, source
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.registries.registry import StoredRegistry
from backstay.store import Store

KIND = "system_action"
MOST = 5000
REFUSED = "session.refuse"

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
    ("POST", "/api/nodes/{node}/forget"): "node.forget",
    ("POST", "/api/nodes/{node}/resume"): "node.resume",
    ("POST", "/api/search-attributes"): "search_attribute.create",
    ("DELETE", "/api/search-attributes/{name}"): "search_attribute.delete",
    ("POST", "/api/bulk"): "bulk.start",
    ("POST", "/api/bulk/{bulk_id}/stop"): "bulk.stop",
    ("POST", "/api/saved-views"): "saved_view.create",
    ("PUT", "/api/saved-views/{view_id}"): "saved_view.update",
    ("DELETE", "/api/saved-views/{view_id}"): "saved_view.delete",
    ("POST", "/api/system/repair/pass"): "repair.pass",
    ("POST", "/api/system/retention/pass"): "retention.pass",
    ("POST", "/api/system/activity-timeouts/pass"): "activity_timeouts.pass",
    ("POST", "/api/system/projections/rebuild"): "projections.rebuild",
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
    account: str = ""  # who did it
    refused: bool = False

    @property
    def share(self) -> tuple[str, str]:
        return self.action, self.account


class SystemActions:
    def __init__(self, store: Store) -> None:
        self.kept = StoredRegistry(store, KIND, SystemAction)

    async def load(self) -> None:
        await self.kept.load()

    def newest_first(self) -> list[SystemAction]:
        return sorted(self.kept.all(), key=lambda action: (action.at, action.id), reverse=True)

    async def record(self, id: str, now: Micros, route: str, request: HttpRequest, answer: HttpResponse) -> None:
        """Record the action of a request, if its route is among the recorded ones."""
        action = ACTIONS.get((request.method, route))
        if action is None:
            return
        body: dict[str, Any] = msgspec.to_builtins(answer.body)
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
            account=account_of(request.caller, request.address),
        )
        await self.keep(entry)

    async def refuse_sign_in(self, id: str, now: Micros, request: HttpRequest) -> None:
        """Record a sign-in with a wrong token."""
        about = {"route": request.path, "auth_outcome": "rejected", "address": request.address}
        await self.keep(
            SystemAction(id=id, at=now, action=REFUSED, source=source(request), request=about, refused=True)
        )

    async def keep(self, entry: SystemAction) -> None:
        await self.kept.put("", entry.id, entry)
        while len(kept := self.kept.all()) > MOST:
            ((share, _),) = Counter(action.share for action in kept).most_common(1)
            oldest = min(
                (action for action in kept if action.share == share), key=lambda action: (action.at, action.id)
            )
            await self.kept.remove("", oldest.id)


def _namespace(action: str, target: str | None, request: HttpRequest, body: Mapping[str, Any]) -> str | None:
    if action.startswith("namespace."):
        return target
    if action.startswith(("token.", "session.")):
        return body.get("namespace") or request.caller.namespace
    return request.namespace


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_SHORT]
    return value if len(msgspec.json.encode(value)) <= _SHORT else "too long to be kept"
