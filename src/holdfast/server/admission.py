"""How much a queue may hand out: leases at once, and dispatches per minute. A full queue throttles and loses nothing."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.engine.engine import Engine
from holdfast.engine.leases import Queue
from holdfast.kernel.values import SECOND, Micros
from holdfast.server.settings import Settings

MINUTE = 60 * SECOND


class Limits(Struct, frozen=True, kw_only=True):
    max_active_leases: int
    max_dispatches_per_minute: int
    source: str


class Admission:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._dispatched: dict[Queue, tuple[int, int]] = {}  # (minute, how many)
        self._alarmed: set[Queue] = set()

    def admits(self, queue: Queue) -> bool:
        return self.refusal(queue) is None

    def refusal(self, queue: Queue) -> str | None:
        """Why nothing is leased from this queue now."""
        limits = self.limits(queue)
        if limits.max_active_leases and self.active(queue) >= limits.max_active_leases:
            return "max_active_leases_per_queue"
        if limits.max_dispatches_per_minute and self.dispatches(queue) >= limits.max_dispatches_per_minute:
            self._come_back(queue)
            return "max_dispatches_per_minute"
        return None

    def dispatched(self, queue: Queue) -> None:
        self._dispatched[queue] = (self._minute, self.dispatches(queue) + 1)

    def active(self, queue: Queue) -> int:
        return self._engine.leases.count(queue) + self._engine.matching.promises(queue)

    def dispatches(self, queue: Queue) -> int:
        minute, count = self._dispatched.get(queue, (0, 0))
        return count if minute == self._minute else 0

    def limits(self, queue: Queue) -> Limits:
        kind = queue[0]
        settings = self._settings
        leases: int = getattr(settings, f"{kind}_task_max_active_leases_per_queue")
        dispatches: int = getattr(settings, f"{kind}_task_max_dispatches_per_minute")
        return Limits(max_active_leases=leases, max_dispatches_per_minute=dispatches, source="settings")

    def view(self, queue: Queue, slots: int) -> dict[str, Any]:
        """For operators: each limit, what is used of it, and whether the queue accepts."""
        limits = self.limits(queue)
        active, dispatches = self.active(queue), self.dispatches(queue)
        refusal = self.refusal(queue)
        if refusal is not None:
            status = "throttled"
        elif not slots:
            status = "no_active_workers"
        else:
            status = "saturated" if active >= slots else "accepting"
        return {
            "status": status,
            "reason": refusal,
            "slots": slots,
            "active_leases": active,
            "max_active_leases_per_queue": limits.max_active_leases or None,
            "remaining_active_leases": _left(limits.max_active_leases, active),
            "dispatches_this_minute": dispatches,
            "max_dispatches_per_minute": limits.max_dispatches_per_minute or None,
            "remaining_dispatches": _left(limits.max_dispatches_per_minute, dispatches),
            "budget_source": limits.source,
        }

    @property
    def _minute(self) -> int:
        return self._engine.world.now() // MINUTE

    def _come_back(self, queue: Queue) -> None:
        """The next minute brings a new budget: whoever is parked is served then."""
        if queue in self._alarmed:
            return
        self._alarmed.add(queue)
        begins: Micros = (self._minute + 1) * MINUTE

        def serve() -> None:
            self._alarmed.discard(queue)
            self._engine.serve_parked(queue)

        self._engine.world.at(begins, serve)


def _left(limit: int, used: int) -> int | None:
    return max(limit - used, 0) if limit else None
