"""Groups: durable calls that are waited for together. Each leaf of a group is a step of its own.

A leaf that fails wakes the run at once; a leaf that succeeds wakes it only if it was the last of every group around it.
A group may bound how many of its leaves are in flight: the others are scheduled, and dispatched as earlier ones close.

A group may be larger than the limit of open steps of a run. Then its code schedules it in *windows*: a number of leaves
at first, and more whenever half of the window has closed, which also wakes the run.

An outermost group may be a *selection*: its leaves belong to members, and the end of each member wakes the run. The
first member that ends wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Literal, Protocol

from msgspec import Struct

from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.values import Micros


class GroupEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A leaf's place in one group. The fields are those of the contract.

    Ours are `parallel_group_limit`, `parallel_group_window` and `parallel_group_settles`: in a group that settles, a
    failure is a result like any other.
    """

    parallel_group_id: str
    parallel_group_kind: str
    parallel_group_base_sequence: int
    parallel_group_size: int
    parallel_group_index: int
    parallel_group_limit: int | None = None
    parallel_group_window: int | None = None
    parallel_group_settles: bool = False
    parallel_group_mode: Literal["select"] | None = None
    selection_member_key: str | int | None = None
    selection_member_index: int | None = None
    selection_member_base_sequence: int | None = None
    selection_member_size: int | None = None
    selection_member_kind: str | None = None


Path = list[GroupEntry]
"""The groups around a leaf, outermost first."""


def topology(path: Path) -> list[tuple[str, int]]:
    """The part of a path that replay compares: the groups and the places in them, without limits and windows."""
    return [(entry.parallel_group_id, entry.parallel_group_index) for entry in path]


class Leaf(Protocol):
    """The state that a feature keeps for an open leaf."""

    def dispatched(self, run: Run, at: Micros) -> None:
        """The group no longer holds the leaf back: its task may be created from now on."""
        ...


class GroupMember(Struct):
    """One of the calls of a selection. It is over with its first failure, or when all of its leaves have succeeded."""

    size: int
    succeeded: int = 0
    over: bool = False


class Group:
    """How far the leaves of one group are."""

    __slots__ = ("failed", "joined", "limit", "members", "open", "resolved", "size", "succeeded", "window")

    def __init__(self, entry: GroupEntry) -> None:
        # The members of a selection, by their first step.
        self.members: dict[int, GroupMember] | None = None if entry.parallel_group_mode is None else {}
        self.resolved = False
        self.size = entry.parallel_group_size
        self.limit = entry.parallel_group_limit
        self.window = entry.parallel_group_window
        self.joined = 0
        self.open: dict[int, None] = {}  # steps of its leaves, in order
        self.succeeded = 0
        self.failed = False

    @property
    def wants_more(self) -> bool:
        """Whether its code has leaves left to schedule, and room for them."""
        return (
            self.window is not None
            and self.joined < self.size
            and not self.failed
            and len(self.open) <= self.window // 2
        )


class Groups:
    """The part of a run that knows its groups."""

    __slots__ = ("freed", "groups", "leaves", "paths", "silent", "won")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.paths: dict[int, Path] = {}
        self.leaves: dict[int, Leaf] = {}
        self.silent: set[int] = set()  # steps whose close does not wake the run
        self.freed: list[int] = []  # steps that the last close has made room for; the turn dispatches them
        # The member that has just won a selection, and whether it succeeded.
        self.won: tuple[GroupEntry, bool] | None = None

    def clear_effects(self) -> None:
        """Clear transient effects after stored history was folded: they took place when it was recorded."""
        self.freed.clear()
        self.silent.clear()
        self.won = None


def check(path: Sequence[GroupEntry]) -> None:
    for entry in path:
        base, size, index = (
            entry.parallel_group_base_sequence,
            entry.parallel_group_size,
            entry.parallel_group_index,
        )
        bounds = (entry.parallel_group_limit, entry.parallel_group_window)
        if base < 1 or size < 1 or not 0 <= index < size or any(bound is not None and bound < 1 for bound in bounds):
            raise Refused(
                "invalid_commands",
                f"group {entry.parallel_group_id!r}: size, index, limit and window do not fit together",
                field="parallel_group_path",
            )
    for depth, entry in enumerate(path):
        if entry.parallel_group_mode is not None:
            _check_member(entry, depth)


def _check_member(entry: GroupEntry, depth: int) -> None:
    key, base, size = entry.selection_member_key, entry.selection_member_base_sequence, entry.selection_member_size
    first = entry.parallel_group_base_sequence
    if (
        depth > 0
        or key is None
        or key == ""
        or (isinstance(key, int) and key < 0)
        or entry.selection_member_index is None
        or entry.selection_member_kind not in _KINDS
        or base is None
        or size is None
        or not first <= base <= base + size - 1 <= first + entry.parallel_group_size - 1
    ):
        raise Refused(
            "invalid_commands",
            f"selection {entry.parallel_group_id!r}: it must be the outermost group, and name its member by key,"
            " index, base sequence, size and kind",
            field="parallel_group_path",
        )


_KINDS = ("activity", "timer", "child", "condition", "group")


def join(run: Run, step: int, path: Path, leaf: Leaf) -> None:
    """Add a leaf that was scheduled to the groups around it."""
    if not path:
        return
    run.grouped = True
    groups = run.part(Groups)
    groups.paths[step] = path
    groups.leaves[step] = leaf
    for entry in path:
        group = groups.groups.get(entry.parallel_group_id)
        if group is None:
            group = groups.groups[entry.parallel_group_id] = Group(entry)
        elif entry.parallel_group_limit is not None:
            group.limit = min(group.limit or entry.parallel_group_limit, entry.parallel_group_limit)
        if step not in group.open:
            group.open[step] = None
            group.joined += 1
        if group.members is not None:
            group.members.setdefault(
                entry.selection_member_base_sequence or 0, GroupMember(entry.selection_member_size or 1)
            )


def leave(run: Run, step: int, path: Path, ok: bool, at: Micros, *, cancelled: bool = False) -> None:
    """Close a leaf: decide whether that wakes the run, and which leaves that were held back may be dispatched.

    `cancelled`: its code has given it up, so it wins no selection.
    """
    if not path or run.closed_reason is not None:
        return  # after the end of a run nothing is woken or dispatched
    groups = run.part(Groups)
    groups.paths.pop(step, None)
    groups.leaves.pop(step, None)
    complete, first_failure, last, wanted = True, False, True, False
    succeeded: dict[str, bool] = {}
    for entry in reversed(path):  # a failure spreads outwards, up to a group that settles
        succeeded[entry.parallel_group_id] = ok = ok or entry.parallel_group_settles
    # A group that consists of another group alone has the same id: the two are one, with the tighter of their bounds.
    for id in dict.fromkeys(entry.parallel_group_id for entry in path):
        group = groups.groups[id]
        in_flight = group.limit is not None and step in islice(group.open, group.limit)
        group.open.pop(step, None)
        if succeeded[id]:
            group.succeeded += 1
        elif not group.failed:
            group.failed = first_failure = True
        complete = complete and group.succeeded == group.size
        last = last and not group.open
        wanted = wanted or group.wants_more
        if in_flight and group.limit is not None:
            freed = next(islice(group.open, group.limit - 1, None), None)
            if freed is not None and not held_back(run, freed):
                groups.freed.append(freed)
                groups.leaves[freed].dispatched(run, at)
    if path[0].parallel_group_mode is not None:
        wakes_run = _ends_member(groups, path[0], ok, cancelled)
    else:
        wakes_run = complete or first_failure or last or wanted
    if not wakes_run:
        groups.silent.add(step)


def _ends_member(groups: Groups, entry: GroupEntry, ok: bool, cancelled: bool) -> bool:
    """Whether a leaf that closes ends its member of a selection. The first member that ends wins."""
    group = groups.groups[entry.parallel_group_id]
    assert group.members is not None, "a selection has members"
    member = group.members[entry.selection_member_base_sequence or 0]
    if member.over:
        return False
    member.succeeded += ok
    member.over = not ok or member.succeeded == member.size
    if member.over and not cancelled and not group.resolved:
        groups.won = (entry, ok)
    return member.over


def wakes(run: Run, step: int) -> bool:
    """Whether the close of this leaf, just folded, wakes the run."""
    groups = run.parts.get(Groups)
    if groups is None or step not in groups.silent:
        return True
    groups.silent.discard(step)
    return False


def full(run: Run, path: Sequence[GroupEntry]) -> bool:
    """Whether a leaf that joins these groups now has to wait for earlier ones."""
    groups = run.parts.get(Groups)
    if groups is None:
        return False
    for entry in path:
        group = groups.groups.get(entry.parallel_group_id)
        if group is not None and group.limit is not None and len(group.open) >= group.limit:
            return True
    return False


def held_back(run: Run, step: int) -> bool:
    """Whether a leaf still waits for earlier ones of its group."""
    groups = run.parts.get(Groups)
    if groups is None:
        return False
    for entry in groups.paths.get(step, ()):
        group = groups.groups[entry.parallel_group_id]
        if group.limit is not None and step not in islice(group.open, group.limit):
            return True
    return False
