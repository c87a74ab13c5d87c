"""Limits of task queues: leases at once and dispatches per minute, for a queue, its namespace and its budget group.

A full queue delays tasks and loses none. The limits of a queue are looked up in `task_queue_admission_overrides` under
`namespace:queue`, `namespace:*`, `queue` and `*`, in this order, and then in the settings for all queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct

from backstay.engine.engine import Engine
from backstay.engine.leases import Queue
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.facts import ReachedLimit
from backstay.server.answers.queues import AdmissionAnswer, BudgetAnswer
from backstay.server.settings import Override, QueueOverride, Settings

MINUTE = 60 * SECOND

Scope = tuple[str, str, str]  # kind, what is counted ("queue", "namespace", "group"), its name


class DispatchBudget(Struct, frozen=True, kw_only=True):
    """One limit: its scope, how much is used, how much is allowed (0: no limit), and the setting it comes from."""

    limit: str
    allowed: int
    used: int
    source: str

    @property
    def full(self) -> bool:
        return bool(self.allowed) and self.used >= self.allowed

    def view(self) -> BudgetAnswer:
        return {
            "limit": self.limit,
            "allowed": self.allowed or None,
            "used": self.used,
            "remaining": max(self.allowed - self.used, 0) if self.allowed else None,
            "source": self.source,
        }


class QueueAdmission:
    """The limits of every queue. `engine` returns the engine, which is built after this."""

    def __init__(self, engine: Callable[[], Engine], settings: Settings) -> None:
        self._engine_of = engine
        self._settings = settings
        self._dispatched: dict[Scope, tuple[int, int]] = {}  # (minute, dispatches in it)
        self._promised: dict[Queue, dict[str, None]] = {}  # tasks whose leases are on their way to disk
        self._held_back: set[Queue] = set()  # until the next minute
        self.limited = _limits_anything(settings)

    @property
    def _engine(self) -> Engine:
        return self._engine_of()

    def admits(self, queue: Queue) -> bool:
        """Whether a task of this queue may be leased. False until the engine has read which tasks are leased."""
        return self._engine.leases.read and self.refusal(queue) is None

    def refusal(self, queue: Queue) -> str | None:
        """The reason why no task of this queue may be leased now, if there is one."""
        full = next((budget for budget in self.budgets(queue) if budget.full), None)
        if full is None:
            return None
        if "per_minute" in full.limit:
            self._come_back(queue)
        return full.limit

    def reached(self, queue: Queue) -> ReachedLimit | None:
        """The limit that holds the tasks of this queue back now, with the workers whose leases use it up."""
        full = next((budget for budget in self.budgets(queue) if budget.full), None)
        if full is None:
            return None
        kind, namespace, name = queue
        wide = "namespace" in full.limit
        holders = Counter(
            task.owner or "a worker"
            for task in self._engine.leases
            if "leases" in full.limit
            and task.kind == kind
            and task.routing.namespace == namespace
            and (wide or task.routing.queue == name)
        )
        return ReachedLimit(
            name=full.limit,
            allowed=full.allowed,
            used=full.used,
            source=full.source,
            holders=[f"{owner} ({count})" for owner, count in holders.most_common()],
        )

    def promised(self, task_id: str, queue: Queue) -> None:
        self._promised.setdefault(queue, {})[task_id] = None
        for scope in self._scopes(queue):
            self._dispatched[scope] = (self._minute, self._count(scope) + 1)

    def settled(self, task_id: str, queue: Queue) -> None:
        promised = self._promised.get(queue)
        if promised is not None:
            promised.pop(task_id, None)
            if not promised:
                del self._promised[queue]

    def relieved(self, queue: Queue) -> Iterable[Queue]:
        """The queues that may lease again after a lease has ended: with a limit of the namespace, all of its queues."""
        kind, namespace, _ = queue
        if not getattr(self._settings, f"{kind}_task_max_active_leases_per_namespace"):
            return (queue,)
        return [place for place in self._engine.matching.lanes.queues() if place[:2] == (kind, namespace)]

    def active(self, queue: Queue) -> int:
        """Tasks that are leased, or whose lease is being written. A task whose lease is replaced counts once."""
        leases = self._engine.leases
        return leases.count(queue) + sum(not leases.has(task_id) for task_id in self._promised.get(queue, ()))

    def budgets(self, queue: Queue) -> list[DispatchBudget]:
        """Every limit of this queue, in the order in which they are checked."""
        kind, namespace, name = queue
        settings = self._settings
        override, said = self._override(queue)
        group, group_said = self._group(queue)
        leases, leases_said = _first(
            (override.max_active_leases, said),
            (getattr(settings, f"{kind}_task_max_active_leases_per_queue"), "settings"),
        )
        dispatches, dispatches_said = _first(
            (override.max_dispatches_per_minute, said),
            (getattr(settings, f"{kind}_task_max_dispatches_per_minute"), "settings"),
        )
        in_group = settings.task_queue_budget_groups.get(group or "", 0)
        return [
            DispatchBudget(
                limit="max_active_leases_per_queue",
                allowed=leases,
                used=self.active(queue) if leases else 0,
                source=leases_said,
            ),
            DispatchBudget(
                limit="max_active_leases_per_namespace",
                allowed=getattr(settings, f"{kind}_task_max_active_leases_per_namespace"),
                used=self._active_in(kind, namespace),
                source="settings",
            ),
            DispatchBudget(
                limit="max_dispatches_per_minute",
                allowed=dispatches,
                used=self._count((kind, "queue", f"{namespace}:{name}")),
                source=dispatches_said,
            ),
            DispatchBudget(
                limit="max_dispatches_per_minute_per_namespace",
                allowed=getattr(settings, f"{kind}_task_max_dispatches_per_minute_per_namespace"),
                used=self._count((kind, "namespace", namespace)),
                source="settings",
            ),
            DispatchBudget(
                limit="max_dispatches_per_minute_of_budget_group",
                allowed=in_group,
                used=0 if group is None else self._count(("", "group", group)),
                source=f"{group_said}, budget group {group!r}" if group is not None else "settings",
            ),
        ]

    def view(self, queue: Queue, slots: int) -> AdmissionAnswer:
        """For operators: each limit, what is used of it, and whether the queue accepts."""
        budgets = {budget.limit: budget for budget in self.budgets(queue)}
        refusal = self.refusal(queue)
        active = self.active(queue)
        if refusal is not None:
            status = "throttled"
        elif not slots:
            status = "no_active_workers"
        else:
            status = "saturated" if active >= slots else "accepting"
        leases, dispatches = budgets["max_active_leases_per_queue"], budgets["max_dispatches_per_minute"]
        return {
            "status": status,
            "reason": refusal,
            "slots": slots,
            "active_leases": active,
            "max_active_leases_per_queue": leases.allowed or None,
            "remaining_active_leases": leases.view()["remaining"],
            "dispatches_this_minute": dispatches.used,
            "max_dispatches_per_minute": dispatches.allowed or None,
            "remaining_dispatches": dispatches.view()["remaining"],
            "budget_group": self._group(queue)[0],
            "budget_source": leases.source,
            "budgets": [budget.view() for budget in budgets.values()],
        }

    # -- inside

    def _named(self, queue: Queue) -> Iterable[tuple[QueueOverride, str]]:
        _, namespace, name = queue
        known = self._settings.task_queue_admission_overrides
        for key in (f"{namespace}:{name}", f"{namespace}:*", name, "*"):
            found = known.get(key)
            if found is not None:
                yield found, key

    def _override(self, queue: Queue) -> tuple[Override, str]:
        for found, key in self._named(queue):
            chosen = found.workflow_tasks if queue[0] == "workflow" else found.activity_tasks
            return chosen or found, f"override {key!r}"
        return Override(), "settings"

    def _group(self, queue: Queue) -> tuple[str | None, str]:
        for found, key in self._named(queue):
            chosen = found.workflow_tasks if queue[0] == "workflow" else found.activity_tasks
            group = (chosen or found).budget_group or found.budget_group
            if group is not None:
                return group, f"override {key!r}"
        return None, "settings"

    def _scopes(self, queue: Queue) -> Iterable[Scope]:
        kind, namespace, name = queue
        yield kind, "queue", f"{namespace}:{name}"
        yield kind, "namespace", namespace
        group = self._group(queue)[0]
        if group is not None:
            yield "", "group", group  # shared by both kinds of tasks

    def _active_in(self, kind: str, namespace: str) -> int:
        if not getattr(self._settings, f"{kind}_task_max_active_leases_per_namespace"):
            return 0
        leases = self._engine.leases
        coming = [task_id for place, ids in self._promised.items() if place[:2] == (kind, namespace) for task_id in ids]
        return leases.count_in(kind, namespace) + sum(not leases.has(task_id) for task_id in coming)

    def _count(self, scope: Scope) -> int:
        minute, count = self._dispatched.get(scope, (0, 0))
        return count if minute == self._minute else 0

    @property
    def _minute(self) -> int:
        return self._engine.world.now() // MINUTE

    def _come_back(self, queue: Queue) -> None:
        """Serve all delayed queues when the next minute begins; all together, since some share a budget."""
        waiting = bool(self._held_back)
        self._held_back.add(queue)
        if waiting:
            return
        begins: Micros = (self._minute + 1) * MINUTE

        def serve() -> None:
            queues, self._held_back = self._held_back, set()
            self._dispatched = {scope: used for scope, used in self._dispatched.items() if used[0] == self._minute}
            self._engine.dispatcher.serve_queues(queues)

        self._engine.world.at(begins, serve)


def _first(*choices: tuple[int | None, str]) -> tuple[int, str]:
    """The first limit that is set; 0, which is no limit, counts as set."""
    return next((value, said) for value, said in choices if value is not None)


def _limits_anything(settings: Settings) -> bool:
    names = [name for name in Settings.__struct_fields__ if "_task_max_active" in name or "_task_max_dispatch" in name]
    return bool(settings.task_queue_admission_overrides) or any(getattr(settings, name) for name in names)
