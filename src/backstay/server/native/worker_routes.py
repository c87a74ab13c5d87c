"""The routes of our own workers: open a link, exchange reports and tasks, read a history page, close."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from backstay.engine.cluster.node_proofs import NotProven
from backstay.engine.reading.history_pages import fitting
from backstay.kernel.command import command_type
from backstay.kernel.machine import Machine
from backstay.kernel.names import MAX_NAME, is_name
from backstay.protocol import requests as ask
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import pack
from backstay.server.access.auth import WORKER
from backstay.server.http.errors import HttpError, NotTheEngine, Stopping, invalid, too_many_parked
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.native.held_leases import learn
from backstay.server.native.node_proxy import meant, node_id, nodes_of, station_id
from backstay.server.native.pending_exchange import PendingExchange
from backstay.server.native.reports import ReportBatch
from backstay.server.native.worker_link import BATCHES, WorkerLink
from backstay.server.published.worker.lifecycle import deregister_worker
from backstay.server.server import Server
from backstay.server.workers.worker_registry import CommandContract, RegisteredWorker

_COMMANDS = sorted(command_type(kind) for kind in Machine().commands)
_SLOTS = 100_000
_OPTIONAL = ("build_id", "host", "compatibility_namespace")
_QUEUES = 100


async def open_link(server: Server, request: HttpRequest) -> HttpResponse:
    """Open the link of a worker of the same release: it sends its types and its running tasks."""
    node = meant(server, request)
    if node is not None:
        return await server.worker_links.proxy.hand_on(request, node)
    opening = request.decode(wire.OpenLink)
    _check(opening)
    if server.draining:
        raise Stopping
    if server.engine.down is not None:
        raise server.engine.down
    _refuse_unless_engine(server)
    if server.engine.holder and not server.recovery.up:
        raise _engine_starting()  # recovery has not read the leases of the worker yet
    me = node_id(server)
    await _refuse_of_another_database(server, request, opening.named_by)
    worker = _registration(server, request, opening)
    await server.workers.register(worker)
    if worker.supported_workflow_types:
        await server.recovery.deployed()  # runs that were blocked by another definition are tried again
    await learn(server, worker, opening.holding)
    nodes = nodes_of(server)
    id = station_id(server, server.new_id())
    link = WorkerLink(server, worker, opening, server.worker_links.close, id=id, nodes=nodes)
    lost = server.worker_links.open(link, opening)
    opened = wire.Opened(
        station=link.id,
        lost=lost,
        commands=_COMMANDS,
        limits=server.engine.machine.limits,
        max_body_bytes=server.settings.max_body_bytes,
        node=me,
        nodes=nodes,
    )
    return HttpResponse({}, raw=wire.encode(opened))


async def _refuse_of_another_database(server: Server, request: HttpRequest, named_by: int | None) -> None:
    """Refuse a worker that got the address of this node from a process that is not a node of this database: from a node
    of a copy, whose rows name the nodes of the original. A request that a node of this database has forwarded is
    right."""
    if wire.TO_HEADER.lower() not in request.headers or request.digest is not None or node_id(server) is None:
        return
    if named_by is None:
        raise HttpError(
            421, wire.OTHER_NODE, f"this is node {node_id(server)}; name in named_by the node that named this one"
        )
    try:
        await server.node_proofs.refuse_unknown(named_by)
    except NotProven as unknown:
        raise HttpError(421, wire.OTHER_NODE, str(unknown)) from None


def exchange(
    server: Server, request: HttpRequest
) -> PendingExchange | HttpResponse | Coroutine[Any, Any, HttpResponse]:
    """Take reports, and reply with their answers and new tasks. Without reports the request waits for tasks."""
    body = request.decode(wire.Exchange)
    link = server.worker_links.get(request.namespace, body.worker_id, body.station)
    if link is None and (node := meant(server, request, body.station)) is not None:
        return server.worker_links.proxy.hand_on(request, node, max(0.0, min(body.wait, wire.PARKED)))
    _refuse_unless_engine(server)
    if link is None:
        raise _unknown(body.worker_id, body.station)
    server.workers.heard(link.worker)
    if body.draining:
        link.drain()
    if body.slots is not None:
        _check_slots("slots", body.slots)
        link.set_slots(body.slots, body.turn)
        server.worker_links.on_shared()
    if body.holding:
        link.held.take(body.holding)
    if body.elsewhere is not None:
        link.held.release_unheld([*body.holding, *body.elsewhere])
    if body.reports:
        reply = PendingExchange(server, request.share, link, len(body.reports), None)
        ReportBatch(server, link, reply, body.again).take(body.reports)
        return reply
    if server.draining or not body.wait:
        return HttpResponse({}, raw=wire.encode(link.slots.tell(wire.Exchanged(leaving=server.draining))))
    if not server.parked.admits(request.share):
        raise too_many_parked(
            "this server has no room for another poll (max_parked_polls); open a station again in a second"
        )
    return PendingExchange(server, request.share, link, 0, max(0.0, min(body.wait, wire.PARKED)))


async def history(server: Server, request: HttpRequest) -> HttpResponse:
    """The next page of the history of a leased task or of a query."""
    body = request.decode(wire.HistoryWanted)
    node = meant(server, request, body.station)
    if node is not None:
        return await server.worker_links.proxy.hand_on(request, node)
    most = server.settings.max_page_bytes
    question = server.questions.leased(request.namespace, body.task_id, body.worker_id, body.attempt)
    if question is not None:
        rest = [entry for entry in question.history if entry.sequence > body.after]
        events = fitting(rest, most)
        return HttpResponse({}, raw=wire.encode(wire.HistoryPart(events=pack(events), more=len(events) < len(rest))))
    page = await server.api.call(
        ask.GetTaskHistory(
            task_id=body.task_id,
            namespace=request.namespace,
            lease_owner=body.worker_id,
            workflow_task_attempt=body.attempt,
            after_sequence=body.after,
            page_bytes=most,
        )
    )
    part = wire.HistoryPart(events=pack(page.history_events), more=page.has_more)
    return HttpResponse({}, raw=wire.encode(part))


async def close_link(server: Server, request: HttpRequest) -> HttpResponse:
    """Close the link of a worker that stops, and offer its tasks to others."""
    body = request.decode(wire.Closing)
    link = server.worker_links.get(request.namespace, body.worker_id, body.station)
    if link is None and (node := meant(server, request, body.station)) is not None:
        return await server.worker_links.proxy.hand_on(request, node)
    if link is not None:
        server.worker_links.close(link)
        if not body.stays:
            await deregister_worker(server, request.namespace, body.worker_id)
    return HttpResponse({}, raw=b"{}")


def _unknown(worker_id: str, station: str) -> HttpError:
    return HttpError(
        410,
        "station_unknown",
        f"worker {worker_id!r} has no open station {station!r} here; open one and report your leases",
        worker_id=worker_id,
    )


def _refuse_unless_engine(server: Server) -> None:
    if not server.engine.active:
        raise NotTheEngine("engine_elsewhere")


def _engine_starting() -> HttpError:
    message = "the engine of this server is starting; open a station in a moment"
    return HttpError(503, "engine_starting", message, retryable=True, retry_after_seconds=1)


def _check(opening: wire.OpenLink) -> None:
    named: dict[str, Iterable[str]] = {
        "worker_id": [opening.worker_id],
        "queues": opening.queues,
        "workflows": opening.workflows,
        "activities": opening.activities,
        **{field: [name] for field in _OPTIONAL if (name := getattr(opening, field))},
    }
    for field, names in named.items():
        if not all(is_name(name) for name in names):
            raise invalid(field, f"{field} has 1 to {MAX_NAME} characters, without NUL and without half surrogates")
    if not 1 <= len(opening.queues) <= _QUEUES:
        raise invalid("queues", f"a worker serves 1 to {_QUEUES} queues")
    for field in ("workflow_slots", "activity_slots", "async_slots"):
        _check_number(field, getattr(opening, field))
    if opening.total is not None:
        _check_slots("total", opening.total)


def _check_slots(field: str, slots: wire.Slots) -> None:
    for number in (slots.workflow, slots.activity, slots.awaiting):
        _check_number(field, number)


def _check_number(field: str, number: int) -> None:
    if not 0 <= number <= _SLOTS:
        raise invalid(field, f"{field} is from 0 to {_SLOTS}")


def _registration(server: Server, request: HttpRequest, opening: wire.OpenLink) -> RegisteredWorker:
    now = server.now
    before = server.workers.get(request.namespace, opening.worker_id)
    slots = opening.total or wire.Slots(opening.workflow_slots, opening.activity_slots, opening.async_slots)
    return RegisteredWorker(
        worker_id=opening.worker_id,
        namespace=request.namespace,
        task_queue=opening.queues[0],
        task_queues=opening.queues,
        runtime="python",
        registered_at=now if before is None else before.registered_at,
        updated_at=now,
        sdk_version=opening.sdk_version,
        build_id=opening.build_id,
        supported_workflow_types=sorted(opening.workflows),
        supported_activity_types=sorted(opening.activities),
        workflow_definition_fingerprints={
            type: definition.fingerprint
            for type, definition in opening.workflows.items()
            if definition.fingerprint is not None
        },
        workflow_command_contracts={
            type: CommandContract(
                queries=definition.queries,
                query_contracts=definition.query_contracts,
                signals=definition.signals,
                signal_contracts=definition.signal_contracts,
                updates=definition.updates,
                update_contracts=definition.update_contracts,
                update_validators=opening.validators.get(type, []),
            )
            for type, definition in opening.workflows.items()
        },
        definitions=opening.workflows,
        capabilities=[BATCHES, "eager_resume"],
        max_concurrent_workflow_tasks=max(1, slots.workflow),
        max_concurrent_activity_tasks=max(1, slots.activity + slots.awaiting),
        host=opening.host,
        process_id=opening.process_id,
        compatibility_namespace=opening.compatibility_namespace or server.settings.compatibility_namespace,
    )


ROUTES = [
    Route("POST", wire.OPEN, open_link, "own", WORKER, body=wire.OpenLink),
    Route("POST", wire.EXCHANGE, exchange, "own", WORKER, body=wire.Exchange),
    Route("POST", wire.HISTORY, history, "own", WORKER, body=wire.HistoryWanted),
    Route("POST", wire.CLOSE, close_link, "own", WORKER, body=wire.Closing),
]
