"""The liveness certificate: a proof, with its age, that every open run has something on disk that will resume it.

A pass reads all instances, a page at a time, and counts open runs by what resumes them: a task (a worker, or a repair, owns it), a
wake (a deadline), the answer of another instance, or a message from outside. A run with none of these, or with other task rows than
its last decision left, is *stranded*. So is a run whose history cannot be folded, whatever rows it has (`damaged_runs.py`). A
stranded run is looked at once more at the end of the pass, since the sweep may have mended it meanwhile, and then named.

The open run of an instance is its newest, whichever its row names. A row that names an older run, because it was changed by hand, is
found by that: it names no event at the end of the newest history. The owner of the instance writes it again.

Every pass compares each history with the row of its instance: the last event, and how many there are. Altered events are found
only by reading them. That is done for as many histories as fit into `READING`, in turn; the proof says since when all were read.

Of several processes at a database one makes the passes: the owner of the first shard. It stores its result in the
registry, where the other processes read it. If that process makes none, another one does.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks
from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.world import turn
from backstay.engine.views.damaged_runs import DamagedRuns
from backstay.engine.views.projector import Projector
from backstay.kernel.spans import iso
from backstay.kernel.values import SECOND, Micros
from backstay.store import RegistryEntry
from backstay.store.errors import Unavailable
from backstay.store.views import ResumeCounts

EVERY = 20 * SECOND
PAGE = 5000
LATE = 3 * EVERY  # without a proof, and then any process makes one
NAMED = 1000  # stranded runs that are named; the others are counted
TOLD = 100  # of them, those that are published by name
READ_PAGE = 1000
READING = 50_000  # microseconds of a pass that are spent on reading and folding histories
PATIENT = (
    200  # a pass that took longer over that, because of a long history, is followed by a pause of so many times that
)
KIND = "certificate"


class StrandedRun(Struct, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    workflow: int
    damage: str | None = None  # the damage of its history, if that is the reason
    drifted: bool = False  # the row of its instance names an older run; the process that owns it writes the row again


class Proof(Struct, frozen=True, kw_only=True):
    """The result of a pass. `began_at`: everything that was committed before is in it. `read_since`: all histories of
    runs that are open since then were read and folded after it; None: that round is not over yet."""

    began_at: Micros
    ended_at: Micros
    counts: dict[str, ResumeCounts]
    stranded: list[StrandedRun]
    read_since: Micros | None = None

    def of(self, namespace: str) -> ResumeCounts:
        return self.counts.get(namespace, ResumeCounts())

    def stranded_in(self, namespace: str) -> list[StrandedRun]:
        return [one for one in self.stranded if one.namespace == namespace]

    def without_source(self, namespace: str) -> int:
        """Stranded runs that a repair can help: their history is whole, and something that it expects is missing."""
        return self.of(namespace).stranded - sum(one.damage is not None for one in self.stranded_in(namespace))


class Certificate:
    """`active` False: passes run on request only."""

    def __init__(
        self,
        engine: Engine,
        projector: Projector,
        damaged: DamagedRuns,
        lifecycle: EngineHooks,
        *,
        active: bool = True,
    ) -> None:
        self._engine = engine
        self._projector = projector
        self._damaged = damaged
        self._active = active
        self.proof: Proof | None = None
        self._reading_from = 0  # the last instance whose history was read in this round
        self._round_began: Micros = 0
        self._read_since: Micros | None = None
        self._not_before = 0  # in ticks: no history is read until then
        self._job = PeriodicJob(engine.world, "certificate", self.follow, lambda: engine.active)
        lifecycle.on_up.append(self.start)

    def start(self) -> None:
        if self._active and self._engine.active:
            self._job.start(EVERY)

    async def follow(self) -> None:
        """Prove it in turn, or read the proof of another process."""
        engine = self._engine
        if engine.owns_all:
            await self.prove()
            return
        told = await self._read()
        if told is not None and (self.proof is None or told.began_at > self.proof.began_at):
            self.proof = told
            for one in told.stranded:
                if (one.damage is not None or one.drifted) and engine.owns(one.workflow):
                    await self._damaged.check(one.workflow)  # its state in the memory of this process must be dropped
        if engine.owned[0] or told is None or engine.world.now() - told.began_at > LATE:
            await self._tell(await self.prove())

    async def _read(self) -> Proof | None:
        found = [entry.body for entry in await self._engine.store.kept(KIND) if entry.body is not None]
        return None if not found else msgspec.json.decode(found[0], type=Proof)

    async def _tell(self, proof: Proof) -> None:
        written = self._engine.world.future()

        def done(error: Unavailable | None) -> None:
            if not written.done():
                written.set_exception(error) if error is not None else written.set_result(None)

        body = msgspec.json.encode(replace(proof, stranded=proof.stranded[:TOLD]))
        self._engine.store.keep(RegistryEntry(KIND, "", "", body, counted=False), done)
        await written

    def stop(self) -> None:
        self._job.stop()

    async def prove(self) -> Proof:
        """Look at all open runs now."""
        store, world = self._engine.store, self._engine.world
        await self._read_some()
        began = world.now()
        counts: dict[str, ResumeCounts] = {}
        suspects: list[int] = []
        after: int | None = 0
        while after is not None:
            page = await store.resume_sources(after, PAGE)
            for namespace, counted in page.counts.items():
                before = counts.get(namespace, ResumeCounts())
                counts[namespace] = ResumeCounts(*(one + other for one, other in zip(before, counted, strict=True)))
            suspects += [place.workflow for place in page.stranded]
            after = page.after
        suspects += sorted(self._damaged.known.keys() - set(suspects))
        found = [await self._look_again(workflow) for workflow in suspects[:NAMED]]
        stranded = [one for one in found if one is not None]
        if len(suspects) <= NAMED:
            counts = _recounted(counts, stranded)
        proof = self.proof = Proof(
            began_at=began, ended_at=world.now(), counts=counts, stranded=stranded, read_since=self._read_since
        )
        return proof

    async def _look_again(self, workflow: int) -> StrandedRun | None:
        """Whether the run of this instance is stranded still, and why."""
        again = await self._engine.store.resume_sources(workflow - 1, 1)
        place = next((one for one in again.stranded if one.workflow == workflow), None)
        if place is None and workflow not in self._damaged.known:
            return None
        damage = await self._damaged.check(workflow)
        if place is not None and not (damage is None and place.resumable):
            why = None if damage is None else damage.why
            return StrandedRun(namespace=place.namespace, workflow_id=place.workflow_id, workflow=workflow, damage=why)
        if place is not None and workflow in self._damaged.drifted and not self._engine.owns(workflow):
            return StrandedRun(
                namespace=place.namespace, workflow_id=place.workflow_id, workflow=workflow, drifted=True
            )
        if damage is not None and damage.workflow_id is not None:  # views are not stored, so nothing marks it
            return StrandedRun(
                namespace=next(iter(again.counts)), workflow_id=damage.workflow_id, workflow=workflow, damage=damage.why
            )
        self._projector.note(workflow)  # its history was restored: its summary takes the place of the mark
        return None

    async def _read_some(self) -> None:
        """Read and fold the histories of some open runs, from where the last pass has stopped. Damaged ones are marked."""
        world = self._engine.world
        began = world.ticks()
        if began < self._not_before:
            return
        await self._read_until(began + READING)
        took = world.ticks() - began
        self._not_before = began + PATIENT * took if took > 2 * READING else 0

    async def _read_until(self, end: Micros) -> None:
        world, store = self._engine.world, self._engine.store
        if not self._reading_from:
            self._round_began = world.now()
        while True:
            page, after = await store.open_instances(self._reading_from, READ_PAGE)
            for workflow in page:
                await self._damaged.check(workflow)
                self._reading_from = workflow
                await turn(world)
                if world.ticks() >= end:
                    return
            self._reading_from = after or 0
            if after is None:
                self._read_since = self._round_began
                return


def _recounted(counts: dict[str, ResumeCounts], stranded: list[StrandedRun]) -> dict[str, ResumeCounts]:
    """The counts with the result of the second look. Something resumes a run that was mended, most often a task."""
    found: dict[str, ResumeCounts] = {}
    for namespace, counted in counts.items():
        more = sum(one.namespace == namespace for one in stranded) - counted.stranded
        taken: dict[str, int] = {}
        for source in ("task", "wake", "answer", "outside"):
            part = min(more, getattr(counted, source))
            taken[source] = getattr(counted, source) - part
            more -= part
        found[namespace] = counted._replace(**taken)
    return found


class StrandedAnswer(Struct, frozen=True, kw_only=True):
    workflow_id: str
    reason: str
    action: str
    damage: str | None


class ResumeSourceCounts(Struct, frozen=True, kw_only=True):
    task: int
    wake: int
    answer_of_another_instance: int
    message_from_outside: int


class CertificateAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    status: str
    open_runs: int
    stranded: int
    resume_sources: ResumeSourceCounts
    stranded_runs: list[StrandedAnswer]
    histories_read_since: str | None
    proven_at: str
    took_ms: int
    age_ms: int
    sentence: str


def shown_proof(proof: Proof, namespace: str, now: Micros) -> CertificateAnswer:
    """A certificate as people read it."""
    counts = proof.of(namespace)
    named = proof.stranded_in(namespace)
    return CertificateAnswer(
        namespace=namespace,
        status="ok" if not counts.stranded else "stranded",
        open_runs=counts.open,
        stranded=counts.stranded,
        resume_sources=ResumeSourceCounts(
            task=counts.task,
            wake=counts.wake,
            answer_of_another_instance=counts.answer,
            message_from_outside=counts.outside,
        ),
        stranded_runs=[
            StrandedAnswer(
                workflow_id=one.workflow_id,
                reason=_reason(one),
                action=f"POST /api/workflows/{one.workflow_id}/repair"
                if one.damage is None
                else "restore the run from a backup",
                damage=one.damage,
            )
            for one in named
        ],
        histories_read_since=None if proof.read_since is None else iso(proof.read_since),
        proven_at=iso(proof.began_at),
        took_ms=(proof.ended_at - proof.began_at) // 1000,
        age_ms=max(0, now - proof.began_at) // 1000,
        sentence=_sentence(counts.open, counts.stranded, max(0, now - proof.began_at) // 1_000_000),
    )


def _reason(one: StrandedRun) -> str:
    if one.damage is not None:
        return "history_damaged"
    return "row_names_an_older_run" if one.drifted else "no_durable_resume_source"


def _sentence(opened: int, stranded: int, age: int) -> str:
    runs = "1 open run" if opened == 1 else f"{opened:,} open runs"
    return f"{runs}, {stranded:,} stranded, proven {age} s ago"
