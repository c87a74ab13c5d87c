"""The laws of the link, beside those of every simulation: what was reported, what is held, what is believed, how often is asked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from backstay.kernel.decision import Decision
from backstay.kernel.event import Recorded
from backstay.kernel.task import Task
from backstay.kernel.values import LEASE, SECOND, attempt_id
from backstay.protocol.native import worker as wire
from backstay.store import Loaded

from ..auditor import Auditor, retried
from .errands import ERRAND, QUEUE
from .programs import KNOWN

if TYPE_CHECKING:
    from .servers import ServerProcess
    from .simulation import LinkSimulation
    from .workers import WorkerProcess

ENDS = ("ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled", "ActivityRetryScheduled")
"""What history says of attempts that are over."""

WINDOW = 10
"""Virtual seconds over which requests are counted."""

IDLE = 100
"""Requests and connections of one worker in such a window that need no reason, for each server that it has a link to."""

REASON = 4
"""Requests and connections that a report is reason enough for."""

LONG_STILL = 10  # seconds: so long a server keeps the activities of a worker that it does not see
FOUND_OUT = 150
"""Virtual seconds after which it is known who is dead: longer than any reply is waited for."""

OVER = 320
"""Virtual seconds after which a lease that nobody renews is over."""

ANSWERED = 400
"""Virtual seconds in calm within which every report has its answer."""

HELD = 900
"""Virtual seconds in calm after which no work of ours is still under way."""


COME_BACK = 9
"""Virtual seconds that workers have at least to come back to an engine that has come up."""


class Reported:
    """A report, from when it was made."""

    def __init__(self, process: WorkerProcess, report: wire.Report, made: float) -> None:
        self.process = process
        self.report = report
        self.made = made

    def __repr__(self) -> str:
        return f"{type(self.report).__name__} of {self.process.name} at {self.made:.3f}: {self.report!r:.200}"


class LinkAuditor(Auditor):
    known = KNOWN
    sim: LinkSimulation

    def __init__(self, sim: LinkSimulation) -> None:
        super().__init__(sim)
        self._unanswered: dict[int, Reported] = {}
        self._requests: Counter[str] = Counter()  # by process, in this window
        self._since = 0.0
        self._number = 0
        self._engine: list[str] | None = None  # the servers that own something
        self._steady = 0.0  # since when they do
        self._leases: dict[tuple[str, int], float] = {}  # task and attempt -> since when they are leased
        self._begun: dict[str, int] = {}  # attempt -> when, by the clock
        self._ended: dict[str, float] = {}  # attempt -> when history said that it is over
        self._last_up = ""  # the server that came up last
        self._heard_from = 0  # since when workers can reach the engine
        self._sent_away: int | None = None  # since when they cannot, because it is about to stop

    # -- reports

    def reports(self, process: WorkerProcess, pending: Any) -> None:
        """A worker reports something: some day it is told what became of it."""
        self.has_reason(process.name, REASON)
        self._number += 1
        number = self._number
        reported = Reported(process, pending.report, self.sim.loop.time())
        if not isinstance(pending.report, wire.Heartbeat):  # of the beats of an attempt only the newest counts
            self._unanswered[number] = reported
        then = pending.answered
        self.sim.log(f"{process.name} reports {reported.report!r:.160}")

        def answered(answer: wire.Answered) -> None:
            self._unanswered.pop(number, None)
            self._answered(reported, answer)
            then(answer)

        pending.answered = answered

    def _answered(self, reported: Reported, answer: wire.Answered) -> None:
        report = reported.report
        name = reported.process.worker_id
        match report:
            case wire.AttemptFailed(gave_up=True):
                self.sim.done("attempt given up")  # no outcome: whoever is there makes another
            case wire.AttemptDone() | wire.AttemptFailed():
                id = attempt_id(report.run_id, report.step, report.attempt)
                if answer.refused is None:
                    self.sim.done("activity reported")
                    self.thanked(id, name)
                else:
                    self.sim.done("activity refused")
                    self.told_over(id, name)
            case wire.TaskDone() | wire.TaskFailed():
                row = next((t for t in self.sim.disk.tasks_of(report.key) if t.id == report.task_id), None)
                spent = row is None or row.state != "leased" or row.attempt != report.attempt
                if answer.refused is None:
                    self.sim.done("task reported")
                    self.must(spent, "what is recorded has spent its lease", (name, report.task_id, report.attempt))
                else:
                    self.sim.done("task refused")
            case wire.Heartbeat():
                self.sim.done("beat" if answer.goes_on and answer.refused is None else "beat too late")
            case _:
                self.sim.done("question answered")

    def all_answered(self) -> None:
        """In calm nobody waits for an answer for long, if there is anybody left to hear it."""
        now = self.sim.loop.time()
        for number, reported in list(self._unanswered.items()):
            if not reported.process.life.alive:
                del self._unanswered[number]
            else:
                law = "every report is recorded, or refused to its maker"
                self.must(now - reported.made < ANSWERED, law, reported)

    # -- timeouts

    def came_up(self, server: str, now: int) -> None:
        """A server has become the engine, or is it again after an outage."""
        self._heard_from, self._sent_away = now, None
        if self.sim.one_owner and server != self._last_up:
            self.sim.limits.another_counts()
        self._last_up = server

    def drains(self, now: int) -> None:
        """The server that is the engine has sent its workers away."""
        self._sent_away = now

    def _timed(self, entry: Recorded) -> None:
        """Whoever is timed out for what was not heard could have been heard."""
        event: Any = entry.event
        if entry.type == "ActivityStarted":
            self._begun[event.activity_attempt_id] = entry.at
            return
        if getattr(event, "timeout_kind", None) not in ("heartbeat", "start_to_close"):
            return
        if self.sim.places > 1:
            return  # who of several owned it at which time is not known here
        law = "nobody is timed out because nobody could hear them"
        begun = self._begun.get(event.activity_attempt_id, 0)
        away = self._sent_away is not None and begun <= self._sent_away < entry.at
        self.must(not away, law, (event, "its worker was sent away", entry.at))
        before = begun < self._heard_from <= entry.at
        back = entry.at - self._heard_from >= COME_BACK * SECOND
        self.must(
            back or not before, law, (event, f"{(entry.at - self._heard_from) / SECOND} s after the engine came up")
        )
        self.sim.done("attempt timed out after a restart" if before else "attempt timed out")

    # -- leases

    def committed(self, decision: Decision) -> None:
        super().committed(decision)
        if self.sim.published is not None:
            self.sim.published.laws.committed(decision)
        now = self.sim.loop.time()
        for entry in decision.events:
            self._timed(entry)
            if entry.type in ENDS:
                self._ended[entry.event.activity_attempt_id or ""] = now  # type: ignore[attr-defined]
        limits = self.sim.limits
        for change in decision.tasks:
            task = change.task
            if task is None or task.state != "leased":
                limits.given_back(change.task_id, now)
                for held in [held for held in self._leases if held[0] == change.task_id]:
                    del self._leases[held]
            elif (task.id, task.attempt) not in self._leases:
                self._leases[task.id, task.attempt] = now
                limits.leased(task, now)
            else:
                if task.routing.queue != QUEUE:
                    self._renewed(task.owner or "", task.id, now)
        exceeded = limits.exceeded()
        self.must(exceeded is None, "no queue has more leases out than its limit", exceeded)

    def minute_has_begun(self, server: ServerProcess) -> None:
        """What could not be handed out in the minute before is handed out in this one, without waiting for anything else."""
        admission, matching = server.app.admission, server.app.engine.matching
        for lane, size in matching.lanes.sizes():
            budgets = [budget for budget in admission.budgets(lane.place) if budget.allowed]
            rates = [budget.here for budget in budgets if budget.scope.per_minute]
            if size and rates and not any(budget.full for budget in budgets) and matching.has_taker(lane):
                self.must(any(rates), "the next minute serves who has waited for it", (server.name, lane, size))

    def held_back(self, task: Task) -> bool:
        return self.sim.limits.explain(task, self.sim.true_time(), self.sim.loop.time())

    def _renewed(self, owner: str, task_id: str, now: float) -> None:
        """A lease is renewed for who is there, or was until a moment ago."""
        died = self.sim.died_at.get(owner)
        there = any(worker.worker_id == owner for worker in self.sim.workers)
        # A server that stood still meanwhile has not heard of it yet.
        alive = there or self._engine is None or (died is not None and now - max(died, self._steady) < FOUND_OUT)
        self.must(alive, "no lease is renewed for work nobody does", (task_id, owner, died))

    def nothing_held(self) -> None:
        """In calm, no task is leased for longer than any of them takes."""
        now = self.sim.loop.time()
        for (task_id, attempt), since in self._leases.items():
            law = "no lease is renewed for work nobody does"
            self.must(now - since < HELD, law, (task_id, attempt, "leased for", now - since))

    def leases_have_a_reason(self) -> None:
        """While there is an engine: what was leased to a worker that is gone, or that knows nothing of it, is offered to
        others long before its lease is over."""
        now = self.sim.loop.time()
        engine = [node.name for node in self.sim.nodes if node.holds]  # type: ignore[attr-defined]
        if not engine or engine != self._engine:
            self._engine, self._steady = engine or None, now
        workers = {worker.worker_id: worker for worker in self.sim.workers}
        for task in self.sim.disk.all_tasks():
            if task.state != "leased" or task.routing.queue == QUEUE:
                continue
            since = max(self._leases.get((task.id, task.attempt), now), self._steady)
            owner = workers.get(task.owner or "")
            if owner is None:
                waits = now - max(self.sim.died_at.get(task.owner or "", 0.0), since)
                law = "what a dead worker held is offered again soon"
                self.must(waits < FOUND_OUT, law, (task.id, task.owner, f"after {waits:.0f} seconds"))
            elif owner.open and not owner.loop.stopped:
                waits = now - max(since, owner.steady)
                # What a proxy has asked for a second time is answered to nobody, and a release that could not be written is not
                # made again: then only the end of the lease helps.
                fired = self.sim.faults.fired
                patience = OVER if fired["request twice"] or fired["statement error"] else FOUND_OUT
                known = waits < patience or owner.holds(task.id)
                self.must(known, "a lease is for who works on it", (task.id, owner.name, f"after {waits:.0f} seconds"))

    def attempts_are_wanted(self) -> None:
        """Whoever works on what is over has been told to stop."""
        now = self.sim.loop.time()
        for worker in self.sim.workers:
            for id, attempt in worker.attempts().items():
                waits = now - max(self._ended.get(id, now), self._steady, worker.steady)
                told = attempt.cancelled or waits < FOUND_OUT
                self.must(told, "whose attempt is over is told so", (worker.name, id, f"after {waits:.0f} seconds"))

    def begins(self, process: WorkerProcess, task: Task) -> None:
        """A worker begins an activity. If it has just stood still for longer than its tasks are kept, it has asked before."""
        if process.stood_still < LONG_STILL or self.sim.loop.time() > process.steady:
            return
        row = next((row for row in self.sim.disk.tasks_of(task.workflow) if row.id == task.id), None)
        own = row is not None and (row.state, row.owner, row.attempt) == ("leased", process.worker_id, task.attempt)
        law = "a process that stood still begins nothing that is not its own"
        self.must(own, law, (process.name, task.id, task.attempt, row))

    # -- slots

    def slots(self, process: WorkerProcess) -> None:
        """S8: of what a worker works on and has leases of, it has slots for all."""
        total = process.worker.links.total
        held = process.held()
        leased: Counter[str] = Counter()
        for task in self.sim.disk.all_tasks():
            if task.state == "leased" and task.owner == process.worker_id and task.id in held:
                attempt, kind = held[task.id]
                leased[kind] += task.attempt == attempt
        for kind, count in leased.items():
            law = "S8 a worker holds at most its slots"
            self.must(count <= getattr(total, kind), law, (process.name, kind, count, total, sorted(held)))
        self.sim.done("slots counted")

    # -- beliefs

    def beliefs(self) -> None:
        """Live code stands somewhere in history: what it has seen is what is recorded."""
        for worker in self.sim.workers:
            for run, standing in worker.standings().items():
                rows = self.sim.disk.events.get(run, [])
                known = len(rows) >= standing.length and rows[standing.length - 1][5] == standing.checksum
                self.must(known, "what a worker believes is in history", (worker.name, run, standing.length, len(rows)))

    def given(self, process: WorkerProcess, lease: wire.TaskLease) -> None:
        """Live code goes on where it stands only if it has decided everything there is: other code may have, elsewhere."""
        if lease.after:
            rest = self.sim.disk.history(self.machine.kinds, lease.run)[lease.after : lease.last]
            others = [entry.sequence for entry in rest if entry.context.decided_after is not None]
            law = "live code has made all decisions of its run"
            self.must(not others, law, (process.name, lease.task_id, lease.after, others))

    # -- code of others

    def replay(self, loaded: Loaded) -> None:
        """The code of an errand is replayed by its own package, for each of its tasks."""
        if loaded.row.workflow_type != ERRAND:
            super().replay(loaded)

    # -- hot loops

    def has_reason(self, name: str, count: int) -> None:
        """So many requests and connections of this process have a reason."""
        self._requests[name] -= count

    def asks(self, name: str) -> None:
        """A request or a connection has a reason: reports that were made, or a fault now and then."""
        now = self.sim.loop.time()
        if now - self._since > WINDOW:
            self._since = now
            self._requests.clear()
        asked = self._requests[name] = self._requests[name] + 1
        law = "nobody asks again and again"
        self.must(
            asked <= IDLE * self.sim.places,
            law,
            (name, f"{asked} requests and connections in {now - self._since:.3f} seconds"),
        )

    def done_once(self) -> None:
        """As long as the wire is only slow, an attempt is followed by another only if it has failed or was too late."""
        if set(self.sim.faults.fired) - self.sim.kinds.harmless:
            return
        for run in self.sim.disk.runs.values():
            begun: Counter[int] = Counter()
            last: dict[int, int] = {}
            for entry in self.sim.disk.history(self.machine.kinds, run.key):
                event: Any = entry.event
                if entry.type == "ActivityStarted" and not event.local_activity:
                    # Who polls and says nothing for so long has lost its lease.
                    spent = run.queue == QUEUE and entry.at - last.get(event.sequence, entry.at) >= LEASE
                    begun[event.sequence] += not spent and self._was_begun(run.queue, event.activity_attempt_id)
                    last[event.sequence] = entry.at
                elif retried(entry):
                    begun[event.sequence] -= 1
            again = [step for step, times in begun.items() if times > 1]
            self.must(not again, "I4 nothing is done again without a reason", (run.workflow_id, again))

    def _was_begun(self, queue: str | None, attempt_id: str) -> bool:
        """Whether a worker has heard of an attempt. One that was fetched too slowly is released, and nobody has."""
        published = self.sim.published
        return queue != QUEUE or published is None or attempt_id in published.laws.begun

    def finish(self) -> None:
        self.all_answered()
        self.beliefs()
        super().finish()
