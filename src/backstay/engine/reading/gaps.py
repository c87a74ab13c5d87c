"""Gaps of the fleet: ready tasks that no live worker could take, by queue, kind, type and build."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.kernel.spans import iso
from backstay.kernel.values import Micros
from backstay.kernel.views.facts import Takers
from backstay.store.figures import WaitingGroup

READ = 1000  # tasks of a queue whose connections are looked at, the oldest first


class FleetGap(Struct, frozen=True, kw_only=True):
    """Tasks that wait for a worker that does not exist. `missing`: the queue, the type, the build or the connection that
    no live worker has. Only then `connection` is that of the tasks."""

    kind: str
    queue: str
    type: str
    build: str | None
    missing: str
    count: int
    runs: int
    oldest: Micros
    live_builds: list[str] = []
    connection: str | None = None

    def view(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "task_queue": self.queue,
            "type": self.type,
            "compatibility": self.build,
            "missing": self.missing,
            "live_builds": self.live_builds,
            "connection": self.connection,
            "ready_count": self.count,
            "oldest_ready_at": iso(self.oldest),
        }


async def find_gaps(engine: Engine, namespace: str) -> list[FleetGap]:
    """The gaps of a namespace, the oldest first: waiting tasks are counted on disk, and the engine knows the live
    workers.

    Workers may be alive that only other processes know: then nothing is known here.
    """
    if not engine.knows_workers():
        return []
    found: list[FleetGap] = []
    divided: list[tuple[WaitingGroup, Takers]] = []
    now = engine.world.now()
    for waiting in await engine.store.waiting_tasks(namespace, now):
        takers = engine.matching.takers(waiting.kind, waiting.type, namespace, waiting.queue, waiting.build)
        if takers.is_divided:
            divided.append((waiting, takers))
        if takers.missing is not None:
            found.append(
                FleetGap(
                    kind=waiting.kind,
                    queue=waiting.queue,
                    type=waiting.type,
                    build=waiting.build,
                    missing=takers.missing,
                    count=waiting.tasks,
                    runs=await engine.store.waiting_runs(
                        namespace, waiting.queue, waiting.kind, waiting.type, waiting.build, now
                    ),
                    oldest=waiting.oldest,
                    live_builds=takers.builds,
                )
            )
    for queue in sorted({waiting.queue for waiting, _ in divided}):
        found += await _of_connections(engine, namespace, queue, divided)
    return sorted(found, key=lambda gap: gap.oldest)


async def _of_connections(
    engine: Engine, namespace: str, queue: str, divided: list[tuple[WaitingGroup, Takers]]
) -> list[FleetGap]:
    """The gaps of a queue all of whose workers serve certain connections only. Which connection a task needs is in its body,
    so the oldest tasks are read, up to a bound."""
    groups = {(one.kind, one.type, one.build): takers for one, takers in divided if one.queue == queue}
    found: dict[tuple[str, str, str | None, str | None], FleetGap] = {}
    runs: set[tuple[tuple[str, str, str | None, str | None], int]] = set()
    for task, *_ in await engine.store.waiting_page(namespace, queue, engine.world.now(), None, READ):
        connection, build = task.routing.connection, task.routing.compatibility
        takers = groups.get((task.kind, task.type, build))
        if takers is None or takers.of_connection(connection).missing is None:
            continue
        place = (task.kind, task.type, build, connection)
        gap = found.get(place)
        is_new = (place, task.workflow) not in runs
        runs.add((place, task.workflow))
        if gap is not None:
            found[place] = replace(gap, count=gap.count + 1, runs=gap.runs + is_new)
        else:
            found[place] = FleetGap(
                kind=task.kind,
                queue=queue,
                type=task.type,
                build=build,
                missing="connection",
                count=1,
                runs=1,
                oldest=task.available_at,
                live_builds=takers.builds,
                connection=connection,
            )
    return list(found.values())
