"""The links of a worker: one to every node of the database, around one host and one set of slots.

The first link is opened to the address that the worker was given. The server there names the other nodes, and every reply may
name others: links to new nodes are opened, and links to nodes that are gone are dropped. A database with one server has one link.

A node is called at its own address. Where that does not answer, as from outside of its network, it is called through the address
that the worker was given: the server there hands the request on (`ways`). If that fails too, the worker works for the nodes it
reaches; these take over tasks of the others that wait too long.

**Where a report goes.** To the node that gave the task, which knows the worker's live code and has the instance in
memory. If that node is gone, or says that it stops, its reports go by any other link, and are marked as possibly sent
before: any node can record them. Its tasks are listed to every other node from then on, and the one that owns their
instance takes them over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from backstay.kernel.event import Recorded
from backstay.kernel.message import Refused
from backstay.link.http import Lost, NotHttp, Reply
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import unpack
from backstay.sdk.remote.bounds import Bounds
from backstay.sdk.remote.host import RemoteHost
from backstay.sdk.remote.report_queue import PendingReport
from backstay.sdk.remote.slots import KINDS, NONE, TURN, Share, divide
from backstay.sdk.remote.standstill import Standstill
from backstay.sdk.remote.tasks import FetchHistory
from backstay.sdk.remote.transport import NOT_NOW, PAUSES, Access, said_by
from backstay.sdk.remote.worker_link import ANSWER, ServerLink, Way

log = logging.getLogger("backstay.worker")

CONNECT = 2.0  # seconds to connect to the own address of a node
SOON = 0.002  # seconds after which slots are divided anew, if something waits


class ServerLinks:
    def __init__(
        self,
        access: Access,
        host: Callable[[Callable[[PendingReport], None], FetchHistory], RemoteHost],
        open_request: Callable[[wire.Slots], wire.OpenLink],
        bounds: Bounds,
        total: wire.Slots,
    ) -> None:
        """`host`: makes the host of these links, from the functions that send a report and fetch a history.

        `open_request`: makes the request that opens a link, with these slots. `bounds`: set to the limits of the server whenever a
        link is opened. `total`: the slots of the worker.
        """
        self.access = access
        self.host = host(self.send, self.history)
        self.bounds = bounds
        self.total = total
        self.open_request = open_request
        self.draining = False
        self.standstill = Standstill(asyncio.get_running_loop())
        self._named_by: int | None = None  # the node that has named the others
        self._nodes: dict[int, wire.WorkerNode] = {}
        self.home = ServerLink(self, None)
        self.all: list[ServerLink] = [self.home]
        self.shares: dict[ServerLink, Share] = {self.home: Share()}
        self._lives: dict[ServerLink, asyncio.Task[None]] = {}
        self._failed: asyncio.Future[None] | None = None
        self._lost = 0  # by links that are gone
        self._again: asyncio.TimerHandle | None = None  # divides slots again, while something waits

    # -- life

    async def run(self) -> None:
        """Work until cancelled."""
        self._failed = asyncio.get_running_loop().create_future()
        self.standstill.start()
        try:
            for link in self.all:
                self._begin(link)
            await self._failed
        finally:
            self.standstill.stop()
            lives, self._lives = list(self._lives.values()), {}
            if self._again is not None:
                self._again.cancel()
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)

    def _begin(self, link: ServerLink) -> None:
        life = self._lives[link] = asyncio.get_running_loop().create_task(link.run(), name="backstay-link")
        life.add_done_callback(self._ended)

    def _ended(self, life: asyncio.Task[None]) -> None:
        error = None if life.cancelled() else life.exception()
        if error is not None and self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def drain(self) -> None:
        """Take no more tasks. Running work goes on and is reported."""
        self.draining = True
        await asyncio.gather(*(link.drain() for link in self.all if link.is_open))

    async def close(self) -> None:
        *others, last = sorted(self.all, key=lambda link: link.is_open)
        for link in others:
            if link.is_open:
                await link.close(stays=True)
            else:
                link.discard()
        await last.close()

    @property
    def idle(self) -> bool:
        return all(link.idle for link in self.all)

    @property
    def lost(self) -> int:
        """How many times a link was lost."""
        return self._lost + sum(link.lost for link in self.all)

    # -- nodes

    @property
    def is_shared(self) -> bool:
        """Whether there are several nodes to divide the slots between."""
        return len(self.all) > 1

    def others_open(self, link: ServerLink) -> bool:
        return any(other.is_open for other in self.all if other is not link)

    @property
    def named_by(self) -> int | None:
        """A node of the database that this worker works for: one that is linked, or else the last that has named the others."""
        return next((link.node for link in self.all if link.is_open and link.node is not None), self._named_by)

    def ways(self, link: ServerLink) -> list[Way]:
        """How the node of a link may be called, the best way first."""
        node = link.node
        known = None if node is None else self._nodes.get(node)
        ways: list[Way] = []
        address = None if known is None else known.address
        if len(self._nodes) > 1 and address is not None and is_as_safe(address, self.access.url):
            ways.append(Way(self.access._replace(url=address), node, CONNECT))
        # If there is no link at all, any node that answers there is right: it knows the others.
        ways.append(Way(self.access, node if self.others_open(link) else None))
        if link.way in ways:
            ways.sort(key=lambda way: way != link.way)
        return ways

    def opened(self, link: ServerLink, opened: wire.Opened) -> None:
        """A link was opened, perhaps to another node than the one it was for."""
        self.shares[link].open = True
        before = next((one for one in self.all if one is not link and one.node == opened.node), None)
        if self.is_shared and opened.node != link.node:
            self.host.orphan(link)  # this node did not send its tasks
        link.node = opened.node
        if before is not None and opened.node is not None:
            self._drop(before)  # its server has closed it for this one
        self.nodes_are(opened.nodes, link)

    def nodes_are(self, nodes: list[wire.WorkerNode], told_by: ServerLink) -> None:
        """A node has named all of them: open links to new ones, and drop those to nodes that are gone."""
        self._named_by = told_by.node
        self._nodes = {node.id: node for node in nodes}
        for link in list(self.all):
            if not link.is_open and link.node is not None and link.node not in self._nodes and len(self.all) > 1:
                self._drop(link)
        for node in sorted(self._nodes.keys() - {link.node for link in self.all}):
            if self.draining:
                break
            link = ServerLink(self, node)
            self.all.append(link)
            self.shares[link] = Share()
            log.info("worker %s opens a link to node %d", self.host.executor.owner, node)
            if self._failed is not None:
                self._begin(link)
        self.divide()

    def _drop(self, link: ServerLink) -> None:
        log.info("worker %s has no link to node %s any more", self.host.executor.owner, link.node)
        self.all.remove(link)
        del self.shares[link]
        self._lost += link.lost
        if link is self.home:
            self.home = self.all[0]
        life = self._lives.pop(link, None)
        if life is not None:
            life.cancel()
        link.is_open = False
        link.discard()
        self.relieve(link)

    def relieve(self, link: ServerLink) -> None:
        """Send the reports of a link by other links: its node is gone, or does not answer."""
        if link in self.all and not self.others_open(link):
            return
        self.host.orphan(link)
        for pending in link.take_reports():
            self.host.reports.prepare_resend(pending)
            self._by_another(pending)

    # -- reports and histories

    def send(self, pending: PendingReport) -> None:
        link = pending.link
        if isinstance(link, ServerLink) and link in self.shares:
            link.send(pending)
        else:
            self._by_another(pending)

    def _by_another(self, pending: PendingReport) -> None:
        link = next((link for link in self.all if link.is_open), self.home)
        pending.link = link
        link.send(pending)

    def unanswered(self) -> set[str]:
        """The tasks whose reports have no answer yet."""
        return set[str]().union(*(link.reported_tasks() for link in self.all))

    def held(self, link: ServerLink) -> tuple[list[wire.HeldTask], list[wire.HeldTask], list[wire.HeldTask]]:
        """The tasks that the worker holds: from this link, from links that are gone, and from others."""
        mine: list[wire.HeldTask] = []
        orphans: list[wire.HeldTask] = []
        others: list[wire.HeldTask] = []
        for held in self.host.held_tasks(self.unanswered()):
            of = self.host.link_of(held.task_id)
            (mine if of is link else orphans if of is None else others).append(held)
        return mine, orphans, others

    async def history(self, task_id: str, attempt: int, after: int) -> list[Recorded]:
        """Fetch the events of a task's history after `after`."""
        found: list[Recorded] = []
        while True:
            reply = await self._history_page(task_id, attempt, after)
            part = wire.decode_history(reply.body)
            found += unpack(part.events)
            if not part.more:
                return found
            after = found[-1].sequence

    async def _history_page(self, task_id: str, attempt: int, after: int) -> Reply:
        """Repeat a request for history until it is answered. It only reads, so it may be repeated."""
        pause = PAUSES[0]
        while True:
            link = self.host.link_of(task_id)
            if not isinstance(link, ServerLink) or link not in self.shares:
                link = next((link for link in self.all if link.is_open), self.home)
            owner = self.host.executor.owner
            wanted = wire.HistoryWanted(worker_id=owner, task_id=task_id, attempt=attempt, after=after, station=link.id)
            try:
                reply = await link.post(wire.HISTORY, wire.encode(wanted), ANSWER)
            except (Lost, NotHttp):
                reply = None
            if reply is not None and reply.status == 200:
                return reply
            if reply is not None and reply.status not in (*NOT_NOW, 421):
                said: dict[str, Any] = said_by(reply)
                raise Refused(str(said.get("reason", "unreadable")), str(said.get("message", "no history")))
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSES[1])

    # -- slots

    def slots_for(self, link: ServerLink, way: Way) -> wire.Slots:
        """The slots that a link is opened with: those that no task takes, if it is the only one; else those of its tasks, until
        others have returned some. It may be unknown which node answers, and whether it knows of the link's tasks."""
        alone = not any(share.is_used for other, share in self.shares.items() if other is not link)
        if not alone:
            slots = self.host.count(link)
        elif self.is_shared:
            others = [one for one in (None, *self.all) if one is not link or way.to is None]
            slots = _without(self.total, [self.host.count(one) for one in others])
        else:
            slots = self.total
        self.shares[link].opens(slots)
        return slots

    def lost_link(self, link: ServerLink) -> None:
        """No more tasks come by this link: its slots may be given to other nodes."""
        if link in self.shares:
            self.shares[link].close()
            self.divide()

    def heard(self, link: ServerLink, exchanged: wire.Exchanged) -> None:
        """A node has sent the number of its waiting tasks, its slots, or the list of nodes."""
        if exchanged.nodes is not None:
            self.nodes_are(exchanged.nodes, link)
        share = self.shares.get(link)
        if share is not None and exchanged.slots is not None and exchanged.waiting is not None:
            share.heard(exchanged.turn, exchanged.slots, exchanged.waiting)
            self._divide_soon()

    def divide(self) -> None:
        """Divide the slots anew, if nodes have come or gone, or if tasks wait at one while another has slots that it does not
        need."""
        if not self.is_shared and not any(share.turn or share.given != self.total for share in self.shares.values()):
            return  # the only node has all of them
        loop = asyncio.get_running_loop()
        held = {share: self.host.count(link) for link, share in self.shares.items()}
        other = [share.taken if share.is_used else held[share] for share in self.shares.values() if not share.open]
        other.append(self.host.count(None))
        elsewhere = wire.Slots(
            sum(one.workflow for one in other), sum(one.activity for one in other), sum(one.awaiting for one in other)
        )
        changes = divide(self.total, list(self.shares.values()), held, elsewhere, loop.time())
        for link, share in self.shares.items():
            if share in changes:
                share.give(changes[share])
                link.tell_slots()
        self._plan(TURN)

    def _divide_soon(self) -> None:
        """Divide the slots in a moment: a busy worker gets several such messages."""
        if not all(share.waiting == NONE and share.is_settled for share in self.shares.values()) or self._is_left():
            self._plan(SOON)

    def _is_left(self) -> bool:
        """Whether some slots are with no node."""
        taken = [share.taken for share in self.shares.values()]
        return any(getattr(self.total, kind) > sum(getattr(one, kind) for one in taken) for kind in KINDS)

    def _plan(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._again is not None and self._again.when() > due:
            self._again.cancel()
            self._again = None
        waits = seconds != TURN or any(share.waiting != NONE for share in self.shares.values() if share.open)
        if self._again is None and waits:
            self._again = loop.call_later(seconds, self._divide_again)

    def _divide_again(self) -> None:
        self._again = None
        self.divide()


def is_as_safe(address: str, given: str) -> bool:
    """Whether the token may be sent to an address that came from a server and not from the user.

    Not in the clear, if it was not before. Nor to this machine, if the user named another: a server with a proxy on its
    machine may send a loopback address, and the listener there on this machine is not that server.
    """
    try:
        told, known = urlsplit(address), urlsplit(given)
        if told.scheme != "https" and known.scheme != "http":
            return False
        return _is_this_machine(known.hostname) or not _is_this_machine(told.hostname)
    except ValueError:
        return False


def _is_this_machine(host: str | None) -> bool:
    if host is None or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name


def _without(total: wire.Slots, used: list[wire.Slots]) -> wire.Slots:
    return wire.Slots(*(max(getattr(total, kind) - sum(getattr(one, kind) for one in used), 0) for kind in KINDS))
