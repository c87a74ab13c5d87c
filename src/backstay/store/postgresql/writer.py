"""The one write path: a batch of decisions, one statement, which is its own transaction. One round trip, one commit.

A guard that does not match leaves out its instance alone. A batch with a decision that cannot be written is written again
one by one, so that only the one at fault fails.

Fencing. If the connection is lost before the answer arrives, the batch may be committed, may not be, or may still be on
its way to the server. Writing it again could write it twice; reporting an error for a batch that was committed would
make the engine decide again on rows that are already there. So every handle has a row in the table `writer` with the
number of its last batch, and `write` commits only if that number is the one it expects. After a lost connection a fresh
session first raises the number (`fence`). That waits for the row's lock, so a commit that is under way ends first; and
a batch that arrives later finds another number and writes nothing. Then the old number says whether the batch was
committed, and `left_out` says which of its guards failed. Only a batch that is known not to be there is written again.
If the reply of the fence is lost as well, the fence is repeated with the next number (`batch += 2`), which keeps the
reply right. Shown by `test_an_answer_that_is_lost_twice_is_looked_up_right` and its neighbours in
`tests/store/test_postgresql.py`.

Deposing. Another process that declares this one dead fences the row for good (`nodes.py`): it moves the number far away
and marks the row. A handle never raises the number of such a row again. It only reads in it whether its last batch was
committed, then says `Deposed`, and its next probe begins under a new id. A handle that lost its connection and is not
fenced continues under its id and keeps its shards.

The session that writes holds two locks by name. One is shared by all processes that own shards: an engine of an earlier
version, and a copier, take it for themselves alone. If one has it after a lost connection, this process is deposed. The
other is on the id of the handle, so that others see whether the session is there; nothing depends on it but how soon a
dead process is replaced. With a pooler in transaction mode no session is ours. Then the guards and numbers of rows keep
everything right, as always. Whether another process must be alone is checked when shards are claimed and with each sign
of life.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from secrets import randbits
from typing import TypeVar

from backstay.kernel.decision import Decision
from backstay.store import ALL, Applied, Located, RegistryEntry
from backstay.store.errors import Deposed, Forgotten, StoreError, Unavailable
from backstay.store.forgetting import lost_commits
from backstay.store.ownership import SILENT
from backstay.store.postgresql.columns import Columns
from backstay.store.postgresql.connection import LOCK, Address, closed, writing
from backstay.store.postgresql.driver import (
    DriverConnection,
    is_conflict,
    is_culprit,
    is_lost,
    is_misuse,
    is_taken_key,
    unavailable,
)
from backstay.store.postgresql.positions import Positions
from backstay.store.postgresql.shapes import Shapes
from backstay.store.rows import guarded_keep

log = logging.getLogger("backstay.store")

T = TypeVar("T")

LOOKING = 3.0  # seconds to find out whether a batch was committed before callers get an error
PAUSE = 0.1
CONFLICTS = 5  # deadlocks and serialization failures of one batch before it fails


class Fenced(Exception):
    """The number of the batch was not the one expected: nothing was written."""


class PostgresqlWriter:
    """`owned`: 1 for every shard of this process. `evidence`: its session shows that it is there."""

    def __init__(self, database: Address, sql: dict[str, str], owned: bytearray, *, evidence: bool) -> None:
        self._place = database
        self._owned = owned
        self.evidence = evidence
        self._sql = sql
        self.shapes = Shapes(sql["write"])
        self.positions = Positions()
        self.connection: DriverConnection | None = None
        self._lock = asyncio.Lock()  # a session does one thing at a time
        self._enrolled = False  # in this session
        self._known = False  # a row under this id was written
        self._sharing = False  # this process is one of those that own shards, or was
        # With a pooler no session belongs to this process alone, so the check is repeated.
        self._shared_lock = "lock_for_a_moment" if database.pooled else "lock_shared"
        self._closed = False
        self.down: Unavailable | None = None
        self.batch = 0
        self._committed = 0  # the last batch that is known to be
        self._term = 0
        self.id = randbits(62)
        self.holder = False

    # -- batches

    async def apply(self, decisions: Sequence[Decision]) -> Applied:
        async with self._lock:
            try:
                if self.down is not None:
                    raise self.down
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
            columns = Columns(decisions, self.positions.mint)
            passed = await self._write(columns)
        except StoreError:
            raise
        except Exception:
            return await self._one_by_one(decisions, range(len(decisions)))
        if len(passed) == len(columns.asked):
            return ALL
        # Of several decisions of one instance a later one may still match its guard: write them one by one.
        return await self._one_by_one(
            decisions, [at for at, decision in enumerate(decisions) if decision.instance.key not in passed]
        )

    async def _one_by_one(self, decisions: Sequence[Decision], positions: Sequence[int]) -> Applied:
        stale: set[int] = set()
        failed: dict[int, Exception] = {}
        for position in positions:
            try:
                if not await self._write(Columns((decisions[position],), self.positions.mint)):
                    stale.add(position)
            except StoreError:
                raise
            except Exception as error:
                if is_taken_key(error):
                    stale.add(position)
                else:
                    failed[position] = error
        return Applied(frozenset(stale), failed)

    async def _write(self, columns: Columns) -> set[int]:
        """Write and commit. Returns the instances whose guard matched; raises `Unavailable`, or the error of a row."""
        conflicts = 0
        while True:
            connection = await self._session()
            batch = self.batch + 1
            try:
                passed = await self._send(connection, batch, columns)
                self.batch = self._committed = batch
                return passed
            except Fenced:
                self._enrolled = False  # our row in `writer` was fenced, or deleted as unused
            except Exception as error:
                if is_lost(error):
                    matched = await self._look(batch, columns, error)
                    if matched is not None:
                        return matched
                elif is_conflict(error) and conflicts < CONFLICTS:
                    conflicts += 1
                elif is_culprit(error):
                    raise
                else:
                    raise unavailable(self._place.shown, error) from error

    async def _send(self, connection: DriverConnection, batch: int, columns: Columns) -> set[int]:
        owned, mask = self._owned, len(self._owned) - 1
        workflows = [] if self.holder else [key for key in columns.asked if not owned[key & mask]]
        statement, tables = self.shapes.fitting(columns.tables, bool(workflows))
        notices = (randbits(62), workflows) if workflows else ()
        ((marked, passed),) = await connection.fetch(
            statement, self.id, batch, self.batch, columns.asked, *columns.arrays(tables), *notices, columns.latest
        )
        if not marked:
            raise Fenced
        return set(passed or ())

    # -- after a lost connection

    async def _look(self, batch: int, columns: Columns, lost: Exception) -> set[int] | None:
        """The instances whose guard matched in a batch whose answer was lost; None: it was not and will not be committed."""
        log.warning(
            "%s: connection lost during a commit (%s); looking up whether it was committed", self._place.shown, lost
        )
        self._drop()
        deadline = asyncio.get_running_loop().time() + LOOKING
        while True:
            try:
                return await self.outcome_of(batch, columns)
            except Deposed:
                raise
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise unavailable(
                        self._place.shown,
                        ConnectionError(
                            f"the connection was lost during a commit ({lost}); its outcome is known when the database is"
                            " back"
                        ),
                    ) from lost
            await asyncio.sleep(PAUSE)

    async def outcome_of(self, batch: int, columns: Columns) -> set[int] | None:
        connection = await writing(self._place)
        try:
            before = await self._enrol(connection, batch)
            left_out = await connection.fetch(self._sql["left_out"], self.id, batch)
            self.connection = connection
            await self._lock_again(connection)
        except BaseException as error:
            connection.terminate()
            self.connection = None
            if isinstance(error, Exception) and not isinstance(error, StoreError):
                raise unavailable(self._place.shown, error) from error
            raise
        if before != batch:
            return None
        self._committed = batch
        return set(columns.asked).difference(left_out[0][0] if left_out else ())

    async def _enrol(self, connection: DriverConnection, batch: int | None = None) -> int:
        """Begin to write in this session. Returns the number of the last batch that was committed.

        Keeps an earlier session of this handle from committing, and waits for a commit that is under way. A handle that
        another process has fenced cannot continue; it only reports that `batch` was committed before.
        """
        self._enrolled = False
        if self.evidence:
            await connection.fetch(self._sql["lock_id"], self.id)
        if self._known:
            going_on = await self._fence(connection)
            fenced, committed, owner = False, going_on, False
            if going_on is None:
                ((fenced, committed, owner),) = await connection.fetch(self._sql["standing"], self.id)
                if batch is not None and committed == batch:
                    return committed
            how = lost_commits(self._committed, committed, owns=any(self._owned))
            if how is not None:
                raise self.forgotten(how)
            if going_on is not None:
                return going_on
            if fenced or owner or any(self._owned):
                self.down = Deposed(f"{self._place.shown}: another process declared this one dead")
                raise self.down
        await connection.execute(self._sql["enrol"], self.id)
        self._known = True
        self._committed = 0
        return await self._fence(connection) or 0

    def forgotten(self, how: str) -> Forgotten:
        """Say that the database has lost commits. Nothing is written until a probe has begun anew."""
        if not isinstance(self.down, Forgotten):
            self.down = Forgotten(
                f"{self._place.shown}: the database has lost commits that it had confirmed ({how}). It was restored from a backup,"
                " or failed over to a standby that did not have them. Results that callers got since then may be gone, and"
                " activities since then may run again, with the same idempotency keys"
            )
            log.error("%s. This process drops its memory and continues with the state of the database", self.down)
        return self.down

    async def _fence(self, connection: DriverConnection) -> int | None:
        self.batch += 2
        rows = await connection.fetch(self._sql["fence"], self.id, self.batch, self.evidence)
        if not rows:
            return None  # the row is fenced already, or was deleted as unused
        self._enrolled = True
        return rows[0][0]

    async def _lock_again(self, connection: DriverConnection) -> None:
        """Take locks again after a reconnect. Fails if another process has been the only engine in between."""
        if self._sharing and not (await connection.fetch(self._sql[self._shared_lock], LOCK))[0][0]:
            self.down = Deposed(
                f"{self._place.shown}: an engine of an earlier version took over when the connection was lost"
            )
        if not self.holder:
            return
        locked = (await connection.fetch(self._sql["lock"], LOCK))[0][0]
        if not locked or (await connection.fetch(self._sql["term"]))[0][0] != self._term:
            self.holder = False
            self.down = Unavailable(
                f"{self._place.shown}: another process became the engine when the connection was lost"
            )

    # -- sessions

    async def _session(self) -> DriverConnection:
        if self._closed:
            raise closed(self._place)
        if self.down is not None:
            raise self.down
        connection = self.connection
        try:
            if connection is None or connection.is_closed():
                connection = self.connection = await writing(self._place)
                self._enrolled = False
                await self._lock_again(connection)
                if self.down is not None:
                    raise self.down
            if not self._enrolled:
                await self._enrol(connection)
        except StoreError:
            raise
        except Exception as error:
            raise unavailable(self._place.shown, error) from error
        return connection

    async def probe(self) -> None:
        """Make one real commit in a fresh session: the only proof that the database works again."""
        async with self._lock:
            if self._closed:
                raise closed(self._place)
            self._drop()
            self.holder = False
            before, forgotten = self.id, isinstance(self.down, Forgotten)
            try:
                if not forgotten:
                    self.down = None
                await self._session()
            except Deposed as error:
                if isinstance(error, Forgotten) and not forgotten:
                    raise  # for the next probe to begin anew: that it was so must be known first
                self._begin_anew()
                await self._session()
            if forgotten:
                await self._resign(before)

    async def _resign(self, id: int) -> None:
        """Free what an earlier row of this process owns, as the database now has it."""
        try:
            await (await self._session()).execute(self._sql["resign"], id)
        except StoreError:
            raise
        except Exception as error:
            raise unavailable(self._place.shown, error) from error

    def _begin_anew(self) -> None:
        """As a process that has just begun: nothing that was fenced is ever used again."""
        self._drop()
        self.id = randbits(62)
        self.batch = self._committed = 0
        self._known = self._sharing = False
        self.down = None

    async def enrol_again(self) -> None:
        """Write a row for this handle if it has none any more. Raises if another process has fenced it."""
        self._enrolled = False
        await self.do(_nothing)

    async def share(self, connection: DriverConnection) -> bool:
        """Become one of the processes that own shards; False: an engine of an earlier version is the only one."""
        if self._sharing and not self._place.pooled:
            return True
        known, self._sharing = self._sharing, (await connection.fetch(self._sql[self._shared_lock], LOCK))[0][0]
        if self._sharing and not known:
            await connection.execute(self._sql["tidy"], self.id)
        return self._sharing

    async def still_shares(self) -> None:
        """Raise if a process works alone. Where the lock is held, none can."""
        if self._sharing and self._place.pooled:
            await self.do(self._lock_again)
            if self.down is not None:
                raise self.down

    async def do(self, work: Callable[[DriverConnection], Awaitable[T]]) -> T:
        """Run a small statement in the session that writes, between two batches."""
        async with self._lock:
            try:
                return await work(await self._session())
            except StoreError:
                raise
            except Exception as error:
                if is_misuse(error):
                    raise
                raise unavailable(self._place.shown, error) from error

    async def keep(self, entries: Sequence[RegistryEntry]) -> None:
        gone = [(kind, namespace, name) for kind, namespace, name, body, _ in entries if body is None]
        kept = [entry[:4] for entry in entries if entry.body is not None]

        async def write(session: DriverConnection) -> None:
            async with session.transaction():
                if any(entry.counted for entry in entries):
                    await session.fetch(self._sql["move_registry"])
                await session.executemany(self._sql["forget"], gone)
                await session.executemany(self._sql["keep"], kept)

        await self.do(write)

    async def keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool:
        name, values = guarded_keep(entry, before)

        async def write(session: DriverConnection) -> bool:
            async with session.transaction():
                # First, as `keep` does: so two never wait for each other in a circle.
                if entry.counted:
                    await session.fetch(self._sql["move_registry"])
                return bool(await session.fetch(self._sql[name], *values))

        return await self.do(write)

    async def prune(self, runs: Sequence[Located]) -> frozenset[int]:
        """Remove runs in one statement, and with its last run an instance. Returns the runs that stay."""
        ordered = sorted(runs)  # as a batch does, so that two sessions never wait for each other in a circle
        rows = await self.do(
            lambda session: session.fetch(
                self._sql["prune"], [workflow for workflow, _ in ordered], [run for _, run in ordered]
            )
        )
        return frozenset(run for (run,) in rows)

    async def acquire(self) -> bool:
        if self._place.pooled:
            raise StoreError(
                f"{self._place.shown}: an engine that must be alone needs a session of its own; leave ?pooler=transaction out of the URL,"
                " and connect to the server itself or through a pooler in session mode"
            )
        if self.holder:
            return True

        async def lock(session: DriverConnection) -> bool:
            got: bool = (await session.fetch(self._sql["lock"], LOCK))[0][0]
            if got and (await session.fetch(self._sql["owned_without_session"], SILENT))[0][0]:
                await session.fetch(self._sql["unlock"], LOCK)
                return False
            if got:
                self._term = (await session.fetch(self._sql["begin_term"]))[0][0]
                await session.execute(self._sql["tidy"], self.id)
                self.holder = True
            return got

        return await self.do(lock)

    async def check(self) -> None:
        """Check that an owner still has its session. Reconnects and takes its locks again, or raises."""
        if (
            (self.holder or self._sharing)
            and not self._lock.locked()
            and (self.connection is None or self.connection.is_closed())
        ):
            await self.do(_nothing)

    async def forget_notices(self, keys: Sequence[int]) -> None:
        await self.do(lambda session: session.execute(self._sql["forget_notices"], keys))

    async def close(self, seconds: float) -> None:
        self._closed = True
        with suppress(Exception):  # resign if the server answers; drop the connection in any case
            async with asyncio.timeout(seconds), self._lock:
                if self.connection is not None:
                    if self.holder:
                        await self.connection.execute(self._sql["unlock"], LOCK)
                    await self.connection.execute(self._sql["resign"], self.id)
                    await self.connection.close(timeout=seconds)
        self._drop()
        self.holder = False

    def _give_up(self, error: Unavailable) -> None:
        """Refuse all writes until a probe succeeds: the engine has dropped the state that later batches were decided on."""
        if not self._closed:
            self.down = error
        self._drop()

    def _drop(self) -> None:
        if self.connection is not None:
            self.connection.terminate()
            self.connection = None


async def _nothing(_: DriverConnection) -> None:
    """Do nothing; asking for a session has reconnected it."""
