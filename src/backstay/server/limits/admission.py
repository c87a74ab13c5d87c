"""Limits of task queues: leases at once and dispatches per minute, for a queue, its namespace and its budget group.

A full queue delays tasks and loses none. The limits of a queue are looked up in `task_queue_admission_overrides` under
`namespace:queue`, `namespace:*`, `queue` and `*`, in this order, and then in the settings for all queues.

Several processes at one database keep to the limits together: each leases within its shares (`budget_shares.py`). The process of
a file counts alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import Annotated

from msgspec import Meta, Struct

from backstay.engine.core.engine import Engine
from backstay.engine.node import Node
from backstay.engine.tasks.leases import Queue, queue_of
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.facts import ReachedLimit
from backstay.server.limits.budget_shares import MINUTE, BudgetShares, LimitScope
from backstay.server.settings import Override, QueueOverride, Settings
from backstay.store.errors import Unavailable

CHECKED: Micros = SECOND  # how often leases of other processes' instances are looked up


class BudgetAnswer(Struct, frozen=True, kw_only=True):
    """A limit, and how much of it is used."""

    limit: str
    allowed: Annotated[int | None, Meta(description="null: no limit.")]
    used: Annotated[int, Meta(description="By all nodes together, including the unused shares of the others.")]
    remaining: int | None
    share: Annotated[int | None, Meta(description="The share of this node, if several nodes could share the limit.")]
    source: Annotated[str, Meta(description="The setting that it comes from.")]


class AdmissionAnswer(Struct, frozen=True, kw_only=True):
    """The limits of a queue for tasks of one kind, and whether it accepts."""

    status: str
    reason: str | None
    slots: Annotated[int, Meta(description="Tasks that its live workers take at once.")]
    active_leases: int
    max_active_leases_per_queue: int | None
    remaining_active_leases: int | None
    dispatches_this_minute: int
    max_dispatches_per_minute: int | None
    remaining_dispatches: int | None
    budget_group: str | None
    budget_source: str
    budgets: list[BudgetAnswer]


class DispatchBudget(Struct, frozen=True, kw_only=True):
    """One limit: its scope, how much is used, how much is allowed (0: no limit), and the setting it comes from.

    `here`: the use of this process; `used`: the same and what other processes hold; `share`: the share of this process,
    if it shares the limit with others."""

    limit: str
    scope: LimitScope
    allowed: int
    here: int
    used: int
    share: int | None = None
    source: str

    @property
    def full(self) -> bool:
        return bool(self.allowed) and self.used >= self.allowed

    def view(self) -> BudgetAnswer:
        return BudgetAnswer(
            limit=self.limit,
            allowed=self.allowed or None,
            used=self.used,
            remaining=max(self.allowed - self.used, 0) if self.allowed else None,
            share=self.share,
            source=self.source,
        )


class QueueAdmission:
    """The limits of every queue. `engine` returns the engine, which is built after this."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._dispatched: dict[LimitScope, tuple[int, int]] = {}  # (minute, dispatches in it)
        self._promised: dict[Queue, dict[str, None]] = {}  # tasks whose leases are on their way to disk
        self._held_back: set[Queue] = set()  # until the next minute
        self.limited = _limits_anything(settings)
        self._shares: BudgetShares | None = None
        self._node: Node | None = None
        self._abroad: dict[str, Task] = {}  # leases that this process has given, of instances that others own
        self._checked: Micros = 0
        self._outages = 0
        self._unsure = False  # whether a lease of another process's instance was written

    def share_with_others(self, node: Node) -> None:
        """Keep to the limits together with the other processes at the database."""
        self._node = node
        self._shares = BudgetShares(
            node.engine.world,
            node.store,
            me=lambda: node.shards.me,
            nodes=lambda: {row.id for row in node.shards.nodes.values() if row.is_alive},
            used=self._used,
            waiting=self._waiting,
            check=self.check_abroad,
            on_room=self._serve,
        )
        node.lifecycle.on_unavailable.append(self._on_outage)

    async def leave(self) -> None:
        """This process ends: others may use its shares."""
        if self._shares is not None:
            with suppress(Unavailable):  # then they find out that it is gone
                await self._shares.leave()

    def stop(self) -> None:
        if self._shares is not None:
            self._shares.stop()

    async def refresh(self) -> None:
        """Read what other processes hold, before it is shown."""
        if self._shares is not None and self.limited:
            await self._shares.refresh()

    @property
    def node(self) -> int | None:
        return None if self._node is None else self._node.shards.me

    @property
    def shared(self) -> bool:
        return self._shares is not None

    def admits(self, queue: Queue) -> bool:
        """Whether a task of this queue may be leased. False until the engine has read which tasks are leased."""
        shares = self._shares
        if shares is None:
            return self._engine.leases.read and self.refusal(queue) is None
        known = (self._engine.leases.read or not self._engine.holder) and not self._unsure
        having: list[LimitScope] = []
        for budget in self.budgets(queue):
            if budget.allowed:
                if not known or not shares.has_room(budget.scope, budget.here):
                    shares.want(budget.scope, budget.allowed, having)
                    if budget.scope.per_minute:
                        self._come_back(queue)
                    return False
                having.append(budget.scope)
        return True

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
        if self._shares is not None:
            for budget in self.budgets(queue):
                if budget.allowed:
                    self._shares.spends(budget.scope, budget.here)

    def settled(self, task_id: str, queue: Queue) -> None:
        promised = self._promised.get(queue)
        if promised is not None:
            promised.pop(task_id, None)
            if not promised:
                del self._promised[queue]

    def moved(self, leases: Iterable[Task]) -> None:
        """Another process owns these instances. Leases that this process has granted count against its shares until
        they are over."""
        me = self.node
        if me is not None:
            self._abroad.update((task.id, task) for task in leases if task.node == me)

    def relieved(self, queue: Queue) -> Iterable[Queue]:
        """The queues that may lease again after a lease has ended: with a limit of the namespace, all of its queues."""
        kind, namespace, _ = queue
        if not getattr(self._settings, f"{kind}_task_max_active_leases_per_namespace"):
            return (queue,)
        return [place for place in self._engine.matching.lanes.queues() if place[:2] == (kind, namespace)]

    def active(self, queue: Queue) -> int:
        """Tasks that this process has leased, or is about to. A task whose lease is replaced counts once."""
        leases = self._engine.leases
        coming = self._promised.get(queue, ())
        return (
            leases.count(queue, self.node)
            + sum(not leases.has(task_id, self.node) for task_id in coming)
            + self._count_abroad(lambda place: place == queue, coming)
        )

    def _count_abroad(self, wanted: Callable[[Queue], bool], coming: Container[str]) -> int:
        """How many more this process has leased of instances that others own."""
        if not self._abroad:
            return 0
        me, leases = self.node, self._engine.leases
        return sum(
            task.node == me and wanted(queue_of(task)) and not leases.has(task.id, me) and task.id not in coming
            for task in self._abroad.values()
        )

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
        in_namespace = getattr(settings, f"{kind}_task_max_active_leases_per_namespace")
        rate = getattr(settings, f"{kind}_task_max_dispatches_per_minute_per_namespace")
        in_group = settings.task_queue_budget_groups.get(group or "", 0)
        group_source = "settings" if group is None else f"{group_said}, budget group {group!r}"
        return [
            self._budget("max_active_leases_per_queue", LimitScope(False, kind, namespace, name), leases, leases_said),
            self._budget("max_active_leases_per_namespace", LimitScope(False, kind, namespace, None), in_namespace),
            self._budget(
                "max_dispatches_per_minute", LimitScope(True, kind, namespace, name), dispatches, dispatches_said
            ),
            self._budget("max_dispatches_per_minute_per_namespace", LimitScope(True, kind, namespace, None), rate),
            self._budget("max_dispatches_per_minute_of_budget_group", group_of(group or ""), in_group, group_source),
        ]

    def _budget(self, limit: str, scope: LimitScope, allowed: int, source: str = "settings") -> DispatchBudget:
        here = self._used(scope) if allowed or scope.per_minute else 0
        shares = self._shares if allowed else None
        return DispatchBudget(
            limit=limit,
            scope=scope,
            allowed=allowed,
            here=here,
            used=here if shares is None else here + shares.elsewhere(scope),
            share=None if shares is None else shares.amount(scope),
            source=source,
        )

    def _used(self, scope: LimitScope) -> int:
        """The use of this process of a scope."""
        if scope.per_minute:
            return self._count(scope)
        if scope.queue is None:
            return self._active_in(scope.kind, scope.namespace)
        return self.active((scope.kind, scope.namespace, scope.queue))

    def view(self, queue: Queue, slots: int, leased: int | None = None) -> AdmissionAnswer:
        """For operators: each limit, its use, and whether the queue accepts. `leased`: by all processes."""
        budgets = {budget.limit: budget for budget in self.budgets(queue)}
        refusal = self.refusal(queue)
        active = self.active(queue) if leased is None else leased
        if refusal is not None:
            status = "throttled"
        elif not slots:
            status = "no_active_workers"
        else:
            status = "saturated" if active >= slots else "accepting"
        leases, dispatches = budgets["max_active_leases_per_queue"], budgets["max_dispatches_per_minute"]
        return AdmissionAnswer(
            status=status,
            reason=refusal,
            slots=slots,
            active_leases=active,
            max_active_leases_per_queue=leases.allowed or None,
            remaining_active_leases=leases.view().remaining,
            dispatches_this_minute=dispatches.used,
            max_dispatches_per_minute=dispatches.allowed or None,
            remaining_dispatches=dispatches.view().remaining,
            budget_group=self._group(queue)[0],
            budget_source=leases.source,
            budgets=[budget.view() for budget in budgets.values()],
        )

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

    def _scopes(self, queue: Queue) -> Iterable[LimitScope]:
        kind, namespace, name = queue
        yield LimitScope(True, kind, namespace, name)
        yield LimitScope(True, kind, namespace, None)
        group = self._group(queue)[0]
        if group is not None:
            yield group_of(group)

    def _active_in(self, kind: str, namespace: str) -> int:
        if not getattr(self._settings, f"{kind}_task_max_active_leases_per_namespace"):
            return 0
        leases = self._engine.leases
        coming = {task_id for place, ids in self._promised.items() if place[:2] == (kind, namespace) for task_id in ids}
        return (
            leases.count_in(kind, namespace, self.node)
            + sum(not leases.has(task_id, self.node) for task_id in coming)
            + self._count_abroad(lambda place: place[:2] == (kind, namespace), coming)
        )

    # -- together with other processes

    def _waiting(self, scope: LimitScope) -> int:
        """How many tasks wait here for some of a scope."""
        return sum(
            size
            for lane, size in self._engine.matching.lanes.sizes()
            if (scope.kind in ("", lane.kind)) and (not scope.namespace or scope.namespace == lane.namespace)
            if scope.queue in (None, lane.queue) or not scope.namespace
        )

    def _serve(self) -> None:
        """There is room again: serve waiting tasks here, steal for free workers, and notify other nodes of waiting
        tasks."""
        assert self._node is not None
        engine = self._engine
        lanes = engine.matching.lanes
        engine.dispatcher.serve_queues(lanes.queues())
        if not engine.owns_all:
            engine.world.spawn(self._steal(), "backstay-steal")
        if lanes.on_unmatched is not None and lanes.waiting:
            for queue in lanes.queues():
                lanes.on_unmatched(queue)

    async def _steal(self) -> None:
        assert self._node is not None
        with suppress(Unavailable):  # it is done each second anyway
            await self._node.stealing.steal()

    def _on_outage(self) -> None:
        """Leases that were being written may be on disk. Its leases are looked up when the database is back."""
        self._outages += 1
        self._unsure = True

    async def check_abroad(self) -> None:
        """Find ended leases of this process on instances that others own; after an outage, also its current ones."""
        engine = self._engine
        if engine.down is not None:
            raise engine.down
        me, outages, now = self.node, self._outages, engine.world.now()
        self._abroad = {id: task for id, task in self._abroad.items() if task.node == me}
        stolen = [task for task in engine.leases if task.node == me and not engine.owns(task.workflow)]
        known = [*stolen, *self._abroad.values()]
        if not self._unsure and (not known or now - self._checked < CHECKED):
            return
        self._checked = now
        others = [shard for shard, owned in enumerate(engine.owned) if not owned]
        rows = await engine.store.leased(shards=others) if others else ()
        found = {task.id: task for task in rows if task.node == me and task.until is not None}
        for task in known:
            if task.id not in found or found[task.id].attempt != task.attempt:
                engine.leases.ended(task)
                if self._abroad.get(task.id) is task:
                    del self._abroad[task.id]
        for task in found.values():
            if not engine.leases.has(task.id, me):
                self._abroad.setdefault(task.id, task)
        if outages == self._outages and me == self.node:
            self._unsure = False

    # -- counting

    def _count(self, scope: LimitScope) -> int:
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


def group_of(name: str) -> LimitScope:
    """A budget group, which both kinds of tasks share."""
    return LimitScope(True, "", "", name)


def _first(*choices: tuple[int | None, str]) -> tuple[int, str]:
    """The first limit that is set; 0, which is no limit, counts as set."""
    return next((value, said) for value, said in choices if value is not None)


def _limits_anything(settings: Settings) -> bool:
    names = [name for name in Settings.__struct_fields__ if "_task_max_active" in name or "_task_max_dispatch" in name]
    return bool(settings.task_queue_admission_overrides) or any(getattr(settings, name) for name in names)
