"""The one write path: a batch of decisions, one statement, which is its own transaction. One round trip, one commit.

Guards that do not match leave out their instance alone. A batch with a decision that cannot be written is written again one
by one, so that only the culprit suffers. If the connection is lost before the answer is here, the batch is committed or
not, and nobody guesses: a fresh session fences the old one off (a later arrival finds another number than it expects, and
writes nothing) and reads which it was. Only what is known not to be there is written again.

The session that writes also holds the engine's lock. When it is gone, so is the lock, and so is every way to commit with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from secrets import randbits
from typing import TypeVar

from backstay.kernel.decision import Decision
from backstay.store import ALL, Applied, Entry, StoreError, Unavailable
from backstay.store.postgresql.columns import Columns
from backstay.store.postgresql.connection import LOCK, Address, closed, writing
from backstay.store.postgresql.driver import Connection, is_conflict, is_culprit, is_lost, unavailable

log = logging.getLogger("backstay.store")

T = TypeVar("T")

LOOKING = 3.0  # seconds to find out what became of a batch before callers are told that we do not know
PAUSE = 0.1
CONFLICTS = 5  # how often two writers may get into each other's way before that counts as trouble


class Fenced(Exception):
    """The number of the batch was not the one expected: nothing was written."""


class Writer:
    def __init__(self, place: Address, sql: dict[str, str]) -> None:
        self._place = place
        self._sql = sql
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()  # a session does one thing at a time
        self._enrolled = False
        self._closed = False
        self._down: Unavailable | None = None
        self._batch = 0
        self._term = 0
        self.id = randbits(62)
        self.holder = False

    # -- batches

    async def apply(self, decisions: Sequence[Decision]) -> Applied:
        async with self._lock:
            try:
                if self._down is not None:
                    raise self._down
                await self._session()
                return await self._whole(decisions)
            except Exception as error:
                down = error if isinstance(error, Unavailable) else unavailable(self._place.shown, error)
                self._give_up(down)
                return Applied(down=down)

    async def _whole(self, decisions: Sequence[Decision]) -> Applied:
        if not decisions:
            return ALL
        try:
            columns = Columns(decisions)
            passed = await self._write(columns)
        except StoreError:
            raise
        except Exception:
            return await self._one_by_one(decisions, range(len(decisions)))
        if len(passed) == len(columns.asked):
            return ALL
        # Of a chain that failed its guard, an end may still fit: that shows one by one.
        return await self._one_by_one(
            decisions, [at for at, decision in enumerate(decisions) if decision.workflow.key not in passed]
        )

    async def _one_by_one(self, decisions: Sequence[Decision], positions: Sequence[int]) -> Applied:
        stale: set[int] = set()
        failed: dict[int, Exception] = {}
        for position in positions:
            try:
                if not await self._write(Columns((decisions[position],))):
                    stale.add(position)
            except StoreError:
                raise
            except Exception as error:
                failed[position] = error
        return Applied(frozenset(stale), failed)

    async def _write(self, columns: Columns) -> set[int]:
        """Write and commit; the instances that passed their guard. Raises `Unavailable`, or what is wrong with the rows."""
        conflicts = 0
        while True:
            connection = await self._session()
            batch = self._batch + 1
            try:
                passed = await self._send(connection, batch, columns)
                self._batch = batch
                return passed
            except Fenced:
                self._enrolled = False  # our row was tidied away; with a new one it goes through
            except Exception as error:
                if is_lost(error):
                    found = await self._look(batch, columns, error)
                    if found is not None:
                        return found
                elif is_conflict(error) and conflicts < CONFLICTS:
                    conflicts += 1
                elif is_culprit(error):
                    raise
                else:
                    raise unavailable(self._place.shown, error) from error

    async def _send(self, connection: Connection, batch: int, columns: Columns) -> set[int]:
        ((marked, passed),) = await connection.fetch(
            self._sql["write"], self.id, batch, self._batch, not self.holder, len(columns.asked), *columns.arrays
        )
        if not marked:
            raise Fenced
        return set(passed or ())

    # -- what became of it

    async def _look(self, batch: int, columns: Columns, lost: Exception) -> set[int] | None:
        """Who passed in a batch whose answer was lost; None if it was not committed, and never will be."""
        log.warning("%s: the connection was lost in the middle of a commit (%s)", self._place.shown, lost)
        self._drop()
        deadline = asyncio.get_running_loop().time() + LOOKING
        while True:
            try:
                return await self._became(batch, columns)
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise unavailable(
                        self._place.shown,
                        ConnectionError(
                            f"the connection was lost in the middle of a commit ({lost}); whether it came through shows"
                            " when the database is back"
                        ),
                    ) from lost
            await asyncio.sleep(PAUSE)

    async def _became(self, batch: int, columns: Columns) -> set[int] | None:
        connection = await writing(self._place)
        try:
            before = await self._fence(connection)
            left_out = await connection.fetch(self._sql["left_out"], self.id, batch)
            self._connection = connection
            if self.holder:
                await self._lock_again(connection)
        except BaseException as error:
            connection.terminate()
            self._connection = None
            if isinstance(error, Exception) and not isinstance(error, StoreError):
                raise unavailable(self._place.shown, error) from error
            raise
        if before != batch:
            return None
        return set(columns.asked).difference(left_out[0][0] if left_out else ())

    async def _fence(self, connection: Connection) -> int | None:
        """Shut out whatever an earlier session of ours may still be doing; the last batch that was committed.

        If one is being committed right now, this waits for it.
        """
        self._batch += 2
        found = await connection.fetch(self._sql["fence"], self.id, self._batch)
        if found:
            return found[0][0]
        self._enrolled = False  # it has never been there, or was tidied away: enrolling begins again from here
        return None

    async def _lock_again(self, connection: Connection) -> None:
        """The lock went with the session before. Going on is right only if nobody has been the engine since."""
        locked = (await connection.fetch(self._sql["lock"], LOCK))[0][0]
        if not locked or (await connection.fetch(self._sql["term"]))[0][0] != self._term:
            self.holder = False
            self._down = Unavailable(
                f"{self._place.shown}: another process became the engine when the connection was lost"
            )

    # -- sessions

    async def _session(self) -> Connection:
        if self._closed:
            raise closed(self._place)
        if self._down is not None:
            raise self._down
        connection = self._connection
        try:
            if connection is None or connection.is_closed():
                connection = self._connection = await writing(self._place)
                self._enrolled = False
                if self.holder:
                    await self._lock_again(connection)
                    if self._down is not None:
                        raise self._down
            if not self._enrolled:
                await connection.execute(self._sql["enrol"], self.id)
                await self._fence(connection)
                self._enrolled = True
        except StoreError:
            raise
        except Exception as error:
            raise unavailable(self._place.shown, error) from error
        return connection

    async def probe(self) -> None:
        """One real commit in a fresh session: the only proof that the database works again."""
        async with self._lock:
            if self._closed:
                raise closed(self._place)
            self._drop()
            self.holder = False
            self._down = None
            self._enrolled = False
            await self._session()

    async def do(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Something small beside the batches, in the session that writes."""
        async with self._lock:
            try:
                return await work(await self._session())
            except StoreError:
                raise
            except Exception as error:
                raise unavailable(self._place.shown, error) from error

    async def keep(self, entry: Entry) -> None:
        kind, namespace, name, body = entry
        if body is None:
            await self.do(lambda session: session.execute(self._sql["forget"], kind, namespace, name))
        else:
            await self.do(lambda session: session.execute(self._sql["keep"], kind, namespace, name, body))

    async def prune(self, workflow: int, run: int) -> bool:
        """One run in one transaction; with the last run of an instance goes the instance."""

        async def remove(session: Connection) -> bool:
            async with session.transaction():
                current = await session.fetch(self._sql["current"], workflow, run)
                if current and current[0][0]:
                    return False
                if current:
                    for name in ("forget_instance", "forget_commands", "forget_tasks"):
                        await session.execute(self._sql[name], workflow)
                for name in ("forget_events", "forget_run"):
                    await session.execute(self._sql[name], run)
            return True

        return await self.do(remove)

    async def acquire(self) -> bool:
        if self.holder:
            return True

        async def lock(session: Connection) -> bool:
            got: bool = (await session.fetch(self._sql["lock"], LOCK))[0][0]
            if got:
                self._term = (await session.fetch(self._sql["begin_term"]))[0][0]
                await session.execute(self._sql["tidy"], self.id)
                self.holder = True
            return got

        return await self.do(lock)

    async def check(self) -> None:
        """An engine whose session is gone has to know: it has the lock again when this returns, or this raises."""
        if self.holder and not self._lock.locked() and (self._connection is None or self._connection.is_closed()):
            await self.do(_nothing)

    async def notices(self) -> list[int]:
        """Told once; a second time if we do not learn that they are gone."""

        async def take(session: Connection) -> list[int]:
            found = await session.fetch(self._sql["notices"])
            if found:
                await session.execute(self._sql["forget_notices"], [key for key, _ in found])
            return [workflow for _, workflow in found]

        return list(dict.fromkeys(await self.do(take)))

    async def close(self, seconds: float) -> None:
        self._closed = True
        with suppress(Exception):  # in good order if the server answers, and in any case
            async with asyncio.timeout(seconds), self._lock:
                if self._connection is not None:
                    if self.holder:
                        await self._connection.execute(self._sql["unlock"], LOCK)
                    await self._connection.execute(self._sql["resign"], self.id)
                    await self._connection.close(timeout=seconds)
        self._drop()
        self.holder = False

    def _give_up(self, error: Unavailable) -> None:
        """Until a probe succeeds, nothing is written: the engine has dropped what it was about to build on."""
        if not self._closed:
            self._down = error
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


async def _nothing(_: Connection) -> None:
    """What has to be done is done by asking for a session."""
