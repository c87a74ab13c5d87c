"""The liveness certificate: a proof, with its age, that every open run has something on disk that will resume it.

A pass reads all instances, a page at a time, and counts open runs by what resumes them: a task (a worker, or a repair, owns it), a
wake (a deadline), the answer of another instance, or a message from outside. A run with none of these, or with other task rows than
its last decision left, is *stranded*. It is looked at once more at the end of the pass, since the sweep may have mended it
meanwhile, and then named.

Of several processes at a database one makes the passes: the owner of the first shard. It keeps what it has found in the registry,
where the others read it. If that process makes none, another one does.
"""

from __future__ import annotations

from typing import TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.engine import Engine
from backstay.engine.lifecycle import EngineHooks
from backstay.engine.periodic import PeriodicJob
from backstay.kernel.spans import iso
from backstay.kernel.values import SECOND, Micros
from backstay.store import RegistryEntry, Unavailable
from backstay.store.views import ResumeCounts

EVERY = 20 * SECOND
PAGE = 5000
LATE = 3 * EVERY  # without a proof, and then any process makes one
NAMED = 1000  # stranded runs that are named; the others are counted
TOLD = 100  # of them, those that other processes are told by name
KIND = "certificate"


class StrandedRun(Struct, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    workflow: int


class Proof(Struct, frozen=True, kw_only=True):
    """What a pass has found. `began_at`: everything that was committed before is in it."""

    began_at: Micros
    ended_at: Micros
    counts: dict[str, ResumeCounts]
    stranded: list[StrandedRun]

    def of(self, namespace: str) -> ResumeCounts:
        return self.counts.get(namespace, ResumeCounts())

    def stranded_in(self, namespace: str) -> list[StrandedRun]:
        return [one for one in self.stranded if one.namespace == namespace]


class Certificate:
    """`active` False: there is no pass by itself, only when somebody asks for it."""

    def __init__(self, engine: Engine, lifecycle: EngineHooks, *, active: bool = True) -> None:
        self._engine = engine
        self._active = active
        self.proof: Proof | None = None
        self._job = PeriodicJob(engine.world, "certificate", self.follow, lambda: engine.active)
        lifecycle.on_up.append(self.start)

    def start(self) -> None:
        if self._active and self._engine.active:
            self._job.start(EVERY)

    async def follow(self) -> None:
        """Prove it in turn, or read what another process has proven."""
        engine = self._engine
        if engine.owns_all:
            await self.prove()
            return
        told = await self._read()
        if told is not None and (self.proof is None or told.began_at > self.proof.began_at):
            self.proof = told
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
        began = world.now()
        counts: dict[str, ResumeCounts] = {}
        suspects: list[int] = []
        after: int | None = 0
        while after is not None:
            page = await store.resume_sources(after, PAGE)
            for namespace, counted in page.counts.items():
                before = counts.get(namespace, ResumeCounts())
                counts[namespace] = ResumeCounts(*(one + other for one, other in zip(before, counted, strict=True)))
            suspects += [workflow for workflow, _, _ in page.stranded]
            after = page.after
        stranded: list[StrandedRun] = []
        for workflow in suspects[:NAMED]:
            again = await store.resume_sources(workflow - 1, 1)
            for key, namespace, workflow_id in again.stranded:
                if key == workflow:
                    stranded.append(StrandedRun(namespace=namespace, workflow_id=workflow_id, workflow=key))
        if len(suspects) <= NAMED:
            counts = _mended(counts, stranded)
        proof = self.proof = Proof(began_at=began, ended_at=world.now(), counts=counts, stranded=stranded)
        return proof


def _mended(counts: dict[str, ResumeCounts], stranded: list[StrandedRun]) -> dict[str, ResumeCounts]:
    """The counts with runs that were mended during the pass: something resumes them now, most often a task."""
    found: dict[str, ResumeCounts] = {}
    for namespace, counted in counts.items():
        still = sum(one.namespace == namespace for one in stranded)
        found[namespace] = counted._replace(task=counted.task + counted.stranded - still)
    return found


class StrandedAnswer(TypedDict):
    workflow_id: str
    reason: str
    action: str


class ResumeSourceCounts(TypedDict):
    task: int
    wake: int
    answer_of_another_instance: int
    message_from_outside: int


class CertificateAnswer(TypedDict):
    namespace: str
    status: str
    open_runs: int
    stranded: int
    resume_sources: ResumeSourceCounts
    stranded_runs: list[StrandedAnswer]
    proven_at: str
    took_ms: int
    age_ms: int
    sentence: str


def shown_proof(proof: Proof, namespace: str, now: Micros) -> CertificateAnswer:
    """A certificate as people read it."""
    counts = proof.of(namespace)
    named = proof.stranded_in(namespace)
    return {
        "namespace": namespace,
        "status": "ok" if not counts.stranded else "stranded",
        "open_runs": counts.open,
        "stranded": counts.stranded,
        "resume_sources": {
            "task": counts.task,
            "wake": counts.wake,
            "answer_of_another_instance": counts.answer,
            "message_from_outside": counts.outside,
        },
        "stranded_runs": [
            {
                "workflow_id": one.workflow_id,
                "reason": "no_durable_resume_source",
                "action": f"POST /api/workflows/{one.workflow_id}/repair",
            }
            for one in named
        ],
        "proven_at": iso(proof.began_at),
        "took_ms": (proof.ended_at - proof.began_at) // 1000,
        "age_ms": max(0, now - proof.began_at) // 1000,
        "sentence": _sentence(counts.open, counts.stranded, max(0, now - proof.began_at) // 1_000_000),
    }


def _sentence(opened: int, stranded: int, age: int) -> str:
    runs = "1 open run" if opened == 1 else f"{opened:,} open runs"
    return f"{runs}, {stranded:,} stranded, proven {age} s ago"
