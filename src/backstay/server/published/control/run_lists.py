"""The operator's lists and counts of runs, by bucket, with any combination of filters.

Each answer says how many runs it looked at, and whether that was all of them.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, cast

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from backstay.kernel.views.run_query import GROUPS, RunQuery, over_budget, sort_timestamp
from backstay.kernel.views.why import damaged_state
from backstay.protocol.history import iso
from backstay.protocol.run_lists import PAGE_MAX, CountRuns, ListedRun, SearchRuns
from backstay.protocol.tasks import optional_iso
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.operators.run_filters import Filters, filters_of, page_place, page_token, query_of
from backstay.server.operators.visibility_contract import LISTS, VERSION, definition, one_of, supported
from backstay.server.published.control.workflow_json import RunAnswer, listed
from backstay.server.registries.saved_views import SYSTEM, SavedView
from backstay.server.server import Server

LIST_PARAMETERS = ("page_size", "next_page_token", "view", "fields", "definition")
COUNT_PARAMETERS = ("group_by", "view", "definition")
SUGGESTED = ("instance_id", "workflow_type", "business_key", "queue", "compatibility", "label", "attribute")
SUGGESTIONS_MAX = 50
PREFIX_MAX = 191


class ListedRunAnswer(RunAnswer, frozen=True, kw_only=True):
    """A run in the list for operators. With `fields` a row has these alone."""

    id: str
    instance_id: str
    queue: str
    archived: bool
    archived_at: str | None
    sort_timestamp: str
    sort_key: str
    history_event_count: int
    history_size_bytes: int
    continue_as_new_recommended: bool
    is_current_run: bool
    declared_entry_mode: str | None
    declared_contract_source: str
    state: str
    attention: str | None
    why: str
    since: str | None
    until: str | None
    liveness_state: str
    wait_kind: str | None
    wait_reason: str | None
    wait_started_at: str | None
    wait_deadline_at: str | None
    open_wait_id: str | None
    resume_source_kind: str | None
    resume_source_id: str | None
    next_task_id: str | None
    next_task_type: str | None
    next_task_status: str | None
    next_task_at: str | None
    attempt: int
    attempts: int | None
    last_error: str | None
    exception_count: int
    duration_ms: int
    repair_blocked_reason: str | None
    repair_attention: bool
    task_problem: bool


class ListAnswer(Struct, frozen=True, kw_only=True):
    """The fields about the search in every answer of a list or count."""

    looked_at: Annotated[int, Meta(description="How many runs were looked at.")]
    complete: Annotated[bool, Meta(description="Whether that was all of them.")]
    namespace: str
    visibility_filters: Annotated[
        dict[str, Any], Meta(description="The filters that were applied, with their `definition` if it was requested.")
    ]


class RunsAnswer(ListAnswer, frozen=True, kw_only=True):
    flows: list[ListedRunAnswer]
    flow_count: int
    next_page_token: str | None
    sorted_among: Annotated[
        int | None, Meta(description="How many runs the order is of, if these are not all that match; else null.")
    ]


class GroupCount(Struct, frozen=True, kw_only=True):
    value: str | None
    count: int


class RunCountAnswer(ListAnswer, frozen=True, kw_only=True):
    count: int
    group_by: str | None
    groups: list[GroupCount]


class SuggestionsAnswer(Struct, frozen=True, kw_only=True):
    field: str
    prefix: str
    suggestions: list[str]
    namespace: str


class FilterDefinition(Struct, frozen=True, kw_only=True):
    version: int
    supported_versions: list[int]
    fields: list[dict[str, Any]]
    further_fields: Annotated[list[dict[str, Any]], Meta(description="Fields beside those of the contract.")]
    labels: dict[str, Any]
    search_attributes: dict[str, Any]
    search: dict[str, Any]
    ranges: list[str]
    sorts: list[str]
    orders: list[str]
    group_by: list[str]
    buckets: list[str]
    detail_metadata: dict[str, Any]
    repair_triage: list[dict[str, Any]]
    reserved_view_id_prefix: str
    attributes: Annotated[dict[str, str], Meta(description="The search attributes of the namespace, by type.")]


class Asked:
    """The query of a request, together with its saved view. The bucket of a view counts before that of the path."""

    def __init__(self, server: Server, request: HttpRequest, others: tuple[str, ...]) -> None:
        bucket = one_of("bucket", request.params["bucket"], LISTS)
        self.view = view_of(server, request.namespace, request.query.get("view"))
        self.bucket = bucket if self.view is None else self.view.bucket
        if self.bucket not in LISTS:
            raise invalid("view", f"the view is of bucket {self.bucket!r}, which this server does not know")
        own = filters_of(request.repeated, others)
        self.filters = own if self.view is None else own.over(self.view.asks)
        self.query = query_in(server, request.namespace, self.bucket, self.filters)
        self._with_definition = request.query.get("definition", "1").lower() not in ("0", "false", "no")

    def echo(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "version": VERSION,
            "bucket": self.bucket,
            "applied": self.filters.shown(),
            "saved_view": None if self.view is None else self.view.shown(),
        }
        return fields | {"definition": definition()} if self._with_definition else fields


def query_in(server: Server, namespace: str, bucket: str, filters: Filters) -> RunQuery:
    return query_of(namespace, bucket, filters, dict(server.control.attributes.of(namespace)), budget_of(server))


def budget_of(server: Server) -> tuple[int, int]:
    """The events and bytes from which on a run should continue as new."""
    settings = server.settings
    return settings.continue_as_new_event_threshold, settings.continue_as_new_size_bytes_threshold


def view_of(server: Server, namespace: str, id: str | None) -> SavedView | None:
    if not id:
        return None
    view = SYSTEM.get(id) or server.control.saved_views.get(namespace, id)
    if view is None:
        raise HttpError(404, "saved_view_not_found", f"there is no saved view {id!r}", view=id, field="view")
    supported(view.version)
    return view


async def flows(server: Server, request: HttpRequest) -> RunsAnswer:
    """Runs of a bucket that fit all filters, one page."""
    asked = Asked(server, request, LIST_PARAMETERS)
    columns = chosen(request.query.get("fields"), COLUMNS)
    size = request.integer("page_size", 50, 1, PAGE_MAX)
    place = page_place(asked.query, request.query.get("next_page_token"))
    page = await server.api.call(SearchRuns(query=asked.query, after=place, limit=size, namespace=request.namespace))
    now = server.now
    rows = [shown(run, asked.query.budget, now) for run in page.runs]
    return RunsAnswer(
        flows=rows if columns is None else [_with(row, columns) for row in rows],
        flow_count=len(page.runs),
        looked_at=page.looked_at,
        complete=page.complete,
        namespace=request.namespace,
        next_page_token=page_token(asked.query, page.end),
        sorted_among=page.looked_at if page.is_part else None,
        visibility_filters=asked.echo(),
    )


async def counts(server: Server, request: HttpRequest) -> RunCountAnswer:
    """The number of runs of a bucket that match all filters, in groups on request."""
    asked = Asked(server, request, COUNT_PARAMETERS)
    group_by = request.query.get("group_by") or None
    if group_by is not None and not group_by.startswith(("label:", "attribute:")):
        group_by = one_of("group_by", _ALIASES.get(group_by, group_by), (*GROUPS, "label:KEY", "attribute:KEY"))
    counted = await server.api.call(CountRuns(query=asked.query, group_by=group_by, namespace=request.namespace))
    return RunCountAnswer(
        count=counted.total,
        group_by=group_by,
        groups=[GroupCount(value=value, count=number) for value, number in counted.groups] if group_by else [],
        looked_at=counted.looked_at,
        complete=counted.complete,
        namespace=request.namespace,
        visibility_filters=asked.echo(),
    )


_ALIASES = {"type": "workflow_type", "build": "compatibility", "task_queue": "queue"}


async def filter_definition(server: Server, request: HttpRequest) -> FilterDefinition:
    """The fields, options and orders of lists, and the search attributes of the namespace."""
    return FilterDefinition(**definition(), attributes=dict(server.control.attributes.of(request.namespace)))


async def suggestions(server: Server, request: HttpRequest) -> SuggestionsAnswer:
    """Values of a field that begin like this."""
    field = request.query.get("field") or ""
    prefix = request.query.get("prefix") or ""
    limit = request.integer("limit", 10, 1, SUGGESTIONS_MAX)
    if len(prefix) > PREFIX_MAX:
        raise invalid("prefix", f"prefix has at most {PREFIX_MAX} characters")
    if not field.startswith(("label:", "attribute:")):
        one_of("field", field, (*SUGGESTED, "label:KEY", "attribute:KEY"))
    if field in ("queue", "compatibility"):
        workers = server.fleet.of(request.namespace)
        names = (
            {queue for worker in workers for queue in worker.queues}
            if field == "queue"
            else {worker.build_id for worker in workers if worker.build_id is not None}
        )
        groups = await server.api.stored.ready_groups(request.namespace, 100)
        names |= {group.queue if field == "queue" else group.build or "" for group in groups}
        values = sorted(name for name in names if name and name.startswith(prefix))[:limit]
    else:
        values = await server.api.stored.suggest(request.namespace, field, prefix, limit)
    return SuggestionsAnswer(field=field, prefix=prefix, suggestions=values, namespace=request.namespace)


def shown(run: ListedRun, budget: tuple[int, int], now: int) -> ListedRunAnswer:
    """A run of a list: the names of the contract, and beside them what a person looks for first."""
    row, summary, present = run.row, run.summary, run.present
    events, size = (row.length, 0) if summary is None else (summary.events, summary.bytes)
    placed = iso(sort_timestamp(row.key))
    kind, name = (None, None) if summary is None else (summary.wait_kind, summary.wait_name)
    return ListedRunAnswer(
        **asdict(replace(listed(row), history_length=events)),
        id=row.run_id,
        instance_id=row.workflow_id,
        queue=row.queue,
        archived=row.archived_at is not None,
        archived_at=optional_iso(row.archived_at),
        sort_timestamp=placed,
        sort_key=f"{placed}#{row.run_id}",
        history_event_count=events,
        history_size_bytes=size,
        continue_as_new_recommended=over_budget(budget, events, size),
        is_current_run=run.is_current,
        declared_entry_mode=None if summary is None else summary.declared_entry_mode,
        declared_contract_source="unavailable" if summary is None else summary.declared_contract_source,
        state=damaged_state(row) if summary is None else summary.state,
        attention=present.attention,
        why=present.why,
        since=optional_iso(None if summary is None else summary.since),
        until=optional_iso(None if summary is None else summary.until),
        liveness_state=present.liveness_state,
        wait_kind=kind,
        wait_reason=kind if name is None else f"{kind} {name}",
        wait_started_at=optional_iso(None if summary is None or kind is None else summary.wait_since),
        wait_deadline_at=optional_iso(None if summary is None else summary.wait_until),
        open_wait_id=None if summary is None else summary.open_wait_id,
        resume_source_kind=None if summary is None else summary.resume_source_kind,
        resume_source_id=None if summary is None else summary.resume_source_id,
        next_task_id=None if summary is None else summary.next_task_id,
        next_task_type=None if summary is None else summary.next_task_kind,
        next_task_status=None if summary is None else summary.next_task_state,
        next_task_at=optional_iso(None if summary is None else summary.next_task_at),
        attempt=0 if summary is None else summary.attempt,
        attempts=None if summary is None else summary.attempts,
        last_error=None if summary is None else summary.last_error,
        exception_count=0 if summary is None else summary.exception_count,
        duration_ms=((row.closed_at or now) - row.started_at) // 1000,
        repair_blocked_reason=present.repair_blocked_reason,
        repair_attention=present.repair_attention,
        task_problem=present.task_problem,
    )


COLUMNS = frozenset(ListedRunAnswer.__struct_fields__)
"""The columns of a row, which `fields` chooses from."""


def _with(row: ListedRunAnswer, columns: list[str]) -> ListedRunAnswer:
    """A row with these columns alone."""
    return cast(ListedRunAnswer, {name: getattr(row, name) for name in columns})


def chosen(text: str | None, known: frozenset[str]) -> list[str] | None:
    """The columns that `fields` names; None: all of them."""
    if not text:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            near = get_close_matches(name, sorted(known), 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise invalid("fields", f"{name!r} is no column of a list{meant}")
    return names


ROUTES = [
    Route("GET", "/api/flows/definition", filter_definition, "control", OPERATOR),
    Route("GET", "/api/flows/{bucket}", flows, "control", OPERATOR),
    Route("GET", "/api/flows/{bucket}/count", counts, "control", OPERATOR),
    Route("GET", "/api/suggest", suggestions, "control", OPERATOR),
]
