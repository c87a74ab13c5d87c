"""Limits of task queues: in one of four seeds a queue, or all of them together, may hand out only so much."""

from __future__ import annotations

from collections import Counter
from random import Random

from msgspec.structs import replace

from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.server.settings import Override, QueueOverride, Settings

from ..programs import AWAY, FAR

MINUTE = 60 * SECOND

ROOM = 5
"""Virtual seconds for which a queue may have room before somebody is served there."""

Place = tuple[str, str]  # kind and queue


class Limits:
    """What a seed allows, and what is out of it, as committed."""

    def __init__(self, seed: int, one_owner: bool) -> None:
        """`one_owner`: what is left of a minute is not looked at again and again there, so more of it is used up."""
        dice = Random(f"{seed}:limits")
        self.any = dice.random() < 0.25
        self._leases: dict[str, dict[str, int]] = {"workflow": {}, "activity": {}}
        self._rates: dict[str, dict[str, int]] = {"workflow": {}, "activity": {}}
        self._together = dict.fromkeys(self._leases, 0)  # leases of all queues
        self._out: dict[Place, set[str]] = {}
        self._begun: Counter[tuple[str, str, int]] = Counter()  # leases by kind, queue and minute
        self._since: dict[str, float] = {}  # when something of this kind was leased or given back last
        if not self.any:
            return
        for kind, leases in self._leases.items():
            for queue in ("default", FAR, AWAY):
                leases[queue] = dice.choice([0, 0, 1, 2, 5])
                self._rates[kind][queue] = dice.choice([0, 2, 3] if one_owner else [0, 0, 0, 3, 10])
            self._together[kind] = dice.choice([0, 0, 1, 3])

    def settings(self, before: Settings) -> Settings:
        if not self.any:
            return before

        def chosen(kind: str, queue: str) -> Override:
            leases, rate = self._leases[kind][queue], self._rates[kind][queue]
            return Override(max_active_leases=leases, max_dispatches_per_minute=rate)

        return replace(
            before,
            task_queue_admission_overrides={
                queue: QueueOverride(workflow_tasks=chosen("workflow", queue), activity_tasks=chosen("activity", queue))
                for queue in ("default", FAR, AWAY)
            },
            workflow_task_max_active_leases_per_namespace=self._together["workflow"],
            activity_task_max_active_leases_per_namespace=self._together["activity"],
        )

    def leased(self, task: Task, now: float) -> None:
        """Another attempt of a task is leased."""
        assert task.leased_at is not None
        kind, queue = task.kind, task.routing.queue
        self._out.setdefault((kind, queue), set()).add(task.id)
        self._begun[kind, queue, task.leased_at // MINUTE] += 1
        self._since[kind] = now

    def another_counts(self) -> None:
        """Another process works alone: it knows who holds leases, and not what was handed out in this minute."""
        self._begun.clear()

    def given_back(self, task_id: str, now: float) -> None:
        for (kind, _), out in self._out.items():
            if task_id in out:
                out.discard(task_id)
                self._since[kind] = now

    def exceeded(self) -> str | None:
        """Of which there are more leases than may be, at once or in a minute."""
        for (kind, queue), out in self._out.items():
            if len(out) > (self._leases[kind].get(queue) or len(out)):
                return f"{len(out)} leases of {kind} tasks of queue {queue}"
        for (kind, queue, _), begun in self._begun.items():
            if begun > (self._rates[kind].get(queue) or begun):
                return f"{begun} {kind} tasks of queue {queue} in a minute"
        for kind, most in self._together.items():
            if self._all(kind) > (most or self._all(kind)):
                return f"{self._all(kind)} leases of {kind} tasks"
        return None

    def explain(self, task: Task, clock: int, now: float) -> bool:
        """Whether a limit is why this task waits: there is no room, or there has been some for a moment only; or nothing
        more was handed out in the last minute because no more may be."""
        kind, queue = task.kind, task.routing.queue
        if not self.any:
            return False
        leases, rate, together = self._leases[kind].get(queue), self._rates[kind].get(queue), self._together[kind]
        full = len(self._out.get((kind, queue), ())) >= leases if leases else False
        if full or (together and self._all(kind) >= together):
            return True
        if (leases or together) and now - self._since.get(kind, now) < ROOM:
            return True
        minute = clock // MINUTE
        spent = [self._begun[kind, queue, one] >= rate for one in (minute, minute - 1)] if rate else []
        return any(spent) or (bool(rate) and task.available_at > clock - 2 * MINUTE)

    def _all(self, kind: str) -> int:
        return sum(len(out) for (its, _), out in self._out.items() if its == kind)
