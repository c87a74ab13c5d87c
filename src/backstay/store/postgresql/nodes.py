"""The owners of the shards of a schema: rows in the tables `shard` and `writer`, and the statements that change them.

Every change locks the row of a process first and rows of shards then. So two changes never deadlock, a process is
deposed only between two of its batches, and a deposed process hands over no shards.

A shard whose row names a process that is fenced, or has no row, is free. So one that was given to a process that died meanwhile is
not lost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from backstay.kernel.values import Micros
from backstay.store.errors import Deposed, Forgotten
from backstay.store.forgetting import moved, went_back
from backstay.store.ownership import SILENT, NodeFacts, NodeRow, Ownership, ShardRow
from backstay.store.postgresql.connection import LOCK
from backstay.store.postgresql.driver import DriverConnection, is_conflict
from backstay.store.postgresql.writer import CONFLICTS, PostgresqlWriter
from backstay.store.reading import Found

T = TypeVar("T")

log = logging.getLogger("backstay.store")


class PostgresqlNodes:
    """`fetch` runs a named query in a reading session."""

    def __init__(self, writer: PostgresqlWriter, sql: dict[str, str], fetch: Callable[..., Awaitable[Found]]) -> None:
        self._writer = writer
        self._sql = sql
        self._fetch = fetch
        # As they were when this was their number, and this process had this row.
        self._shards: Sequence[ShardRow] = ()
        self._number: int = -1
        self._seen_by = 0
        self._alone = False  # whether the last look found no other process
        self._said = False  # that an earlier release is at work

    async def look(self) -> Ownership:
        me = self._writer.id
        known = self._shards if self._seen_by == me else ()
        # A process that is alone needs no evidence of the life of others, which is the expensive part of a look.
        rows = await self._fetch("look", self._writer.evidence and not self._alone, me)
        number, commits, registry, clock = rows[0][4:] if rows else (-1, None, None, None)
        nodes = [NodeRow(id, _facts(facts), silent, session) for id, facts, silent, session, *_ in rows]
        self._alone = all(node.id == me for node in nodes)
        if not rows or number != self._number or self._seen_by != me:
            shards = [ShardRow(*row) for row in await self._fetch("shards")]
            if went_back(known, shards):
                raise self._writer.forgotten("shards have owners whom they had before")
            self._shards, self._number, self._seen_by = shards, number, me
        if not rows or me != self._writer.id:
            return Ownership(self._writer.id, self._shards, nodes, registry=registry, clock=clock)
        return Ownership(me, self._shards, nodes, commits or (), registry, clock)

    async def mark(self, facts: NodeFacts, now: Micros) -> bool:
        body = msgspec.json.encode(facts)
        try:
            await self._writer.still_shares()
            if await self._change("alive", body, now):
                return True
            await self._writer.enrol_again()
        except Forgotten:
            raise
        except Deposed:
            return False
        return bool(await self._change("alive", body, now))

    async def claim(self, shards: Sequence[int]) -> dict[int, ShardRow]:
        async def take(session: DriverConnection) -> list[Sequence[int]]:
            if not await self._writer.share(session):
                self._say_that_another_is_alone()
                return []
            return await session.fetch(self._sql["claim"], self._writer.id, sorted(shards))

        try:
            claimed = {shard: ShardRow(*row) for shard, *row in await self._patiently(take)}
        except Deposed:
            return {}
        self._moved(claimed)
        return claimed

    def _say_that_another_is_alone(self) -> None:
        if not self._said:
            self._said = True
            log.warning(
                "a process of an earlier release, of which one works alone, is at this database; this process serves beside"
                " it, and takes its share of the work when that one has ended"
            )

    async def depose(self, node: int, *, gone: bool) -> bool:
        given = (node, SILENT, gone and self._writer.evidence)
        try:
            return bool(await self._patiently(lambda session: session.fetch(self._sql["depose"], *given)))
        except Deposed:
            return False

    async def hand_over(self, shards: Sequence[int], to: int | None, now: Micros) -> list[int]:
        given: list[int] = sorted(shard for (shard,) in await self._change("hand_over", sorted(shards), to, now))
        if self._shards:
            self._moved({shard: ShardRow(to, self._shards[shard].term + 1) for shard in given})
        return given

    def _moved(self, rows: Mapping[int, ShardRow]) -> None:
        """This process has changed owners. The next look reads them all, to see whether that is still so."""
        self._shards, self._number = moved(self._shards, rows), -1

    async def is_any_alive(self) -> bool:
        return (await self._fetch("has_engine", LOCK, SILENT, self._writer.evidence))[0][0]

    async def _change(self, name: str, *given: object) -> Found:
        try:
            return await self._patiently(lambda session: session.fetch(self._sql[name], self._writer.id, *given))
        except Deposed:
            return ()

    async def _patiently(self, work: Callable[[DriverConnection], Awaitable[T]]) -> T:
        """Run a statement in the session that writes, again if it conflicts with another one."""

        async def tried(session: DriverConnection) -> T:
            for _ in range(CONFLICTS):
                try:
                    return await work(session)
                except Exception as error:
                    if not is_conflict(error):
                        raise
            return await work(session)

        return await self._writer.do(tried)


def _facts(body: bytes | None) -> NodeFacts:
    try:
        return NodeFacts() if body is None else msgspec.json.decode(body, type=NodeFacts)
    except msgspec.DecodeError:
        return NodeFacts()  # of a later version; only its shards count
