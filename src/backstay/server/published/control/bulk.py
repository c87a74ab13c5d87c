"""Routes of bulk operations: one command to the runs of a filter, or to named workflows."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.kernel.decision import RunRow
from backstay.kernel.names import Name
from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.protocol.tasks import after_token, page_token
from backstay.server.access.auth import OPERATOR
from backstay.server.access.origin import origin, source
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.operators.bulk import command_run
from backstay.server.operators.bulk_records import Action, BulkAnswer, BulkOperation, BulkProgress, BulkResult, BulkRun
from backstay.server.operators.bulk_selection import count_runs_of, filters_in, narrowed, select_ids
from backstay.server.operators.rehearsal import RehearsalServer, would_write
from backstay.server.published.control.commands import Reason, RequestId, SignalBody, arguments_of
from backstay.server.published.control.run_lists import query_in
from backstay.server.server import Server

EXAMPLES = 10
PAGE = 50  # operations of a list
PAGE_MAX = 200
FILTER = 64 << 10  # bytes of a filter, as JSON: it is kept when the operation has ended


class BulkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`filter`: fields of the lists and their values; or `ids` of workflows. `expected_count`: refused if it is another."""

    action: Action
    filter: dict[str, Any] | None = None
    ids: list[Name] | None = None
    reason: Reason | None = None
    expected_count: Annotated[int, Meta(ge=0)] | None = None
    dry_run: bool = False
    fields: dict[str, str] = {}
    signal_name: Name | None = None
    input: Any = None
    request_id: RequestId | None = None


class StopBulkBody(Struct, frozen=True, kw_only=True):
    pass


class BegunBulkAnswer(BulkAnswer, frozen=True, kw_only=True):
    repeated: Annotated[bool, Meta(description="Whether an earlier request with this request id has begun it.")]


class BulkResultsAnswer(BulkAnswer, frozen=True, kw_only=True):
    results: list[BulkResult]
    next_page_token: str | None


class BulksAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    bulk_operations: list[BulkAnswer]
    bulk_count: int
    next_page_token: str | None


async def begin(server: Server, request: HttpRequest) -> HttpResponse:
    """Send one command to many runs. The answer comes at once; the operation goes on by itself."""
    body = request.decode(BulkBody)
    bulk = _asked(server, request, body)
    again = _repeated(server, bulk)
    if again is not None:
        return HttpResponse((await server.control.bulks.progress(again)).shown(again, BegunBulkAnswer, repeated=True))
    count, examples = await _count(server, bulk)
    _check(server, body, count)
    bulk = replace(bulk, expected=count)
    if body.dry_run or request.dry_run:
        return HttpResponse(await _rehearsed(server, bulk, examples))
    await server.control.bulks.begin(bulk)
    return HttpResponse(BulkProgress().shown(bulk, BegunBulkAnswer, repeated=False), 202)


def _asked(server: Server, request: HttpRequest, body: BulkBody) -> BulkOperation:
    if (body.filter is None) == (body.ids is None):
        raise invalid("filter", "name the runs by a filter or by ids, not by both")
    if body.filter is not None and not body.filter:
        raise invalid("filter", "an empty filter would take every run of the namespace; name at least one field")
    if len(msgspec.json.encode(body.filter)) > FILTER:
        raise invalid("filter", f"a filter has at most {FILTER} bytes; name fewer values, or name the runs by ids")
    if (body.action == "signal") != (body.signal_name is not None):
        raise invalid("signal_name", "signal_name is needed for the action signal, and for no other")
    for name in body.fields.keys() - _fields_of(body.action):
        raise invalid(f"fields.{name}", f"{body.action} in bulk takes the fields {_fields_of(body.action) or 'none'}")
    ids = list(dict.fromkeys(body.ids or []))
    query = None
    if body.filter is not None:
        query = narrowed(query_in(server, request.namespace, "all", filters_in(body.filter)), body.action)
    positional, named = arguments_of(SignalBody(input=body.input))
    intent: tuple[Any, ...] = (body.action, body.filter, ids, body.reason, body.signal_name, body.input)
    if body.fields:
        intent = (*intent, body.fields)
    return BulkOperation(
        id=server.new_id(),
        namespace=request.namespace,
        action=body.action,
        status="running",
        expected=0,
        upper=server.engine.world.ids.key(0),
        created_at=server.now,
        query=query,
        filter=body.filter,
        ids=ids,
        id_count=len(ids),
        reason=body.reason,
        fields=body.fields,
        signal_name=body.signal_name,
        arguments=positional,
        named=named,
        request_id=body.request_id or request.headers.get("x-request-id"),
        fingerprint=sha256(msgspec.json.encode(intent)).hexdigest(),
        source=source(request),
        context=origin(request),
    )


def _fields_of(action: Action) -> set[str]:
    """The fields of an action that an operation may set, beside the reason."""
    command = OPERATOR_COMMANDS.get(action)
    return set() if command is None else {field.name for field in command.fields if field.bulk}


def _repeated(server: Server, bulk: BulkOperation) -> BulkOperation | None:
    """The operation that this request has begun before."""
    if bulk.request_id is None:
        return None
    found = next((one for one in server.control.bulks.of(bulk.namespace) if one.request_id == bulk.request_id), None)
    if found is not None and found.fingerprint != bulk.fingerprint:
        said = f"request id {bulk.request_id!r} was used for another bulk operation, {found.id}"
        raise HttpError(409, "request_id_conflict", said, field="request_id", bulk_id=found.id)
    return found


async def _count(server: Server, bulk: BulkOperation) -> tuple[int, list[RunRow]]:
    most = server.settings.max_bulk_runs
    if bulk.query is not None:
        return await count_runs_of(server.api, bulk.query, bulk.upper, most)
    if len(bulk.ids) > most:
        return len(bulk.ids), []
    first = await select_ids(server.api.stored, bulk.namespace, bulk.ids[:EXAMPLES])
    return len(bulk.ids), [row for _, row in first if row is not None]


def _check(server: Server, body: BulkBody, count: int) -> None:
    most = server.settings.max_bulk_runs
    if count > most:
        many = f"{count}" if body.ids is not None else f"more than {most}"
        raise invalid(
            "filter" if body.ids is None else "ids",
            f"{many} runs are more than a bulk operation may take (max_bulk_runs is {most}); narrow the filter, or do it"
            " in several operations",
            "bulk_too_large",
        )
    if body.expected_count is not None and body.expected_count != count:
        raise HttpError(
            409,
            "expected_count_mismatch",
            f"{count} runs match now, not {body.expected_count}; repeat the dry run, and send its count",
            field="expected_count",
            expected_count=body.expected_count,
            count=count,
        )


async def _rehearsed(server: Server, bulk: BulkOperation, examples: list[RunRow]) -> dict[str, Any]:
    """The number of its runs, and the rows that it would write for the first of them."""
    shown: list[dict[str, Any]] = []
    for row in examples[:EXAMPLES]:
        stage = RehearsalServer(server)
        await stage.prepare(row.namespace, row.workflow_id)
        done = await command_run(stage.api, bulk, BulkRun(row.workflow_id, row.run_id))
        wrote = await would_write(stage.wrote)
        shown.append(
            {
                "workflow_id": row.workflow_id,
                "run_id": row.run_id,
                "workflow_type": row.workflow_type,
                "status": row.status,
                "outcome": done.outcome,
                "reason": done.reason,
                "would_write": [event["event_type"] for event in wrote["events"]],
            }
        )
    return {
        "dry_run": True,
        "accepted": True,
        "action": bulk.action,
        "namespace": bulk.namespace,
        "filter": bulk.filter,
        "count": bulk.expected,
        "examples": shown,
    }


async def listing(server: Server, request: HttpRequest) -> BulksAnswer:
    """Bulk operations, newest first: those that go on, and the last that have ended."""
    size = request.integer("page_size", PAGE, 1, PAGE_MAX)
    token = request.query.get("next_page_token") or None
    before = None if token is None else after_token(token, "next_page_token")
    found = server.control.bulks.of(request.namespace)
    left = [bulk for bulk in found if before is None or bulk.upper < before]
    return BulksAnswer(
        namespace=request.namespace,
        bulk_operations=[(await server.control.bulks.progress(bulk)).shown(bulk, BulkAnswer) for bulk in left[:size]],
        bulk_count=len(found),
        next_page_token=page_token(left[size - 1].upper) if len(left) > size else None,
    )


async def describe(server: Server, request: HttpRequest) -> BulkResultsAnswer:
    """The progress of a bulk operation, and a page of its results."""
    bulk = await _named(server, request)
    token = request.query.get("next_page_token") or None
    number = after_token(token, "next_page_token") if token else 0
    page = await server.control.bulks.page(bulk, number)
    more = page is not None and (page.end is not None or not page.done) and (bulk.is_open or number + 1 < bulk.pages)
    return (await server.control.bulks.progress(bulk)).shown(
        bulk,
        BulkResultsAnswer,
        results=[] if page is None else [run.shown() for run in page.runs],
        next_page_token=page_token(number + 1) if more else None,
    )


async def stop(server: Server, request: HttpRequest) -> BulkAnswer:
    """Stop a bulk operation after the runs that it is at. Commands that were sent stay in effect."""
    request.decode(StopBulkBody)
    bulk = await server.control.bulks.stop_one(await _named(server, request))
    return (await server.control.bulks.progress(bulk)).shown(bulk, BulkAnswer)


async def _named(server: Server, request: HttpRequest) -> BulkOperation:
    id = request.params["bulk_id"]
    found = server.control.bulks.get(request.namespace, id)
    if found is None:
        await server.control.bulks.load()  # another server may have begun it a moment ago
        found = server.control.bulks.get(request.namespace, id)
    if found is None:
        raise HttpError(404, "bulk_not_found", f"there is no bulk operation {id!r}", bulk_id=id)
    return found


ROUTES = [
    Route("POST", "/api/bulk", begin, "control", OPERATOR, body=BulkBody, own_dry_run=True, told=BegunBulkAnswer),
    Route("GET", "/api/bulk", listing, "control", OPERATOR),
    Route("GET", "/api/bulk/{bulk_id}", describe, "control", OPERATOR),
    Route("POST", "/api/bulk/{bulk_id}/stop", stop, "control", OPERATOR, body=StopBulkBody),
]
