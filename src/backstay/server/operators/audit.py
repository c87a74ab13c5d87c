"""The audit: every command to workflows and schedules of a namespace, and every change of the server, newest first.

Commands are read backwards in the order of their commits, `CHUNK` at a time, and filtered as they come. A page ends when it is
full, or after `LOOKED_AT` commands: it then says how far it looked, and its token goes on from there. The time at which a page
shall begin is found by halving, since commits are in order of time.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.protocol.origin import flat, shown_origin
from backstay.server.http.errors import HttpError
from backstay.server.operators.system_actions import SystemAction
from backstay.store import LoggedCommand, StoredReads

CHUNK = 200
CHUNK_BYTES = 256 << 10  # a command may carry a large payload
LOOKED_AT = 2000
PAGE = 50
PAGE_MAX = 200
SLACK = 60 * SECOND  # by which clocks of several processes may differ
END = (1 << 63) - 1

_SCHEDULES = "/schedules"


class AuditFilter(Struct, frozen=True, kw_only=True):
    """The filter of entries; None matches everything. Times: from `since` on, and before `until`."""

    namespace: str = "default"
    command_type: str | None = None
    status: str | None = None
    token_id: str | None = None
    caller: str | None = None
    source: str | None = None
    workflow_id: str | None = None
    since: Micros | None = None
    until: Micros | None = None
    bound: bool = False  # to the namespace: entries about the whole server are not shown
    automatic_starts: bool = True  # starts by schedules and by workflows, which may be most of all commands


class AuditPage(Struct, frozen=True, kw_only=True):
    """`looked_until`: the time of the oldest command that was looked at. `token` None: there is no more."""

    entries: list[dict[str, Any]]
    looked_at: int
    looked_until: Micros | None
    token: str | None


class _AuditPlace(Struct, frozen=True, array_like=True):
    """Where a page begins: before this command, and before this action."""

    command: int
    action: str
    list: str  # a hash of the filter, since a place in one list means nothing in another


async def audit_page(
    store: StoredReads, actions: Sequence[SystemAction], where: AuditFilter, token: str | None, limit: int
) -> AuditPage:
    """One page. `actions`: newest first."""
    place = _AuditPlace(END, "", _list(where)) if token is None else _opened(token, where)
    workflows = await _instances(store, where)
    before = place.command
    if before == END and where.until is not None and workflows is None:
        before = await _position(store, where.until + SLACK)
    found: list[LoggedCommand] = []
    looked, at, over = 0, None, workflows == []
    while not over and len(found) < limit and looked < LOOKED_AT:
        chunk = await _chunk(store, before, workflows)
        over = not chunk
        for command in chunk:
            if over or len(found) == limit:
                break
            looked, before = looked + 1, command.position
            at = command.record.at or at
            over = where.since is not None and at is not None and at < where.since - SLACK
            if _matches(command, where):
                found.append(command)
    # Actions that are older than the last command looked at are shown with the commands of their time.
    oldest = 0 if over else at or 0
    done = [
        action
        for action in actions
        if (not place.action or action.id < place.action) and action.at >= oldest and _done_here(action, where)
    ]
    merged = sorted(
        [*(_AuditEntry.of(one) for one in found), *(_AuditEntry.of(one) for one in done)], key=_newest_first
    )
    page = merged[:limit]
    cut = merged[limit:]
    if any(entry.command for entry in cut):
        before = min((entry.command for entry in page if entry.command), default=place.command)
    last = min((entry.action for entry in page if entry.action), default=place.action)
    more = not over or bool(cut)
    return AuditPage(
        entries=[entry.shown for entry in page],
        looked_at=looked,
        looked_until=at,
        token=_closed(_AuditPlace(before, last, place.list)) if more else None,
    )


class _AuditEntry(Struct, frozen=True):
    at: Micros
    order: int
    shown: dict[str, Any]
    command: int = 0
    action: str = ""

    @staticmethod
    def of(one: LoggedCommand | SystemAction) -> _AuditEntry:
        if isinstance(one, SystemAction):
            return _AuditEntry(one.at, 0, _shown_action(one), action=one.id)
        return _AuditEntry(one.record.at or 0, one.position, _shown_command(one), command=one.position)


def _newest_first(entry: _AuditEntry) -> tuple[int, int]:
    return -entry.at, -entry.order


# -- reading


async def _instances(store: StoredReads, where: AuditFilter) -> list[int] | None:
    """The keys of the instances of this id: a workflow, a schedule, or both. None: of every instance."""
    if where.workflow_id is None:
        return None
    places = (where.namespace, where.namespace + _SCHEDULES)
    keys = [await store.find(place, where.workflow_id) for place in places]
    return [key for key in keys if key is not None]


async def _chunk(store: StoredReads, before: int, workflows: list[int] | None) -> list[LoggedCommand]:
    """The next commands, as many as are read quickly."""
    if workflows is None:
        return await _sized(store, before, None)
    each = [found for key in workflows if (found := await _sized(store, before, key))]
    # Below the end of one part, the others may not be read further than that one.
    reached = max((found[-1].position for found in each), default=0)
    together = [command for found in each for command in found if command.position >= reached]
    return sorted(together, key=lambda command: -command.position)


async def _sized(store: StoredReads, before: int, workflow: int | None) -> list[LoggedCommand]:
    sizes = await store.command_sizes(before, CHUNK, workflow)
    count, total = 0, 0
    for size in sizes:
        total += size
        if count and total > CHUNK_BYTES:
            break
        count += 1
    return await store.command_log(before, count, workflow) if count else []


async def _position(store: StoredReads, moment: Micros) -> int:
    """A position at which all earlier commands were recorded before a time."""
    newest = await store.command_log(END, 1, None)
    low, high = 1, newest[0].position + 1 if newest else 1
    while low < high:
        middle = (low + high) // 2
        found = await store.command_log(middle + 1, 1, None)
        if found and (found[0].record.at or 0) > moment:
            high = found[0].position
        else:
            low = middle + 1
    return low


def _matches(command: LoggedCommand, where: AuditFilter) -> bool:
    record = command.record
    about: dict[str, Any] = record.context.get("request") or {}
    return (
        command.namespace.removesuffix(_SCHEDULES) == where.namespace
        and (where.automatic_starts or not _is_automatic_start(command))
        and where.command_type in (None, record.command_type)
        and where.status in (None, record.status)
        and where.source in (None, record.source)
        and where.token_id in (None, about.get("token_id"))
        and where.caller in (None, about.get("caller"))
        and (where.since is None or (record.at or 0) >= where.since)
        and (where.until is None or (record.at or 0) < where.until)
    )


def _is_automatic_start(command: LoggedCommand) -> bool:
    return command.record.command_type == "start" and command.record.source in ("schedule", "workflow")


def _done_here(action: SystemAction, where: AuditFilter) -> bool:
    about = action.request
    return (
        where.workflow_id is None
        and (action.namespace == where.namespace or (action.namespace is None and not where.bound))
        and where.command_type in (None, action.action)
        and where.status in (None, _status(action))
        and where.source in (None, action.source)
        and where.token_id in (None, about.get("token_id"))
        and where.caller in (None, about.get("caller"))
        and (where.since is None or action.at >= where.since)
        and (where.until is None or action.at < where.until)
    )


# -- answers


def _shown_command(command: LoggedCommand) -> dict[str, Any]:
    record = command.record
    is_schedule = command.namespace.endswith(_SCHEDULES)
    return {
        "kind": "command",
        "id": record.id,
        "recorded_at": None if record.at is None else iso(record.at),
        "command_type": record.command_type,
        "command_sequence": record.sequence,
        "status": record.status,
        "outcome": record.outcome,
        "rejection_reason": record.rejection_reason,
        "workflow_id": None if is_schedule else command.workflow_id,
        "schedule_id": command.workflow_id if is_schedule else None,
        "run_id": record.requested_run_id or record.resolved_run_id,
        "target_name": record.target_name,
        "source": record.source,
        "request_id": record.request_id,
        "payload_bytes": len(record.payload or b""),
        **shown_origin(record),
    }


def _shown_action(action: SystemAction) -> dict[str, Any]:
    return {
        "kind": "system",
        "id": action.id,
        "recorded_at": iso(action.at),
        "command_type": action.action,
        "status": _status(action),
        "outcome": action.outcome,
        "target_name": action.target,
        "namespace": action.namespace,
        "source": action.source,
        "about": action.details,
        **flat(action.request),
    }


def _status(action: SystemAction) -> str:
    return "rejected" if action.refused else "accepted"


def moment(text: str) -> Micros:
    """A time of a filter; a `ValueError` if it is none. Without a zone it is UTC."""
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * SECOND)


# -- page tokens


def _list(where: AuditFilter) -> str:
    return sha256(msgspec.json.encode(where)).hexdigest()[:16]


def _closed(place: _AuditPlace) -> str:
    return urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _opened(token: str, where: AuditFilter) -> _AuditPlace:
    try:
        place = msgspec.json.decode(urlsafe_b64decode(token), type=_AuditPlace)
    except (Base64Error, ValueError):
        place = None
    if place is None or not 0 <= place.command <= END or place.list != _list(where):
        raise HttpError(
            400,
            "invalid_page_token",
            "this page token belongs to another list: request the first page, and keep the same filters",
            field="next_page_token",
        )
    return place
