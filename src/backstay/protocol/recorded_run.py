"""A run with its whole history, out of a database or out of an export: what a replay needs to know of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, cast

import msgspec
from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Event, Recorded
from backstay.kernel.names import Name
from backstay.kernel.values import MAX_ID, valid_id
from backstay.protocol.bundle_check import ExportBundle
from backstay.protocol.bundle_reading import UnreadableEvent, read_events
from backstay.protocol.redaction import FRAME


class RecordedRun(Struct, frozen=True, kw_only=True):
    """`key`: that of the run in its database; a run of an export has none."""

    namespace: str
    workflow_id: str
    workflow_type: str
    run_id: str
    run_number: int
    history: list[Recorded]
    key: int = 0


class UnreadableRun(ValueError):
    """The run of an export cannot be read. The message says why."""


class RunIdentity(Struct, kw_only=True):
    """The instance and the run of an export."""

    namespace: str
    instance_id: str
    run_id: str
    run_number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    workflow_type: Name


def of_row(row: RunRow, history: list[Recorded]) -> RecordedRun:
    return RecordedRun(
        namespace=row.namespace,
        workflow_id=row.workflow_id,
        workflow_type=row.workflow_type,
        run_id=row.run_id,
        run_number=row.number,
        history=history,
        key=row.key,
    )


def of_export(bundle: ExportBundle, kinds: dict[str, type[Event]]) -> RecordedRun:
    """The run of an export. Of a redacted one, every payload of its history must have been replaced by a payload."""
    identity = identity_of(bundle)
    events = _whole(bundle) if _redacted(bundle) else bundle.entries("history_events")
    try:
        history = list(read_events(events, kinds))
    except UnreadableEvent as error:
        raise UnreadableRun(str(error)) from error
    if not history:
        raise UnreadableRun("it has no events")
    return RecordedRun(
        namespace=identity.namespace,
        workflow_id=identity.instance_id,
        workflow_type=identity.workflow_type,
        run_id=identity.run_id,
        run_number=identity.run_number,
        history=history,
    )


def identity_of(bundle: ExportBundle) -> RunIdentity:
    try:
        found = msgspec.convert(bundle.get("workflow"), RunIdentity)
    except msgspec.ValidationError as error:
        raise UnreadableRun(f"its member 'workflow' cannot be read: {error}") from None
    for field in ("namespace", "instance_id", "run_id"):
        if not valid_id(getattr(found, field)):
            raise UnreadableRun(
                f"its {field} {getattr(found, field)[:80]!r} is not valid; use 1 to {MAX_ID} characters out of A-Z a-z 0-9 . _ : ~ -"
            )
    return found


def _redacted(bundle: ExportBundle) -> bool:
    redaction: Any = bundle.get("redaction")
    return isinstance(redaction, dict) and bool(cast(dict[str, Any], redaction).get("applied"))


def _whole(bundle: ExportBundle) -> Iterator[dict[str, Any]]:
    """The events of a redacted export. `UnreadableRun` if the redactor left something else in place of a payload."""
    replaced: dict[int, list[list[str]]] = {}
    for entry in bundle.get("payload_manifest").get("entries", ()):
        for path in entry["paths"] if entry.get("redacted") else ():
            first, *rest = path.replace("[", ".").replace("]", "").split(".")
            if first == "history_events":
                replaced.setdefault(int(rest[0]), []).append(rest[1:])
    for place, event in enumerate(bundle.entries("history_events")):
        for names in replaced.get(place, ()):
            holder: Any = event
            for name in names:
                holder = holder[int(name) if name.isdecimal() else name]
            if not isinstance(holder, str) or not holder.startswith(FRAME):
                raise UnreadableRun(
                    f"it is redacted, and event {place + 1} has no payload any more; let the redactor return a payload"
                )
        yield event
