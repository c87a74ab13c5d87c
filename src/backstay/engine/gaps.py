"""Gaps of the fleet: ready tasks that no live worker could take, by queue, kind, type and build."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.engine.engine import Engine
from backstay.kernel.spans import iso
from backstay.kernel.values import Micros


class FleetGap(Struct, frozen=True, kw_only=True):
    """Tasks that wait for a worker that does not exist. `missing`: what no live worker has: the queue, the type or the build."""

    kind: str
    queue: str
    type: str
    build: str | None
    missing: str
    count: int
    oldest: Micros
    live_builds: list[str] = []

    @property
    def message(self) -> str:
        tasks = f"{self.count} ready {self.kind} task{'' if self.count == 1 else 's'} of {self.type}"
        if self.missing == "queue":
            return f"queue {self.queue!r}: no live worker takes {tasks}; start a worker of that queue"
        if self.missing == "type":
            return (
                f"queue {self.queue!r}: no live worker runs {self.kind} {self.type!r} ({tasks}); register it with a worker"
                " of that queue"
            )
        return f"queue {self.queue!r}: no live worker has build {self.build!r} ({tasks}); start a worker of that build"

    def view(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "task_queue": self.queue,
            "type": self.type,
            "compatibility": self.build,
            "missing": self.missing,
            "live_builds": self.live_builds,
            "ready_count": self.count,
            "oldest_ready_at": iso(self.oldest),
        }


async def find_gaps(engine: Engine, namespace: str) -> list[FleetGap]:
    """The gaps of a namespace, the oldest first: what waits is counted on disk, who lives is known to the engine.

    Workers may be alive that only other processes know: then nothing is known here.
    """
    if not engine.knows_workers():
        return []
    found: list[FleetGap] = []
    for waiting in await engine.store.waiting_tasks(namespace, engine.world.now()):
        takers = engine.matching.takers(waiting.kind, waiting.type, namespace, waiting.queue, waiting.build)
        if takers.missing is not None:
            found.append(
                FleetGap(
                    kind=waiting.kind,
                    queue=waiting.queue,
                    type=waiting.type,
                    build=waiting.build,
                    missing=takers.missing,
                    count=waiting.tasks,
                    oldest=waiting.oldest,
                    live_builds=takers.builds,
                )
            )
    return sorted(found, key=lambda gap: gap.oldest)
