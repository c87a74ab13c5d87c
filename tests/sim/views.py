"""Stored views on the simulated disk, and their laws.

The projector, the background job and the certificate run as in a real process, with the faults of their node. The law that matters: a
summary that its stamp calls right is what history says. And when all is calm, none is missing, and nothing is stranded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from backstay.engine.views.run_views import stored_summary
from backstay.kernel.decision import RunRow
from backstay.kernel.machine import Machine
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Task
from backstay.kernel.turn import add_task_deadlines
from backstay.kernel.values import Micros, instance_kind
from backstay.kernel.views.summary import RunSummary, summarize
from backstay.store import as_ready
from backstay.store.errors import Unavailable
from backstay.store.views import (
    DAMAGED,
    InstanceFacts,
    ResumeCounts,
    ResumePage,
    StrandedPlace,
    SummaryRow,
    Unprojected,
    ViewChanges,
    ViewRow,
)

if TYPE_CHECKING:
    from .disk import Disk
    from .simulation import Simulation


class ViewRows:
    """The tables of stored views."""

    def __init__(self) -> None:
        self.summaries: dict[int, SummaryRow] = {}
        self.entries: dict[tuple[str, int], list[ViewRow]] = {}
        self.starts = 0

    def copy(self) -> ViewRows:
        other = ViewRows()
        other.summaries, other.entries, other.starts = dict(self.summaries), dict(self.entries), self.starts
        return other

    def put(self, changes: ViewChanges) -> None:
        for run in changes.forgotten:
            self.summaries.pop(run, None)
        for row in changes.summaries:
            self.summaries[row.run] = row
        for view, run, position, rows in changes.views:
            self.entries[view, run] = [*self.entries.get((view, run), [])[:position], *rows]
        self.starts += sum(tally.n for tally in changes.tallies if tally.outcome == "started")


def facts_of(disk: Disk, workflow: int) -> InstanceFacts:
    row = disk.workflows[workflow]
    return InstanceFacts(
        workflow, row.last_decision, row.run, row.next_wake, row.expects, len(disk.tasks.get(workflow, {}))
    )


class ViewStore:
    """What a simulated store does with stored views."""

    disk: Disk
    _seam: Any

    def put_views(self, changes: ViewChanges, done: Callable[[Unavailable | None], None]) -> None:
        self.disk.views.put(changes)
        done(None)

    @as_ready
    def summaries(self, runs: Sequence[int]) -> dict[int, SummaryRow]:
        self._seam.read(self)
        return {run: self.disk.views.summaries[run] for run in runs if run in self.disk.views.summaries}

    @as_ready
    def view_rows(self, view: str, run: int) -> list[ViewRow]:
        self._seam.read(self)
        return self.disk.views.entries.get((view, run), [])

    @as_ready
    def facts(self, workflows: Sequence[int]) -> dict[int, InstanceFacts]:
        self._seam.read(self)
        return {key: facts_of(self.disk, key) for key in workflows if key in self.disk.workflows}

    @as_ready
    def tasks(self, workflow: int) -> list[Task]:
        self._seam.read(self)
        return self.disk.tasks_of(workflow)

    @as_ready
    def run_by_key(self, key: int) -> RunRow | None:
        self._seam.read(self)
        return self.disk.run(key) if key in self.disk.runs else None

    @as_ready
    def unprojected(self, schema: int, after: int, limit: int) -> Unprojected:
        self._seam.read(self)
        page = [key for key in sorted(self.disk.runs) if key > after and _is_workflow(self.disk.runs[key])][:limit]
        found: dict[str, list[tuple[int, int]]] = {"missing": [], "outdated": [], "right": []}
        for key in page:
            run = self.disk.run(key)
            found[_judge(self.disk, run)].append((key, run.workflow))
        return Unprojected(**found, looked_at=len(page), after=page[-1] if len(page) == limit else None)

    @as_ready
    def closed_but_open(self) -> list[int]:
        self._seam.read(self)
        return [
            run
            for run, row in self.disk.views.summaries.items()
            if row.duration is None and self.disk.runs[run].closed_at is not None
        ]

    @as_ready
    def resume_sources(self, after: int, limit: int) -> ResumePage:
        self._seam.read(self)
        page = [key for key in sorted(self.disk.workflows) if key > after][:limit]
        counts = ResumeCounts()
        stranded: list[StrandedPlace] = []
        for key in page:
            row = self.disk.workflows[key]
            if row.run is None or self.disk.run(row.run).closed_at is not None:
                continue
            tasks = len(self.disk.tasks.get(key, {}))
            kind = (
                "task" if tasks else "wake" if row.next_wake is not None else "answer" if row.unanswered else "outside"
            )
            resumable = tasks == row.expects and (kind != "outside" or bool(row.waits_externally))
            if not (resumable and _is_whole(self.disk, row.run, row.length, row.checksum)):
                stranded.append(StrandedPlace(key, row.namespace, row.workflow_id, resumable))
                counts = counts._replace(open=counts.open + 1)
            else:
                counts = counts._replace(open=counts.open + 1, **{kind: getattr(counts, kind) + 1})
        return ResumePage({"default": counts}, stranded, page[-1] if len(page) == limit else None)

    @as_ready
    def open_instances(self, after: int, limit: int) -> tuple[list[int], int | None]:
        self._seam.read(self)
        page = [key for key in sorted(self.disk.workflows) if key > after][:limit]
        runs = {key: self.disk.workflows[key].run for key in page}
        found = [key for key, run in runs.items() if run is not None and self.disk.run(run).closed_at is None]
        return found, page[-1] if len(page) == limit else None


def _is_whole(disk: Disk, run: int, length: int, checksum: int) -> bool:
    """As far as rows tell without being read: altered events are not seen."""
    events, marked = disk.events.get(run, []), disk.views.summaries.get(run)
    return len(events) == length and events[-1][5] == checksum and (marked is None or marked.schema != DAMAGED)


def _is_workflow(run: RunRow) -> bool:
    return instance_kind(run.namespace) == "workflow"


def _judge(disk: Disk, run: RunRow) -> str:
    row = disk.views.summaries.get(run.key)
    if row is None:
        return "missing"
    facts = facts_of(disk, run.workflow)
    right = row.stamp == (facts.last_decision if facts.run == run.key else run.length)
    return "right" if row.projected and right else "outdated"


def _cold(sim: Simulation, machine: Machine, run: RunRow) -> RunSummary:
    """The summary of a run from nothing but its rows."""
    disk = sim.disk
    loaded = disk.load(machine.kinds, run.workflow)
    assert loaded is not None
    row = loaded.row
    instance = Instance(row.key, row.namespace, row.workflow_id)
    instance.last_decision, instance.cursor, instance.next_wake = row.last_decision, row.cursor, row.next_wake
    instance.workflow_type = row.workflow_type
    state = instance.run = Run(run.key, run.run_id, run.number)
    if row.run == run.key:
        machine.fold(instance, state, loaded.history)
        for task in loaded.tasks:
            instance.keep_task(task)
            add_task_deadlines(state, task)
        instance.buffered_events = list(row.buffered_events)
        return summarize(machine, instance)
    machine.fold(instance, state, disk.history(machine.kinds, run.key))
    return summarize(machine, instance, stamp=run.length)


def check_summaries(sim: Simulation, machine: Machine) -> None:
    """Every stored summary that counts as right is what a cold fold of the rows says."""
    for run, stored in list(sim.disk.views.summaries.items()):
        if run in sim.disk.runs and run not in sim.unreadable and run not in sim.damaged and run not in sim.falsified:
            row = sim.disk.run(run)
            believed = stored_summary(stored, row, facts_of(sim.disk, row.workflow))
            if believed is not None and row.workflow not in sim.sabotaged:
                cold = _cold(sim, machine, row)
                if cold.liveness_state == "repair_needed" and believed.next_task_state == "leased":
                    continue  # heartbeats since the last that was recorded are known in memory alone, and move the wake
                sim.auditor.must(believed == cold, "V1 a summary that is believed is true", (believed, cold))


async def check_certificate(sim: Simulation) -> None:
    """When all is calm, a run whose history cannot be folded is stranded, whatever rows it has; no other run is called damaged."""
    proof = await sim.nodes[0].app._node.certificate.prove()
    named = {one.workflow for one in proof.stranded if one.damage is not None}
    broken = {key for key in sim.damaged if _is_broken(sim, key)}
    sim.auditor.must(broken <= named, "V3 what cannot be folded is stranded", sorted(broken - named))
    sim.auditor.must(named <= sim.damaged, "V3 only what is damaged is called so", sorted(named - sim.damaged))


def _is_broken(sim: Simulation, workflow: int) -> bool:
    """Whether the open run of an instance is one that was damaged: it may have gone on as another one before anybody looked."""
    row = sim.disk.workflows.get(workflow)
    return row is not None and row.run in sim.unreadable and sim.disk.run(row.run).closed_at is None


def check_all_stored(sim: Simulation, at: Micros) -> None:
    """When all is calm for long enough, every run has views that are right."""
    for key, run in sim.disk.runs.items():
        if _is_workflow(run) and key not in sim.unreadable and key not in sim.damaged and key not in sim.falsified:
            verdict = _judge(sim.disk, sim.disk.run(key))
            sim.auditor.must(verdict == "right", "V2 views are stored in the end", (run.workflow_id, verdict, at))
