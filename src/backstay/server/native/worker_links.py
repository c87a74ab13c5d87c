"""The links of all workers, and the handling of their leases when the engine comes up or moves to another server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.world import Alarm
from backstay.engine.tasks.workers import Lane
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.native import worker as wire
from backstay.server.native.node_proxy import NodeProxy, nodes_of
from backstay.server.native.worker_link import BATCHES, LOST, UNSEEN, WorkerLink

if TYPE_CHECKING:
    from backstay.server.server import Server


LOOK = SECOND // 4  # how often to look whether other nodes have come or gone


class WorkerLinks:
    """Every open link, by worker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.proxy = NodeProxy(server)
        self._links: dict[tuple[str, str], WorkerLink] = {}
        self._expecting: Alarm | None = None
        self._roll_call: Alarm | None = None
        self._nodes_job = PeriodicJob(server.engine.world, "worker-nodes", self._tell_nodes, lambda: bool(self._links))

    def stop(self) -> None:
        self._nodes_job.stop()
        if self._roll_call is not None:
            self._roll_call.cancel()
        self.proxy.close()

    def expect(self) -> None:
        """Wait for the workers after the engine has come up. Living workers open a link and list the tasks they hold; leases of
        a worker that has not come in time are released. Leases of published workers run out, since those have no links."""
        self._agree_with_disk()
        world = self._server.engine.world
        if self._expecting is not None:
            self._expecting.cancel()
        now = world.now()
        self._expecting = world.at(now + self._patience(), partial(self._give_up_missing, now))
        if not self._server.store.exclusive:
            if self._roll_call is not None:
                self._roll_call.cancel()
            # Not at once: leases of a former owner may be on their way to the worker.
            self._roll_call = world.at(world.now() + UNSEEN, self._call_roll)

    def _call_roll(self) -> None:
        """Request the list of leases from workers with links to several nodes: shards have come here, with their
        leases."""
        for link in self:
            if link.slots.shared:
                link.slots.call_roll()
                link.turn_if_news()

    async def _tell_nodes(self) -> None:
        nodes = nodes_of(self._server)
        for link in self:
            link.slots.nodes_are(nodes)
            link.turn_if_news()

    def on_shared(self) -> None:
        """A worker divides its slots between this node and others: it gets the number of waiting tasks."""
        self._server.engine.matching.lanes.on_wait = self._waits

    def _waits(self, lane: Lane) -> None:
        for link in self:
            link.slots.waits(lane)
            link.turn_if_news()

    def _agree_with_disk(self) -> None:
        """Compare the links with the leases on disk, since a commit that reported an error may be on disk. Leases of it were
        never sent to their workers; tasks that it ended must not count as held."""
        engine = self._server.engine
        for task in engine.leases:
            link = self._links.get((task.routing.namespace, task.owner or ""))
            held = None if link is None else link.station.held.get(task.id)
            if link is not None and not link.slots.shared and (held is None or held.attempt != task.attempt):
                self._server.release(task, begun=False)
        for link in self:
            for task in list(link.station.held.values()):
                known = not engine.owns(task.workflow) or engine.leases.get(link.worker.namespace, task.id) is not None
                if task.state == "leased" and not known:
                    engine.matching.remote_workers.release(task.id)
            engine.dispatcher.serve_worker(link.station)

    def _patience(self) -> Micros:
        """How long workers are waited for. Where nodes cannot call each other, a worker has a link to one of them, and the others
        learn that it lives by its heartbeats: when its exchange ends, and has been written and read."""
        server = self._server
        addresses = [node.facts.address for node in server.node.shards.nodes.values() if not node.facts.embedded]
        if server.store.exclusive or len(addresses) < 2 or None not in addresses:
            return LOST
        return LOST + int(wire.PARKED * SECOND) + 2 * server.workers.heartbeats.every

    def _give_up_missing(self, since: Micros) -> None:
        """Release the leases of workers without a link. A worker that another node has heard `since` may have its link
        there: leases that it does not renew expire."""
        server = self._server
        if not server.recovery.up or server.draining:
            return
        for task in server.engine.leases:
            key = (task.routing.namespace, task.owner or "")
            worker = server.workers.get(*key)
            if key in self._links or worker is None or BATCHES not in worker.capabilities:
                continue
            if server.store.exclusive or server.workers.last_heard(worker) < since:
                server.release(task)
        for worker in server.workers.everybody():
            missing = BATCHES in worker.capabilities and (worker.namespace, worker.worker_id) not in self._links
            if missing and server.workers.last_heard(worker) < since:
                left = server.workers.left(worker.namespace, worker.worker_id)
                server.engine.world.spawn(left, "backstay-worker-left")

    def __iter__(self) -> Iterator[WorkerLink]:
        return iter(list(self._links.values()))

    def open(self, link: WorkerLink, opening: wire.OpenLink) -> list[str]:
        key = (link.worker.namespace, link.worker.worker_id)
        before = self._links.get(key)
        unheard: frozenset[str] = frozenset()
        given: list[Task] = []
        if before is not None:
            unheard = frozenset(before.unsent)
            given = [task for task in before.station.held.values() if task.state == "leased"]
            self._replace(before)
        self._links[key] = link
        if not self._server.store.exclusive:
            self._nodes_job.start(LOOK)
            if link.slots.shared:
                self.on_shared()
        return link.open(opening.holding, unheard, opening.elsewhere, given)

    def send_away(self) -> None:
        """Close all links because another server is the engine. The workers keep their tasks and open links there."""
        for link in self:
            self._replace(link)
        self._links.clear()

    def _replace(self, link: WorkerLink) -> None:
        """Close a link whose worker opens another, here or elsewhere. Its tasks are not released: it lists them there."""
        for task in list(link.station.held.values()):
            if task.state == "leased":  # a lease that is still being written is delivered here, and released then
                self._server.engine.matching.remote_workers.release(task.id)
        link.close()

    def apply_rollouts(self) -> None:
        for link in self:
            link.apply_rollouts()

    def waits(self, namespace: str, worker_id: str) -> bool:
        """Whether an exchange of the worker is parked here."""
        link = self._links.get((namespace, worker_id))
        return link is not None and link.is_parked

    def get(self, namespace: str, worker_id: str, id: str) -> WorkerLink | None:
        link = self._links.get((namespace, worker_id))
        return link if link is not None and link.id == id and not link.closed else None

    def close(self, link: WorkerLink) -> None:
        key = (link.worker.namespace, link.worker.worker_id)
        if self._links.get(key) is link:
            del self._links[key]
            link.held.release_doubted()
        link.close()
