"""Dry runs: `dry_run=1` on a route that changes something answers with the changes that it would make, and makes none.

The handler of the route runs as always, on a stage instead of the server: an engine that writes nothing (`Rehearsal`), and
copies of the registries. So every route that uses these has a dry run, with the answer that the route would give. A
handler that reaches for anything else of the server is refused. Routes whose work is of another kind (passes, bulk
operations) have a dry run of their own (`Route.own_dry_run`).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec

from backstay.codec.payloads import AvroPayloads
from backstay.engine.core.cache import Reply
from backstay.engine.requests.rehearsal import Rehearsal, RehearsalStore
from backstay.kernel.decision import CommandRecord, Decision, TaskChange
from backstay.kernel.features.lease import Release
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.protocol.export import exporter
from backstay.protocol.history import to_wire
from backstay.server.http.errors import HttpError, to_http_error
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.operators.exporting import exporting
from backstay.server.registries.registry import StoredRegistry, tell_nobody
from backstay.server.server import Server
from backstay.server.workers.heartbeats import Heartbeats
from backstay.server.workers.sessions import SessionRegistry
from backstay.store import RegistryEntry, Store

MOST = 200  # events, tasks and messages that are shown
JUDGED = (404, 409, 412, 422)  # the request was understood, and would be refused with this
SECRETS = ("token", "digest")

T = TypeVar("T")


class _StagePart:
    """Stands for a part of the server in a dry run."""

    def __init__(self, name: str, **held: Any) -> None:
        self._name = name
        vars(self).update(held)

    def __getattr__(self, name: str) -> Any:
        raise unsupported(f"it needs {name} of the server's {self._name}")


class RehearsalServer:
    """Stands for the server in a dry run."""

    def __init__(self, server: Server) -> None:
        rehearsal = Rehearsal(
            server.engine,
            AvroPayloads(),
            exporter(exporting(server.settings)),
            unoffered=server.sweep.unoffered,
            over=lambda: unsupported("its answer waits for an event that a dry run does not cause"),
        )
        self.wrote = rehearsal.store
        self.prepare = rehearsal.prepare
        store = self.store = cast("Store", rehearsal.store)
        self.engine = rehearsal.engine
        self.api = rehearsal.api
        self.settings = server.settings
        self.capabilities = server.capabilities
        self.draining = False
        self.node = SimpleNamespace(shards=server.node.shards)  # for who else is alive, and nothing else
        self.cluster = _StagePart("cluster", roster=_twin(server.cluster.roster, store))
        self.registries = server.registries  # only read again
        self.namespaces = _twin(server.namespaces, store)
        self.workers = _twin(server.workers, store)
        self.rollouts = _twin(server.rollouts, store).unheard()
        access, control = server.access, server.control
        self.access = _StagePart(
            "access", tokens=_twin(access.tokens, store), browser_sessions=_twin(access.browser_sessions, store)
        )
        self.control = _StagePart(
            "control",
            attributes=_twin(control.attributes, store),
            saved_views=_twin(control.saved_views, store),
            bulks=_twin(control.bulks, store).on_stage(),
        )
        self.sessions = SessionRegistry(store, self.engine, self.workers)

    def __getattr__(self, name: str) -> Any:
        raise unsupported(f"it needs the server's {name}")

    @property
    def now(self) -> Micros:
        return self.engine.world.now()

    def new_id(self) -> str:
        return self.engine.world.ids.ulid()

    def release(self, task: Task, *, begun: bool = True, reply: Reply | None = None) -> None:
        release = Release(task_id=task.id, owner=task.owner or "", attempt=task.attempt, begun=begun)
        self.engine.submit(task.workflow, release, reply)

    def take_back(self, task: Task, reply: Reply | None = None) -> None:
        self.release(task, begun=task.kind == "activity", reply=reply)


def unsupported(why: str) -> HttpError:
    return HttpError(422, "dry_run_unsupported", f"this route has no dry run: {why}", field="dry_run")


def has_dry_run(route: Route) -> bool:
    """Whether `dry_run=1` means something on a route: it changes something, and is for operators."""
    return route.changes and route.plane in ("control", "discovery") and bool(route.roles & {"operator", "admin"})


async def rehearse(server: Server, route: Route, request: HttpRequest) -> HttpResponse:
    """The answer to a request, and the rows that it would write."""
    stage = RehearsalServer(server)
    answer: Mapping[str, Any] | msgspec.Struct | HttpResponse
    try:
        if "workflow_id" in request.params:
            await stage.prepare(request.namespace, request.params["workflow_id"])
        handled: Any = route.handler(cast("Server", stage), request)
        answer = await handled if isawaitable(handled) else handled
    except Exception as error:
        refused = to_http_error(error, f"dry run of {request.method} {request.path!r}")
        if refused.status not in JUDGED or refused.reason == "dry_run_unsupported":
            raise
        status, body, reason, message = refused.status, refused.body(), refused.reason, refused.message
    else:
        if not isinstance(answer, HttpResponse):
            answer = HttpResponse(answer)
        status, body, reason, message = answer.status, answer.fields, None, None
    return HttpResponse(
        {
            "dry_run": True,
            "accepted": reason is None,
            "status": status,
            "reason": reason,
            "message": message,
            "answer": {name: value for name, value in body.items() if name not in SECRETS},
            "would_write": await would_write(stage.wrote),
        }
    )


async def would_write(wrote: RehearsalStore) -> dict[str, Any]:
    """The rows that a rehearsal would have written, as far as they fit on a page."""
    decisions = wrote.decisions
    events = [
        _about(decision, wrote) | msgspec.to_builtins(to_wire(entry, wrote.run_ids.get(entry.run, "")))
        for decision in decisions
        for entry in decision.events[:MOST]
    ]
    tasks = [_about(decision, wrote) | _task(change) for decision in decisions for change in decision.tasks]
    sends = [
        {"from": decision.instance.workflow_id, "to": send.workflow_id, "message": type(send.message).__name__}
        for decision in decisions
        for send in decision.sends
    ]
    return {
        "event_count": sum(len(decision.events) for decision in decisions),
        "events": events[:MOST],
        "commands": [_about(decision, wrote) | _command(one) for decision in decisions for one in decision.commands],
        "task_count": len(tasks),
        "tasks": tasks[:MOST],
        "message_count": len(sends),
        "messages": sends[:MOST],
        "registry": [await _entry(wrote, entry) for entry in wrote.entries],
    }


def _about(decision: Decision, wrote: RehearsalStore) -> dict[str, Any]:
    row = decision.instance
    return {
        "workflow_id": row.workflow_id,
        "run_id": None if row.run is None else wrote.run_ids.get(row.run),
    }


def _task(change: TaskChange) -> dict[str, Any]:
    task = change.task
    if task is None:
        return {"task_id": change.task_id, "change": "removed"}
    said = {"task_type": task.kind, "type": task.type, "task_status": task.state, "task_queue": task.routing.queue}
    return {"task_id": change.task_id, "change": "changed" if change.stored else "created"} | said


def _command(record: CommandRecord) -> dict[str, Any]:
    return {
        "command_type": record.command_type,
        "status": record.status,
        "outcome": record.outcome,
        "target_name": record.target_name,
        "rejection_reason": record.rejection_reason,
        "request_id": record.request_id,
    }


async def _entry(wrote: RehearsalStore, entry: RegistryEntry) -> dict[str, Any]:
    """An entry of a registry that would change: its fields with old and new values."""
    known = {(kept.namespace, kept.name): kept.body for kept in await wrote.kept(entry.kind)}
    before = _fields(known.get((entry.namespace, entry.name)))
    after = _fields(entry.body)
    changes = {
        name: {"from": before.get(name), "to": after.get(name)}
        for name in {**before, **after}
        if before.get(name) != after.get(name) and name not in SECRETS
    }
    done = "removed" if entry.body is None else "changed" if before else "created"
    return {"kind": entry.kind, "name": entry.name, "change": done, "fields": changes}


def _fields(body: bytes | None) -> dict[str, Any]:
    if body is None:
        return {}
    found = msgspec.json.decode(body)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"value": found}


def _twin(thing: T, store: Store) -> T:
    """A copy of a registry: its entries are its own, and its writes go to this store."""
    copied = copy(thing)
    for name, value in vars(thing).items():
        if name == "_store":
            setattr(copied, name, store)
        elif name == "on_write":
            setattr(copied, name, tell_nobody)
        elif isinstance(value, dict | list | set):
            setattr(copied, name, copy(cast("object", value)))
        elif isinstance(value, StoredRegistry | Heartbeats):
            setattr(copied, name, _twin(cast("object", value), store))
    return copied
