"""Authentication of nodes: a caller must know the secret of the database, and must have a living row in it.

**Why the secret alone is not enough.** A copy of a database has the same secret and the same rows: for a moment a node
that is started at the copy takes the nodes of the original for its own, and calls them. But its own row is in the copy
only. So a node proves its id, and the called node looks for that id among the rows of its own database. A worker that
got the address of an original node from a node of the copy is refused for the same reason (`knows`).

**Once.** Each proof has a number, and each node remembers which numbers it has had of which caller. Requests overtake each other on
their connections, so it remembers all numbers after the first one that is missing, `AHEAD` at most; then the missing one is given up.
A caller that is not heard for longer than proofs are valid is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from backstay.engine.cluster.node_secrets import NodeSecrets
from backstay.engine.cluster.shards import Shards
from backstay.engine.core.world import World
from backstay.kernel.values import Micros
from backstay.protocol.native.node_proofs import WINDOW, NodeProof, digest_of, is_made_with, read, written
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.nodes")

AHEAD = 4096  # numbers of a caller that are remembered after one that has not come
SERIES = 1000  # nodes that were called, whose requests are counted
SAID = 100  # warnings that are remembered, so that each is logged once


class NotProven(Exception):
    """A request is not from a node of this database. `reason` is stable. `may_be_known`: reading the rows again may
    find the caller."""

    def __init__(self, reason: str, message: str, *, may_be_known: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.may_be_known = may_be_known


class HeardNumbers:
    """The numbers of one series that were heard: all up to `floor`, and some after it."""

    __slots__ = ("above", "at", "floor", "series")

    def __init__(self, series: Micros, at: Micros) -> None:
        self.series = series
        self.at = at  # when the last one was heard
        self.floor = 0
        self.above: set[int] = set()

    def take(self, number: int) -> bool:
        """Whether this number is heard for the first time."""
        if number <= self.floor or number in self.above:
            return False
        if number == self.floor + 1:
            self.floor = number
        else:
            self.above.add(number)
            if len(self.above) > AHEAD:
                self.floor = min(self.above) - 1
        while self.above and self.floor + 1 in self.above:
            self.floor += 1
            self.above.remove(self.floor)
        return True


class NodeProofs:
    """`shards`: of this process, which knows the rows of its database."""

    def __init__(self, world: World, secrets: NodeSecrets, shards: Callable[[], Shards]) -> None:
        self._world = world
        self.secrets = secrets
        self._shards = shards
        self._heard: dict[int, HeardNumbers] = {}  # by caller
        self._series: dict[
            int, tuple[Micros, int]
        ] = {}  # by the node that is called: when its series began, and its last number
        self._latest: Micros = 0  # the latest series
        self._looking: asyncio.Task[None] | None = None
        self._said: set[tuple[str, str]] = set()

    # -- of this node

    async def make(self, to: int, method: str, target: str, body: bytes) -> str:
        """The proof of a request to a node."""
        return self.sign(await self.secrets.ours(), to, method, target, body)

    def sign(self, secret: str, to: int, method: str, target: str, body: bytes) -> str:
        now = self._world.now()
        series, number = self._series.get(to) or self._begin_series(now)
        self._series[to] = series, number + 1
        proof = NodeProof(self._shards().me, series, number + 1, now, digest_of(body))
        return written(proof, secret, str(to), method, target)

    def _begin_series(self, now: Micros) -> tuple[Micros, int]:
        if len(self._series) >= SERIES:
            self._series.clear()
        self._latest = max(now, self._latest + 1)
        return self._latest, 0

    # -- of others

    def check(self, sent: str, to: str, method: str, target: str) -> str:
        """The digest that the body of a proven request must have. Raises `NotProven`."""
        if not self._is_signed(sent, to, method, target):
            raise NotProven(
                "not_a_node",
                "only nodes of this database may send this request, and the proof of the caller is missing or wrong",
            )
        proof = read(sent)
        now = self._world.now()
        if abs(proof.at - now) > WINDOW:
            raise self._refused(
                "proof_expired",
                proof,
                f"node {proof.caller} made this request {(now - proof.at) / 1e6:.0f} seconds ago by the clock of the database; it"
                f" is valid for {WINDOW / 1e6:.0f}. Compare the clocks of the two machines, and look for a sender of replays",
            )
        if not self.knows(proof.caller):
            raise NotProven("unknown_node", self._unknown(proof.caller), may_be_known=True)
        if to == str(self._shards().me) and not self._take(proof, now):
            raise self._refused(
                "proof_used",
                proof,
                f"this request of node {proof.caller} is a replay: it was received before, so it was refused. Its sender can read"
                " the traffic between the nodes; let the nodes advertise https addresses (DW_ADVERTISE)",
            )
        return proof.digest

    def knows(self, node: int) -> bool:
        """Whether a process has a living row in this database, as of the last look."""
        shards = self._shards()
        return node in shards.nodes or node == shards.me

    async def look_again(self) -> None:
        """Look at the rows: a node that has just begun has called before it was seen. Callers share a read, but not one
        that began before their call."""
        before = self._looking
        if before is not None and not before.done():
            await asyncio.shield(before)
        if self._looking is before or self._looking is None:
            self._looking = self._world.spawn(self._look(), "backstay-unknown-node")
        await asyncio.shield(self._looking)

    async def refuse_unknown(self, node: int) -> None:
        """Refuse a message of a process that is not a node of this database. Raises `NotProven`."""
        if not self.knows(node):
            await self.look_again()
        if not self.knows(node):
            raise self._said_once(NotProven("unknown_node", self._unknown(node)), str(node))

    def remember(self, refusal: NotProven) -> None:
        """Log a refusal that a look at the database has confirmed."""
        self._said_once(refusal, str(refusal))

    def _unknown(self, node: int) -> str:
        return (
            f"node {node} knows the secret of this database but is not one of its nodes: it runs on a copy of the database, or was"
            f" declared dead. The request was refused. A node of a copy forgets this node, {self._shards().me}, within seconds; to"
            " copy a database without its nodes, use dw store copy, or empty the table writer of the copy"
        )

    def _is_signed(self, sent: str, to: str, method: str, target: str) -> bool:
        """There is one secret, or a few if several nodes have made the first one at the same moment."""
        for secret in self.secrets.known:
            if is_made_with(secret, sent, to, method, target):
                return True
        if sent:
            self.secrets.look_for_others()
        return False

    def _take(self, proof: NodeProof, now: Micros) -> bool:
        heard = self._heard.get(proof.caller)
        if heard is None or proof.series > heard.series:
            if heard is None:
                self._forget_silent(now)
            heard = self._heard[proof.caller] = HeardNumbers(proof.series, now)
        elif proof.series < heard.series:
            return False
        heard.at = now
        return heard.take(proof.number)

    def _forget_silent(self, now: Micros) -> None:
        """Proofs of these callers are too old by now."""
        for caller in [caller for caller, heard in self._heard.items() if abs(now - heard.at) > 2 * WINDOW]:
            del self._heard[caller]

    def _refused(self, reason: str, proof: NodeProof, message: str) -> NotProven:
        return self._said_once(NotProven(reason, message), str(proof.caller))

    def _said_once(self, refusal: NotProven, what: str) -> NotProven:
        if (refusal.reason, what) not in self._said:
            if len(self._said) >= SAID:
                self._said.clear()
            self._said.add((refusal.reason, what))
            log.error("%s", refusal)
        return refusal

    async def _look(self) -> None:
        with suppress(Unavailable):  # what is not known stays unknown
            await self._shards().check()
