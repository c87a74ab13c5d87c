"""The links of all workers: which one each worker has, and what becomes of leases when the engine comes up or goes away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from backstay.engine.world import Alarm
from backstay.protocol.native import worker as wire
from backstay.server.native.worker_link import BATCHES, LOST, WorkerLink

if TYPE_CHECKING:
    from backstay.server.server import Server


class WorkerLinks:
    """Every open link, by worker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._links: dict[tuple[str, str], WorkerLink] = {}
        self._expecting: Alarm | None = None

    def expect(self) -> None:
        """The engine has come up. Workers that live open a link here and say what they hold; what is leased to one that has
        not come in time is for others. Workers of the published package say nothing of the kind: their leases run out."""
        self._agree_with_disk()
        world = self._server.engine.world
        if self._expecting is not None:
            self._expecting.cancel()
        self._expecting = world.at(world.now() + LOST, self._give_up_missing)

    def _agree_with_disk(self) -> None:
        """A commit that reported an error may be on disk. What it leased to the worker of an open link never came there; what
        it ended takes no room there any more."""
        engine = self._server.engine
        for task in engine.leases:
            link = self._links.get((task.routing.namespace, task.owner or ""))
            held = None if link is None else link.station.held.get(task.id)
            if link is not None and (held is None or held.attempt != task.attempt):
                self._server.release(task, begun=False)
        for link in self:
            for task in list(link.station.held.values()):
                if task.state == "leased" and engine.leases.get(link.worker.namespace, task.id) is None:
                    engine.matching.remote_workers.release(task.id)
            engine.dispatcher.serve_worker(link.station)

    def _give_up_missing(self) -> None:
        server = self._server
        if not server.recovery.up or server.draining:
            return
        for task in server.engine.leases:
            key = (task.routing.namespace, task.owner or "")
            worker = server.workers.get(*key)
            if key not in self._links and worker is not None and BATCHES in worker.capabilities:
                server.release(task)

    def __iter__(self) -> Iterator[WorkerLink]:
        return iter(list(self._links.values()))

    def open(self, link: WorkerLink, holding: list[wire.HeldTask]) -> list[str]:
        key = (link.worker.namespace, link.worker.worker_id)
        before = self._links.get(key)
        unheard: frozenset[str] = frozenset()
        if before is not None:
            unheard = frozenset(before.unsent)
            self._replace(before)
        self._links[key] = link
        return link.open(holding, unheard)

    def send_away(self) -> None:
        """This server has no more work to hand out. Its workers keep what they have, and look for another server."""
        for link in self:
            self._replace(link)
        self._links.clear()

    def _replace(self, link: WorkerLink) -> None:
        """The worker says itself what it holds, here or elsewhere, so nothing of it is taken away."""
        for task in list(link.station.held.values()):
            if task.state == "leased":  # what is still on its way to disk comes here, and goes back
                self._server.engine.matching.remote_workers.release(task.id)
        link.close()

    def look_at_rollouts(self) -> None:
        for link in self:
            link.look_at_rollouts()

    def get(self, namespace: str, worker_id: str, id: str) -> WorkerLink | None:
        link = self._links.get((namespace, worker_id))
        return link if link is not None and link.id == id and not link.closed else None

    def close(self, link: WorkerLink) -> None:
        key = (link.worker.namespace, link.worker.worker_id)
        if self._links.get(key) is link:
            del self._links[key]
        link.close()
