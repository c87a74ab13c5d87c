"""Who owns what, on the simulated disk: a row for every process that writes, one for every shard, and the verbs that change them.

All verbs are atomic, as a statement is that locks the row of its process first and rows of shards then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from backstay.kernel.decision import Decision
from backstay.kernel.values import KEY_BITS, KEY_EPOCH, Micros
from backstay.store import as_ready
from backstay.store.errors import Deposed, Forgotten, Unavailable
from backstay.store.forgetting import lost_commits, moved, went_back
from backstay.store.ownership import SHARDS, SILENT, NodeFacts, NodeRow, Ownership, ShardRow

if TYPE_CHECKING:
    from .disk import Disk, Seam


log = logging.getLogger("backstay.store")


class WriterRow:
    """A process that writes. `facts` None: it has not said anything about itself, so it is no node."""

    def __init__(self, id: int, heard: Micros) -> None:
        self.id = id
        self.fenced = False
        self.clock: Micros = 0  # no key that it has committed is later
        self.heard = heard  # by the clock of the database
        self.session = True  # whether the session in which it writes is there
        self.facts: NodeFacts | None = None
        self.committed = 0  # its last batch

    def copy(self) -> dict[str, Any]:
        return dict(vars(self))


class StoredShard:
    def __init__(self) -> None:
        self.owner: int | None = None
        self.term = 0
        self.clock: Micros = 0  # no key of an earlier owner is later

    def seen(self) -> ShardRow:
        return ShardRow(self.owner, self.term, self.clock)


class OwnershipRows:
    """The tables. `clock` is the database's. `evidence` says what a look finds out about a session; None: nobody knows."""

    def __init__(self, shards: int = SHARDS) -> None:
        self.clock: Callable[[], Micros] = lambda: 0
        self.evidence: Callable[[WriterRow], bool | None] = lambda row: row.session
        self.writers: dict[int, WriterRow] = {}
        self.shards = [StoredShard() for _ in range(shards)]
        self.fences = 0  # so far
        self._ids = 0

    def enrol(self) -> WriterRow:
        self._ids += 1
        row = self.writers[self._ids] = WriterRow(self._ids, self.clock())
        return row

    def resign(self, row: WriterRow) -> None:
        """Its process closes the database. Who has left shards behind is found dead by the others."""
        row.session = False
        if not self.of(row.id):
            self.writers.pop(row.id, None)

    def retire(self, id: int) -> None:
        """A process frees what an earlier row of it owns."""
        row = self.writers.pop(id, None)
        for shard in self.of(id):
            self.give(shard, None, 0 if row is None else row.clock)

    def saved(self) -> Any:
        """As it is now, for `restore`."""
        writers = {id: (row, row.copy()) for id, row in self.writers.items()}
        return writers, [dict(vars(shard)) for shard in self.shards]

    def restore(self, saved: Any) -> None:
        """As it was, for processes that live on. None of their sessions is there any more."""
        writers, shards = saved
        self.writers = {}
        for id, (row, values) in writers.items():
            vars(row).update(values, session=False)
            self.writers[id] = row
        for shard, values in zip(self.shards, shards, strict=True):
            vars(shard).update(values)

    def owner(self, shard: int) -> WriterRow | None:
        """Who owns a shard; None: it is free."""
        row = self.writers.get(self.shards[shard].owner or 0)
        return None if row is None or row.fenced else row

    def of(self, writer: int) -> list[int]:
        return [number for number, shard in enumerate(self.shards) if shard.owner == writer]

    def give(self, shard: int, to: int | None, clock: Micros) -> None:
        row = self.shards[shard]
        row.owner = to
        row.term += 1
        row.clock = max(row.clock, clock)

    def silent(self, row: WriterRow) -> Micros:
        """Who was heard in the future was heard before the clock was set back, and not since."""
        return abs(self.clock() - row.heard)

    def is_dead(self, row: WriterRow, gone: bool) -> bool:
        return self.silent(row) >= SILENT or (gone and self.evidence(row) is False)

    def fence(self, row: WriterRow) -> None:
        row.fenced = True
        self.fences += 1
        for shard in self.of(row.id):
            self.give(shard, None, row.clock)


class OwnershipStore:
    """One process's handle on these rows."""

    disk: Disk
    _seam: Seam
    _down: bool
    exclusive = False

    def enrol(self) -> None:
        self.shards = len(self.disk.ownership.shards)
        self.owned = bytearray(self.shards)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.row = self.disk.ownership.enrol()
        self._confirmed = 0  # the last batch that this process was told of
        self._cut = False  # its session has ended unheard: the next one finds out how this process stands
        self._forgot: Forgotten | None = None
        self._known: Sequence[ShardRow] = ()  # what its last look has found

    @property
    def me(self) -> int:
        return self.row.id

    def reconnect(self) -> Unavailable | None:
        """Who was fenced begins again as another, and so does one whose commits are gone, as soon as that is known; who was not
        is who it was."""
        before, known = self.row.id, self._forgot is not None
        try:
            self._stand()
        except Forgotten as error:
            if not known:
                return error
            self._begin_anew()
            self.disk.ownership.retire(before)
        except Deposed:
            self._begin_anew()
        self.row.session = True
        return None

    def _writes(self) -> None:
        """Before anything is written: there is a session, and if it is a new one, its process may go on."""
        if self._forgot is not None:
            raise self._forgot
        if self._down:
            raise Unavailable("the connection is lost")
        if self._cut:
            self._stand()
            self.row.session = True

    def _stand(self) -> None:
        """As PostgreSQL's writer does when it begins a session."""
        if self._forgot is not None:
            raise self._forgot
        rows = self.disk.ownership
        row = rows.writers.get(self.row.id)
        how = lost_commits(self._confirmed, None if row is None else row.committed, owns=any(self.owned))
        if how is not None:
            raise self.forgotten(how)
        if self.row.fenced or (row is None and (rows.of(self.row.id) or any(self.owned))):
            raise Deposed("this process was taken for dead")
        if row is None:
            self.row.committed = self._confirmed = 0
            rows.writers[self.row.id] = self.row
        self._cut = False

    def forgotten(self, how: str) -> Forgotten:
        if self._forgot is None:
            self._forgot = Forgotten(f"the database has lost commits that it had confirmed ({how})")
            log.error("%s", self._forgot)
        return self._forgot

    def heard(self, decisions: Sequence[Decision]) -> None:
        """A batch shows that its process is alive, and how far its clock is."""
        row = self.row
        row.heard = self.disk.ownership.clock()
        row.committed = self._confirmed = row.committed + 1
        for decision in decisions:
            minted = [run.key for is_new, run in decision.runs if is_new] + [send.key for send in decision.sends]
            row.clock = max([row.clock, *((key >> KEY_BITS) + KEY_EPOCH for key in minted)])

    def deposed(self) -> Unavailable | None:
        try:
            self._writes()
        except Unavailable as error:
            return error
        return Deposed("this process was taken for dead") if self.row.fenced else None

    def _may_write(self) -> bool:
        """Whether a statement of this process changes anything: its row is there, and is not fenced."""
        try:
            self._writes()
        except Deposed:
            return False
        return not self.row.fenced

    @as_ready
    def look(self) -> Ownership:
        self._seam.read(self)
        rows = self.disk.ownership
        owners = {shard.owner for shard in rows.shards}
        nodes = [
            NodeRow(row.id, row.facts or NodeFacts(), rows.silent(row), rows.evidence(row))
            for row in rows.writers.values()
            if not row.fenced and (row.facts is not None or row.id in owners)
        ]
        shards = [shard.seen() for shard in rows.shards]
        if went_back(self._known, shards):
            raise self.forgotten("shards have owners whom they had before")
        self._known = shards
        found = Ownership(self.row.id, shards, nodes, registry=self.disk.registry_version)
        return self._seam.looked(self, found)

    @as_ready
    def mark(self, facts: NodeFacts, now: Micros) -> bool:
        if not self._may_write():
            if self._forgot is not None:
                raise self._forgot
            return False
        row = self.row
        row.facts, row.heard, row.clock = facts, self.disk.ownership.clock(), max(row.clock, now)
        return True

    @as_ready
    def claim(self, shards: Sequence[int]) -> dict[int, ShardRow]:
        rows = self.disk.ownership
        if not self._may_write():
            return {}
        free = [shard for shard in shards if rows.owner(shard) is None]
        for shard in free:
            rows.give(shard, self.row.id, 0)
        claimed = {shard: rows.shards[shard].seen() for shard in free}
        self._known = moved(self._known, claimed)
        return claimed

    @as_ready
    def depose(self, node: int, *, gone: bool = False) -> bool:
        rows = self.disk.ownership
        row = rows.writers.get(node)
        if not self._may_write() or row is None or row.fenced or not rows.is_dead(row, gone):
            return False
        rows.fence(row)
        self._seam.deposed(self, row)
        return True

    @as_ready
    def hand_over(self, shards: Sequence[int], to: int | None, now: Micros) -> list[int]:
        if not self._may_write():
            return []
        self._seam.hands_over(self)
        rows, row = self.disk.ownership, self.row
        row.clock = max(row.clock, now)
        heir = rows.writers.get(to or 0)
        given = [shard for shard in shards if rows.shards[shard].owner == row.id]
        for shard in given:
            rows.give(shard, None if heir is None or heir.fenced else heir.id, row.clock)
        self._known = moved(self._known, {shard: rows.shards[shard].seen() for shard in given})
        self._seam.handed_over(self, given)
        return given

    @as_ready
    def has_engine(self) -> bool:
        rows = self.disk.ownership
        owners = [rows.owner(shard) for shard in range(len(rows.shards))]
        alive = any(row is not None and not rows.is_dead(row, gone=True) for row in owners)
        return alive or self.disk.holder is not None
