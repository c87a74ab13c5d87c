"""The export of a run as one file, with a checksum that anyone can verify.

Everything besides the events is derived from them, as in the detail of a run, so a bundle cannot contradict either. Events are
written as they are read. Of what follows from them only what is still open is kept in memory, and never a payload of a closed
activity.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import msgspec
from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.features.activity import ActivityScheduled
from backstay.kernel.features.archive import WorkflowArchived
from backstay.kernel.features.close import WorkflowCompleted
from backstay.kernel.features.memo import MemoUpserted
from backstay.kernel.features.start import WorkflowDefinitionAdopted, WorkflowStarted, started_of
from backstay.kernel.features.timer import TimerEvent
from backstay.kernel.values import CODEC, Micros
from backstay.kernel.views import failures as failure_views
from backstay.kernel.views import lineage as lineage_views
from backstay.kernel.views import messages as message_views
from backstay.kernel.views.activities import ActivityFold, ActivityView
from backstay.kernel.views.timers import timers
from backstay.kernel.views.waits import Waits, back, wait_order
from backstay.protocol.damaged_run import about_damage, evidence
from backstay.protocol.export_file import AS_IT_IS, IN_MEMORY, STEP, ExportFile, Exporting, canonical_text, spooled
from backstay.protocol.history import iso, operator_event
from backstay.protocol.payloads import envelope
from backstay.protocol.plain import plain
from backstay.protocol.remains import Remains
from backstay.protocol.requests import Description
from backstay.protocol.run_detail import (
    BUCKET_OF,
    PROJECTION_SOURCES,
    declared,
    memo,
    shown_activity,
    shown_commands,
    shown_failure,
    shown_link,
    shown_timer,
    shown_wait,
    timeline,
)
from backstay.protocol.run_fields import run_fields
from backstay.protocol.run_tasks import closed_tasks, missing_task, replay_block, shown_task, timer_tasks

SCHEMA = "durable-workflow.v2.history-export"
_TOLD = (*failure_views.READS, *lineage_views.READS, *message_views.READS, TimerEvent)
"""Events that lists besides activities and waits are made of."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(ActivityView).decode


class RunExport:
    """Writes one run: `add` each event, then `finish`, then read the `file`."""

    def __init__(self, row: RunRow, how: Exporting = AS_IT_IS) -> None:
        self.row = row
        self.file = ExportFile(how, {"namespace": row.namespace, "workflow_id": row.workflow_id, "run_id": row.run_id})
        self._events = self.file.section("history_events")
        self._timeline = self.file.section("timeline")
        self._activities = _ActivitiesOnDisk()
        self._waits = Waits()
        self.told: list[Recorded] = []  # events that lists besides activities and waits are made of
        self._contexts: list[Recorded] = []  # of a closed run: the task of each event
        self._opening: list[Recorded] = []
        self._memo: Recorded | None = None
        self._archived: Recorded | None = None
        self._output: bytes | None = None
        self._last: Recorded | None = None

    def add(self, entry: Recorded) -> None:
        """Add the next event."""
        self._last = entry
        wire = operator_event(entry, self.row.run_id)
        self._events.put(wire | {"type": wire["event_type"]})
        self._timeline.put(timeline([entry], self.row.run_id)[0])
        self._activities.add(entry)
        self._waits.add(entry)
        event = entry.event
        if isinstance(event, _TOLD):
            self.told.append(entry)
        if self.row.closed_at is not None and entry.context.task_id is not None:
            # Only its context is looked at, so the event and its bytes may go.
            kept = event if isinstance(event, WorkflowStarted) else _NOTHING
            self._contexts.append(Recorded(entry.run, entry.sequence, entry.at, kept, entry.context, b"", b"", 0, ""))
        match event:
            case WorkflowStarted():
                self._opening.append(entry)
                self._contexts.append(entry)
            case WorkflowDefinitionAdopted():
                self._opening.append(entry)
            case MemoUpserted():
                self._memo = entry
            case WorkflowArchived():
                self._archived = entry
            case WorkflowCompleted(output=output):
                self._output = output
            case _:
                pass

    def finish(
        self,
        description: Description,
        commands: list[CommandRecord],
        held: Sequence[tuple[Event, Context]],
        chain: Mapping[str, RunRow],
        exported_at: Micros,
        sources: Mapping[str, str] = PROJECTION_SOURCES,
    ) -> Generator[None]:
        """Write everything besides the events. It is done in steps: other work may be done after each.

        `description` describes the run by its state. `held`: events that are accepted and not recorded yet. `chain`: the runs beside
        it. `sources`: where its views are stored.
        """
        sources = PROJECTION_SOURCES | dict(sources)
        row, file = self.row, self.file
        own = [command for command in commands if command.run == row.key]
        tasks = [view.task for view in description.tasks]
        failed = failure_views.failures(self.told, row.run_id, tasks)
        signals = message_views.signals(self.told, own, held)
        updates = message_views.updates(self.told, held)
        self._waits.end(row)
        waits = sorted(self._waits.found.values(), key=wait_order)
        back(waits, tasks, description.next_wake)
        yield
        for name, value in {
            "schema": SCHEMA,
            "schema_version": 1,
            "exported_at": iso(exported_at),
            "dedupe_key": f"{row.run_id}:{row.length}",
            "history_complete": row.closed_at is not None,
            "history_damage": None,
            "workflow": self._workflow(
                description.is_current_run, description.current_run_id, description.current_run_source
            ),
            "payloads": self._payloads(),
            "selected_run": {
                **sources,
                "current_run_id": description.current_run_id,
                "current_run_source": description.current_run_source,
                "status": row.status,
                **run_fields(row, replace(description, exception_count=len(failed))),
                "exception_count": len(failed),
                "open_wait_count": sum(wait.status == "open" for wait in waits),
                "replay_block": replay_block(tasks),
                "history_damage": None,
                "workflow_determinism_source": description.determinism_source,
                **declared(self._opening),
            },
        }.items():
            file.set(name, value)
        yield from self._put_activities()
        family = lineage_views.lineage(self.told, row.number, chain)
        lists: dict[str, Iterable[dict[str, Any]]] = {
            "waits": map(shown_wait, waits),
            "timers": map(shown_timer, timers(self.told, row, description.next_wake)),
            "failures": map(shown_failure, failed),
            "signals": map(plain, signals),
            "updates": map(plain, updates),
            "commands": shown_commands([one for one in commands if one.may_be_of(row.key)], signals, updates),
            "links.parents": map(shown_link, family.parents),
            "links.children": map(shown_link, family.children),
        }
        yield from self._put(lists)
        file.set("links.projection_source", sources["lineage_projection_source"])
        serving = self._activities.without_payloads
        if row.is_open:
            shown_tasks = [shown_task(view, row.run_id, serving) for view in description.tasks]
            shown_tasks += [missing_task(task, row.run_id, serving) for task in description.missing_tasks]
            shown_tasks += timer_tasks(waits, description.next_wake)
        else:
            shown_tasks = closed_tasks(row, self._contexts, serving.values())
        yield from self._put({"tasks": (task | {"task_type": task["type"]} for task in shown_tasks)})
        self._forget_events()
        yield from file.finish()

    def finish_damaged(self, remains: Remains, exported_at: Micros) -> Generator[None]:
        """Write the readable part of a run whose history is damaged: its events up to the damage, and the evidence of
        rows."""
        row, file = self.row, self.file
        for number, entry in enumerate(remains.events):
            self.add(entry)
            if number % STEP == 0:
                yield
        lists = evidence(remains, exported_at)
        about = about_damage(remains)
        for name, value in {
            "schema": SCHEMA,
            "schema_version": 1,
            "exported_at": iso(exported_at),
            "dedupe_key": f"{row.run_id}:{row.length}",
            "history_complete": False,
            "history_damage": about["history_damage"],
            "workflow": self._workflow(remains.is_current, remains.current_run_id, None),
            "payloads": self._payloads(),
            "selected_run": {"status": row.status, "current_run_source": None, **run_fields(row, None), **about},
        }.items():
            file.set(name, value)
        yield
        lists["activity_attempts"] = []
        lists["tasks"] = [task | {"task_type": task["type"]} for task in lists["tasks"]]
        lists["links.parents"], lists["links.children"] = lists.pop("parents"), lists.pop("children")
        del lists["timeline"]  # written with the events
        yield from self._put(lists)
        file.set("links.projection_source", about["lineage_projection_source"])
        self._forget_events()
        yield from file.finish()

    def _put(self, lists: Mapping[str, Iterable[dict[str, Any]]]) -> Generator[None]:
        """Write lists, each into the section of its name."""
        for name, items in lists.items():
            section = self.file.section(name)
            for number, item in enumerate(items):
                section.put(item)
                if number % STEP == 0:
                    yield

    def _put_activities(self) -> Generator[None]:
        """Write the activities, and their attempts as a list of their own."""
        listed = self.file.section("activities")
        attempts = self.file.section("activity_attempts")
        for number, view in enumerate(self._activities.all()):
            shown = shown_activity(view)
            about = {"activity_execution_id": view.id, "activity_type": view.activity_type, "sequence": view.sequence}
            tried = [dict(attempt) | about for attempt in shown["attempts"]]
            listed.put(shown)
            for attempt in tried:
                attempts.put(attempt)
            if number % STEP == 0:
                yield

    def close(self) -> None:
        """Remove everything from the disk."""
        self._activities.close()
        self.file.close()

    def _forget_events(self) -> None:
        """Free them here, not when the file has been sent: that would be on the thread of the engine."""
        self.told.clear()
        self._contexts.clear()
        self._activities.close()
        self._waits.found.clear()

    def _workflow(self, is_current_run: bool, current_run_id: str | None, source: str | None) -> dict[str, Any]:
        row = self.row
        started = started_of(self._opening)
        archived = self._archived
        why = archived.event if archived is not None and isinstance(archived.event, WorkflowArchived) else None
        told = [*self._opening, *([] if self._memo is None else [self._memo])]
        return {
            "instance_id": row.workflow_id,
            "run_id": row.run_id,
            "run_number": row.number,
            "is_current_run": is_current_run,
            "current_run_id": current_run_id,
            "current_run_source": source,
            "namespace": row.namespace,
            "workflow_type": row.workflow_type,
            "workflow_class": None if started is None else started.workflow_class,
            "workflow_definition_fingerprint": None if started is None else started.workflow_definition_fingerprint,
            "status": row.status,
            "status_bucket": BUCKET_OF[row.status],
            "closed_reason": row.closed_reason,
            "archived_at": None if archived is None else iso(archived.at),
            "archive_command_id": None if why is None else why.archive_command_id,
            "archive_reason": None if why is None else why.reason,
            "business_key": row.business_key,
            "visibility_labels": row.labels,
            "memo": {name: envelope(blob) for name, blob in memo(told).items()},
            "search_attributes": row.search_attributes,
            "task_queue": row.queue,
            "connection": row.connection,
            "compatibility": row.compatibility,
            "payload_codec": CODEC,
            "started_at": iso(row.started_at),
            "closed_at": None if row.closed_at is None else iso(row.closed_at),
            "last_progress_at": None if self._last is None else iso(self._last.at),
            "last_history_sequence": 0 if self._last is None else self._last.sequence,
        }

    def _payloads(self) -> dict[str, Any]:
        """The arguments and the result, as they are stored."""
        started = started_of(self._opening)
        return {
            "codec": CODEC,
            "arguments": _payload(None if started is None else started.arguments),
            "output": _payload(self._output),
        }


class _Nothing(Event, frozen=True):
    """In the place of an event that is not needed any more."""


_NOTHING = _Nothing()


class _ActivitiesOnDisk:
    """The activities of a run in the order in which they were scheduled. Closed ones are on disk, with their payloads."""

    def __init__(self) -> None:
        self._fold = ActivityFold()
        self._order = array("q")
        self._place: dict[int, tuple[int, int]] = {}  # by step: where it is in the file
        self._file: IO[bytes] = spooled(IN_MEMORY)
        self.without_payloads: dict[int, ActivityView] = {}

    def add(self, entry: Recorded) -> None:
        view = self._fold.add(entry)
        if view is None:
            return
        if isinstance(entry.event, ActivityScheduled):
            self._order.append(view.sequence)
            self.without_payloads[view.sequence] = view
        if view.closed_at is not None:
            packed = _pack(view)
            self._place[view.sequence] = (self._file.seek(0, 2), len(packed))
            self._file.write(packed)
            del self._fold.found[view.sequence]
            self.without_payloads[view.sequence] = view
            view.arguments = view.result = None

    def all(self) -> Iterator[ActivityView]:
        for step in self._order:
            place = self._place.get(step)
            if place is None:
                yield self._fold.found[step]
            else:
                self._file.seek(place[0])
                yield _unpack(self._file.read(place[1]))

    def close(self) -> None:
        self._file.close()
        self._place.clear()
        self._fold.found.clear()
        self.without_payloads.clear()


def _payload(blob: bytes | None) -> dict[str, Any]:
    packed = envelope(blob)
    return {"available": packed is not None, "codec": CODEC, "data": None if packed is None else packed["blob"]}


def exporter(how: Exporting = AS_IT_IS) -> Callable[[RunRow], RunExport]:
    """Begins the export of a run."""

    def begin(row: RunRow) -> RunExport:
        return RunExport(row, how)

    return begin


def bundle(
    row: RunRow,
    history: Iterable[Recorded],
    commands: list[CommandRecord],
    exported_at: Micros,
    chain: Mapping[str, RunRow],
    remains: Description,
    how: Exporting = AS_IT_IS,
) -> bytes:
    """The export of a run whose history is in memory."""
    made = RunExport(row, how)
    try:
        for entry in history:
            made.add(entry)
        for _ in made.finish(remains, commands, (), chain, exported_at):
            pass
        return b"".join(made.file.pieces())
    finally:
        made.close()


def canonical(content: Mapping[str, Any]) -> bytes:
    """The canonical JSON of a bundle without its `integrity`, over which its checksum goes."""
    return canonical_text(content)
