"""The secret by which nodes know each other. It is in the database: who can read that is a node, and nobody else.

Each secret is an entry of its own and is never changed, so nodes that make one at the same moment do no harm: every stored
one is accepted.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from secrets import token_urlsafe

import msgspec

from backstay.engine.world import World
from backstay.kernel.values import SECOND
from backstay.protocol.native.node_proofs import proof_for
from backstay.store import RegistryEntry, Store, Unavailable

KIND = "node_secret"
AGAIN = SECOND  # between two looks for secrets that are not known yet


class NodeSecrets:
    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self._known: list[str] = []  # by the names of their entries: the first is ours
        self._looked: int | None = None

    async def load(self) -> None:
        entries = sorted(await self._store.kept(KIND), key=lambda entry: entry.name)
        self._known = [msgspec.json.decode(entry.body, type=str) for entry in entries if entry.body is not None]

    async def ours(self) -> str:
        """The secret that this node proves to know. The first node of a database makes it."""
        if not self._known:
            await self.load()
        if not self._known:
            await self._make()
            await self.load()
        return self._known[0]

    async def database(self) -> str:
        """Tells this database from others, and does not tell the secret."""
        return _digest(await self.ours())

    def is_of(self, database: str) -> bool:
        """Whether a caller means this database."""
        return database in map(_digest, self._known)

    async def _make(self) -> None:
        written = self._world.future()

        def done(error: Unavailable | None) -> None:
            if not written.done():
                written.set_exception(error) if error is not None else written.set_result(None)

        body = msgspec.json.encode(token_urlsafe(32))
        self._store.keep(RegistryEntry(KIND, "", self._world.ids.ulid(), body, counted=False), done)
        await written

    def accepts(self, proof: str, node: str) -> bool:
        """Whether this proves to a node that its caller knows a stored secret. All are compared, in a time that tells nothing.

        One that is not known may have been made a moment ago, so the database is looked at for the next try.
        """
        sent = proof.encode(errors="replace")
        found = [hmac.compare_digest(proof_for(node, known).encode(), sent) for known in self._known]
        if any(found):
            return True
        now = self._world.ticks()
        if proof and (self._looked is None or now - self._looked >= AGAIN):
            self._looked = now
            self._world.spawn(self._look_again(), "backstay-node-secrets")
        return False

    async def _look_again(self) -> None:
        try:
            await self.load()
        except Unavailable:
            self._looked = None


def _digest(secret: str) -> str:
    return sha256(b"database " + secret.encode()).hexdigest()[:32]
