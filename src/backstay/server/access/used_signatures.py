"""The signatures of requests that were made: each is valid once, at all servers of a database, and after a restart, too.

Each is an entry of the registry that only one request can write. The entries are of a kind for each `SPAN` of the times
that were signed, and such a kind is removed as a whole when all of its signatures have expired. A server refuses
signatures that it has seen itself without a read of the database.
"""

from __future__ import annotations

from backstay.engine.core.local_kinds import SIGNATURE
from backstay.engine.core.registry_writes import write
from backstay.engine.core.world import World
from backstay.kernel.values import SECOND
from backstay.server.http.errors import HttpError
from backstay.store import RegistryEntry, Store
from backstay.store.errors import Unavailable

WINDOW = 300  # seconds that the time of a signature may differ from now
SPAN = 600  # seconds of the times whose signatures are kept together
SPANS = 10  # that are remembered; at most three are in use
REMEMBERED = 500_000  # signatures within about two windows, at one server
PAGE = 500  # entries that are removed at a time

KINDS = f"{SIGNATURE}:times"  # the entries of this kind name the others


class UsedSignatures:
    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self._seen: set[bytes] = set()  # signatures of the current window
        self._before: set[bytes] = set()  # of the window before
        self._turn = 0.0
        self._named: set[str] = set()  # kinds whose entry was written

    async def take(self, signature: bytes, time: int) -> None:
        """Refuse a signature that was used before, else mark it as used. `time`: the signed time, in seconds."""
        short = signature[:16]
        self._remember(short, self._world.now() / SECOND)
        try:
            await self._write(short, time)
        except Unavailable:
            self._seen.discard(short)
            raise

    async def _write(self, short: bytes, time: int) -> None:
        span = str(time // SPAN)
        kind = f"{SIGNATURE}:{span}"
        if kind not in self._named:
            await write(self._world, self._store, [RegistryEntry(KINDS, "", span, b"1", counted=False)])
            if len(self._named) >= SPANS:
                self._named.clear()
            self._named.add(kind)
        if not await self._store.keep_if(RegistryEntry(kind, "", short.hex(), b"1", counted=False), None):
            raise used_before()

    def _remember(self, short: bytes, now: float) -> None:
        # A signature is valid for at most two windows: one before its time and one after it.
        if now - self._turn > 2 * WINDOW:
            self._before = self._seen if now - self._turn <= 4 * WINDOW else set()
            self._seen, self._turn = set(), now
        if short in self._seen or short in self._before:
            raise used_before()
        if len(self._seen) >= REMEMBERED:
            raise HttpError(
                429,
                "signature_capacity_exhausted",
                f"{REMEMBERED} signed requests arrived within a few minutes; the server cannot tell further ones from replays",
                retryable=True,
                retry_after_seconds=WINDOW,
            )
        self._seen.add(short)

    async def forget(self) -> None:
        """Remove the signatures that have expired."""
        now = self._world.now() // SECOND
        for entry in await self._store.kept(KINDS):
            if (int(entry.name) + 1) * SPAN + 2 * WINDOW < now:
                await self._remove(f"{SIGNATURE}:{entry.name}")
                await write(self._world, self._store, [entry._replace(body=None, counted=False)])

    async def _remove(self, kind: str) -> None:
        found = await self._store.kept(kind)
        for begin in range(0, len(found), PAGE):
            await write(
                self._world,
                self._store,
                [entry._replace(body=None, counted=False) for entry in found[begin : begin + PAGE]],
            )


def used_before() -> HttpError:
    message = "this signed request was received before; sign each request with a new nonce"
    return HttpError(401, "unauthorized", message)
