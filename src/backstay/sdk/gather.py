"""Waiting for several durable calls together.

Each member of `gather` is one durable call (an activity, a child, a timer, or a nested `gather.step`); the run is woken once,
when all have succeeded or one has failed. Work of several steps per member is for `spawn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar, cast, overload

from backstay.kernel.feature import Outcome, Thrown
from backstay.kernel.groups import GroupEntry
from backstay.sdk import strand as strands
from backstay.sdk.composite import Composite
from backstay.sdk.errors import DurableCallRefused
from backstay.sdk.fiber import Fiber
from backstay.sdk.step import Call, Step
from backstay.sdk.strand import Strand, current_strand

T = TypeVar("T")
K = TypeVar("K")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")
Thunk = Callable[[], T]

KINDS = {"activity": "activity", "child workflow": "child", "timer": "timer"}
_PREFIXES = {
    "activity": "parallel-activities",
    "child": "parallel-children",
    "timer": "parallel-timers",
    "mixed": "parallel-calls",
}


class Leaf:
    """One durable call of a group. Behind a closure stands the strand that made it and will go on with its outcome."""

    def __init__(self, call: Call[Any], strand: Strand | None, returned: list[Any]) -> None:
        self.call = call
        self.strand = strand
        self.returned = returned
        self.step = 0
        self.outcome: Outcome | None = None

    @property
    def kind(self) -> str:
        return KINDS[self.call.shape]

    def leaves(self) -> Iterator[Leaf]:
        yield self

    def value(self, fiber: Fiber) -> Any:
        assert self.outcome is not None
        if self.strand is None:
            return self.call.finish(fiber, self.outcome)
        strands.enter(self.strand, self.outcome)
        if not self.returned:
            raise DurableCallRefused(_ONE)
        value, error = self.returned[0]
        if error is not None:
            raise error
        return value


class Node:
    """A group: its members, and how their values are put together."""

    def __init__(self, members: Sequence[Leaf | Node], shape: Callable[[list[Any]], Any], limit: int | None) -> None:
        self.members = members
        self.shape = shape
        self.limit = limit

    @property
    def kind(self) -> str:
        kinds = {member.kind for member in self.members}
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def leaves(self) -> Iterator[Leaf]:
        for member in self.members:
            yield from member.leaves()

    def value(self, fiber: Fiber) -> Any:
        return self.shape([member.value(fiber) for member in self.members])

    def place(self, base: int, around: Sequence[tuple[Node, int, int, str]] = ()) -> None:
        """Give every leaf its path. Leaves take consecutive steps, so in each group around it counts from its base."""
        groups = (*around, (self, base, sum(1 for _ in self.leaves()), self.kind))
        for member in self.members:
            if isinstance(member, Leaf):
                path = [group.entry(first, size, base - first, kind) for group, first, size, kind in groups]
                cast(Any, member.call).group = path
            else:
                member.place(base, groups)
            base += sum(1 for _ in member.leaves())

    def entry(self, base: int, size: int, index: int, kind: str) -> GroupEntry:
        return GroupEntry(
            parallel_group_id=f"{_PREFIXES[kind]}:{base}:{size}",
            parallel_group_kind=kind,
            parallel_group_base_sequence=base,
            parallel_group_size=size,
            parallel_group_index=index,
            parallel_group_limit=self.limit,
        )


_ONE = "a closure in gather() makes one durable call and then only computes; for more steps use spawn()"


class Plan:
    """Members given to `gather`, not yet looked at: closures are run when the group is."""

    def __init__(self, members: list[Any], shape: Callable[[list[Any]], Any], limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        self.members = members
        self.shape = shape
        self.limit = limit

    def node(self, fiber: Fiber) -> Node:
        return Node([_member(fiber, member) for member in self.members], self.shape, self.limit)

    def outside(self) -> Any:
        return self.shape([member() for member in self.members])


def _member(fiber: Fiber, member: Any) -> Leaf | Node:
    if isinstance(member, GroupStep):
        return member.plan.node(fiber)
    if isinstance(member, Step) and member.composite:
        raise TypeError("race() cannot be a member of gather(); use spawn() for it")
    if isinstance(member, Step):
        return Leaf(_grouped(member._call), None, [])  # pyright: ignore[reportPrivateUsage, reportUnknownArgumentType, reportUnknownMemberType]
    if not callable(member):
        raise TypeError(f"gather() takes steps or functions without arguments, not {member!r}; did you forget .step?")
    return _collect(fiber, member)


def _grouped(call: Call[Any]) -> Call[Any]:
    if call.shape not in KINDS:
        raise TypeError(f"{call.describe()} cannot be a member of gather(); use spawn() for it")
    return copy(call)  # the same step may be a member several times, each in its own place


def _collect(fiber: Fiber, closure: Callable[[], Any]) -> Leaf:
    """Run a closure on a strand of its own up to its durable call."""
    made: list[tuple[Strand, Call[Any]]] = []
    returned: list[Any] = []

    def job() -> None:
        strand = current_strand()
        assert strand is not None
        strand.collect = lambda call: made.append((strand, call))
        try:
            returned.append((closure(), None))
        except Exception as error:
            returned.append((None, error))

    strands.run(fiber, job)
    if not made:
        error = returned[0][1] if returned else None
        raise error or TypeError("a closure in gather() must make one durable call")
    strand, call = made[0]
    return Leaf(_grouped(call), strand, returned)


class Run:
    """A group on its way: who waits is told when all leaves have succeeded, or one has failed."""

    def __init__(self, fiber: Fiber, plan: Plan, done: Callable[[], None]) -> None:
        self._fiber = fiber
        self._done = done
        self.root = plan.node(fiber)
        self.leaves = list(self.root.leaves())
        self.failed: Leaf | None = None
        self.left = len(self.leaves)
        self.root.place(fiber.step + 1)
        for leaf in self.leaves:
            leaf.step = fiber.ask(leaf.call, lambda outcome, leaf=leaf: self._answered(leaf, outcome))

    @property
    def over(self) -> bool:
        return self.failed is not None or self.left == 0

    def _answered(self, leaf: Leaf, outcome: Outcome) -> None:
        leaf.outcome = outcome
        if self.failed is not None:
            return  # late siblings stay history
        if isinstance(outcome, Thrown):
            self.failed = self._first_failure(leaf)
            self._done()
            return
        self.left -= 1
        if self.left == 0:
            self._done()

    def _first_failure(self, leaf: Leaf) -> Leaf:
        """Of failures that were recorded at the same moment, the one that stands first."""
        by_step = {other.step: other for other in self.leaves if other.step}
        for step, outcome in self._fiber.simultaneous():
            other = by_step.get(step)
            if other is not None and isinstance(outcome, Thrown) and other.step < leaf.step:
                other.outcome = outcome
                leaf = other
        return leaf

    def value(self) -> Any:
        if self.failed is not None:
            assert self.failed.outcome is not None
            return self.failed.call.finish(self._fiber, self.failed.outcome)
        return self.root.value(self._fiber)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        for leaf in self.leaves:
            if leaf.outcome is None:
                self._fiber.drop(leaf.step)
                leaf.call.cancel(self._fiber, leaf.step)


class GroupStep(Composite):
    """A described group: a member of another, or awaited in `async def` code."""

    __slots__ = ("plan",)

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def begin(self, fiber: Fiber, done: Callable[[], None]) -> Run:
        return Run(fiber, self.plan, done)

    def outside(self) -> Any:
        return self.plan.outside()

    def __repr__(self) -> str:
        return f"<step gather of {len(self.plan.members)}>"


def _plan(steps: tuple[Any, ...], limit: int | None) -> Plan:
    if len(steps) == 1 and not callable(steps[0]):
        given = steps[0]
        if isinstance(given, Mapping):
            named = cast(Mapping[Any, Any], given)
            keys = list(named)
            return Plan(list(named.values()), lambda values: dict(zip(keys, values, strict=True)), limit)
        if isinstance(given, set | frozenset):
            raise TypeError("a set has no order; give gather() a list, a tuple, a dict or a generator")
        if isinstance(given, Iterable):
            return Plan(list(cast(Iterable[Any], given)), list, limit)
    return Plan(list(steps), tuple, limit)


class Gather:
    """`gather(...)` waits for all; `gather.step(...)` describes the group."""

    @overload
    def __call__(self, steps: Mapping[K, Thunk[T]], /, *, limit: int | None = None) -> dict[K, T]: ...
    @overload
    def __call__(self, steps: Iterable[Thunk[T]], /, *, limit: int | None = None) -> list[T]: ...
    @overload
    def __call__(self, a: Thunk[A], /, *, limit: int | None = None) -> tuple[A]: ...
    @overload
    def __call__(self, a: Thunk[A], b: Thunk[B], /, *, limit: int | None = None) -> tuple[A, B]: ...
    @overload
    def __call__(self, a: Thunk[A], b: Thunk[B], c: Thunk[C], /, *, limit: int | None = None) -> tuple[A, B, C]: ...
    @overload
    def __call__(
        self, a: Thunk[A], b: Thunk[B], c: Thunk[C], d: Thunk[D], /, *, limit: int | None = None
    ) -> tuple[A, B, C, D]: ...
    @overload
    def __call__(
        self, a: Thunk[A], b: Thunk[B], c: Thunk[C], d: Thunk[D], e: Thunk[E], /, *, limit: int | None = None
    ) -> tuple[A, B, C, D, E]: ...
    @overload
    def __call__(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        f: Thunk[F],
        /,
        *,
        limit: int | None = None,
    ) -> tuple[A, B, C, D, E, F]: ...
    @overload
    def __call__(self, *steps: Thunk[T], limit: int | None = None) -> tuple[T, ...]: ...
    def __call__(self, *steps: Any, limit: int | None = None) -> Any:
        return GroupStep(_plan(steps, limit)).run()

    @overload
    def step(self, steps: Mapping[K, Thunk[T]], /, *, limit: int | None = None) -> Step[dict[K, T]]: ...
    @overload
    def step(self, steps: Iterable[Thunk[T]], /, *, limit: int | None = None) -> Step[list[T]]: ...
    @overload
    def step(self, a: Thunk[A], /, *, limit: int | None = None) -> Step[tuple[A]]: ...
    @overload
    def step(self, a: Thunk[A], b: Thunk[B], /, *, limit: int | None = None) -> Step[tuple[A, B]]: ...
    @overload
    def step(self, a: Thunk[A], b: Thunk[B], c: Thunk[C], /, *, limit: int | None = None) -> Step[tuple[A, B, C]]: ...
    @overload
    def step(
        self, a: Thunk[A], b: Thunk[B], c: Thunk[C], d: Thunk[D], /, *, limit: int | None = None
    ) -> Step[tuple[A, B, C, D]]: ...
    @overload
    def step(self, *steps: Thunk[T], limit: int | None = None) -> Step[tuple[T, ...]]: ...
    def step(self, *steps: Any, limit: int | None = None) -> Step[Any]:
        return GroupStep(_plan(steps, limit))


gather = Gather()
