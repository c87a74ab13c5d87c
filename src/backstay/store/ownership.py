"""Ownership: the process that works for each shard of instances.

Instances are spread over shards by their keys. Each shard has at most one owner: the process that keeps its instances
in memory, hands out their tasks, fires their timers and delivers their messages. Any other process may still commit to
any instance under the guard of its row, and leaves a notice for the owner. So ownership decides which process works. It
has no part in correctness.

A file has one owner for all its shards: the process that holds its lock. A server has a row for every shard and one for every
process that writes. A silent process is *deposed*: in one statement its row is fenced, which keeps every batch of
it from being written, and its shards become free.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from backstay.kernel.values import SECOND, Micros

SHARDS = 256
"""A shard is the last bits of a key: `key & (SHARDS - 1)`."""

SILENT: Micros = 15 * SECOND
"""How long a process may be silent before it is declared dead."""

LEVEL = 1
"""The level of this release: it grows when a release writes kinds of events, tasks or messages that earlier ones cannot
read. Processes use them once all of them have that level."""


def bytes_of(shards: Iterable[int]) -> bytes:
    """A byte for every shard: 1 for these, 0 for all others."""
    chosen = bytearray(SHARDS)
    for shard in shards:
        chosen[shard] = 1
    return bytes(chosen)


class NodeFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts that a process publishes about itself."""

    weight: int = 1
    """Its share of all shards, in proportion to the weights of the others; 0: it owns none."""
    address: str | None = None
    """Where other nodes reach it; None: they do not."""
    name: str = ""
    """For people: its machine and its process id."""
    version: str = ""
    draining: bool = False
    executes: bool = False
    """It runs tasks itself: it is a worker that is in no registry."""
    code: str = ""
    """A digest of the workflows that it runs itself."""
    embedded: bool = False
    """It is part of an application: workers of other processes have no link to it."""
    speaks: tuple[int, int] = (1, 1)
    """The first and the last version of the protocol between nodes that it understands."""
    level: int = 1
    """The level that it can read: see `LEVEL`. This default, as that of `speaks`, is the value of a row without it."""
    joining: bool = False
    """It has just begun, and may still find rows that it cannot read."""


class NodeRow(NamedTuple):
    """A process that writes to the database, as its row says. `silent`: since when it was not heard, by the database's clock.

    `session` False: the session in which it writes is gone, so it is dead or reconnecting. None: unknown.
    """

    id: int
    facts: NodeFacts
    silent: Micros
    session: bool | None

    @property
    def is_alive(self) -> bool:
        return self.silent < SILENT and self.session is not False


class ShardRow(NamedTuple):
    """The owner of a shard; None: it is free. `term` grows with every change of the owner.

    `clock`: the latest time by the clock of an earlier owner. Keys that are minted for the shard must be later.
    """

    owner: int | None
    term: int
    clock: Micros = 0


class Ownership(NamedTuple):
    """The result of a read of the rows. `me` is the row of this process; fenced rows are left out of `nodes`. `shards`
    is the same object as before while no row has changed.

    `commits`: how much each other process has committed; `registry`: as `Store.registry_version`; `clock`: as `Store.clock`.
    None: the store does not return it with the owners; call `changed`, or these.
    """

    me: int
    shards: Sequence[ShardRow]
    nodes: Sequence[NodeRow]
    commits: Sequence[int] | None = None
    registry: int | None = None
    clock: Micros | None = None


class OwnershipStore(Protocol):
    shards: int
    """How many shards there are: a power of two."""

    owned: bytearray
    """1 for every shard that this process owns, as far as it knows. The engine changes it. A batch leaves notices for instances
    of the others."""

    @property
    def me(self) -> int:
        """The row of this process. It has another one after it was deposed."""
        ...

    def look(self) -> Awaitable[Ownership]:
        """Read the owners and the living processes."""
        ...

    def mark(self, facts: NodeFacts, now: Micros) -> Awaitable[bool]:
        """Write the facts of this process, its sign of life, and its clock. False: it was deposed."""
        ...

    def claim(self, shards: Sequence[int]) -> Awaitable[dict[int, ShardRow]]:
        """Become the owner of those of these shards that are free: without an owner, or with one that is fenced or has no row.

        Returns their rows.
        """
        ...

    def depose(self, node: int, *, gone: bool = False) -> Awaitable[bool]:
        """Fence a process that is dead, and free its shards; False if it is alive after all, or was fenced already.

        Dead: silent for `SILENT`; or, with `gone`, its session is still gone. It is judged after a batch that is under way.
        """
        ...

    def hand_over(self, shards: Sequence[int], to: int | None, now: Micros) -> Awaitable[list[int]]:
        """Give shards of this process to another, or free them; also free them if that process is fenced or has no row.

        Returns those that were given. The caller owns them no more when it calls this.
        """
        ...
