"""Groups: several durable calls that code waits for together.

Each member of `gather` is one durable call (an activity, a child, a timer, or a nested `gather.step`). The run is woken once,
when all have succeeded or one has failed. For several steps per member, use `spawn`.

A group may have any number of members. Those of a large group are scheduled in *windows*, so that a run never has more steps
open than its limits allow: one window at first, and more whenever half of it has ended. History records the size of the
window, and a replay uses the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, cast

from backstay.kernel.feature import Outcome, Thrown
from backstay.kernel.groups import GroupEntry
from backstay.kernel.limits import Limits
from backstay.sdk.author.composite import Composite
from backstay.sdk.author.step import Call, Step
from backstay.sdk.errors import DurableCallRefused
from backstay.sdk.replay import workflow_greenlet as greenlets
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import WorkflowGreenlet, current_greenlet

FEW = 100  # members that are always scheduled at once, if the limits allow

KINDS = {"activity": "activity", "child workflow": "child", "timer": "timer"}
_PREFIXES = {
    "activity": "parallel-activities",
    "child": "parallel-children",
    "timer": "parallel-timers",
    "mixed": "parallel-calls",
}


class GroupLeaf:
    """One durable call of a group. `greenlet` is set if a closure made the call: it goes on there with the outcome."""

    def __init__(self, call: Call[Any], greenlet: WorkflowGreenlet | None, returned: list[Any]) -> None:
        self.call = call
        self.greenlet = greenlet
        self.returned = returned
        self.step = 0
        self.outcome: Outcome | None = None
        self.around: tuple[GroupNode, ...] = ()  # the groups that contain it, outermost first

    @property
    def kind(self) -> str:
        return KINDS[self.call.shape]

    def leaves(self) -> Iterator[GroupLeaf]:
        yield self

    def value(self, live_run: LiveRun) -> Any:
        assert self.outcome is not None
        if self.greenlet is None:
            return self.call.finish(live_run, self.outcome)
        greenlets.enter(self.greenlet, self.outcome)
        if not self.returned:
            raise DurableCallRefused(_ONE)
        value, error = self.returned[0]
        if error is not None:
            raise error
        return value


class GroupNode:
    """A group: its members, and the function that combines their values."""

    window: int | None = None
    base = 0  # the first step of its leaves

    def __init__(
        self,
        members: Sequence[GroupLeaf | GroupNode],
        shape: Callable[[list[Any]], Any],
        limit: int | None,
        settles: bool,
    ) -> None:
        self.members = members
        self.shape = shape
        self.limit = limit
        self.settles = settles
        self.failed: GroupLeaf | None = None
        self.size = sum(member.size if isinstance(member, GroupNode) else 1 for member in members)
        kinds = {member.kind for member in members}
        self.kind = kinds.pop() if len(kinds) == 1 else "mixed"
        self.asked = 0

    def leaves(self, around: tuple[GroupNode, ...] = ()) -> Iterator[GroupLeaf]:
        """Yield all leaves in order, and set the groups around each."""
        around = (*around, self)
        for member in self.members:
            if isinstance(member, GroupNode):
                yield from member.leaves(around)
            else:
                member.around = around
                yield member

    def value(self, live_run: LiveRun) -> Any:
        if self.failed is not None:
            assert self.failed.outcome is not None
            return self.failed.call.finish(live_run, self.failed.outcome)
        if self.settles:
            return self.shape([_settled(member, live_run) for member in self.members])
        return self.shape([member.value(live_run) for member in self.members])

    def place(self, step: int) -> GroupEntry:
        """Return the entry of the group's next leaf, which takes this step."""
        if not self.asked:
            self.base = step
        entry = GroupEntry(
            parallel_group_id=f"{_PREFIXES[self.kind]}:{self.base}:{self.size}",
            parallel_group_kind=self.kind,
            parallel_group_base_sequence=self.base,
            parallel_group_size=self.size,
            parallel_group_index=self.asked,
            parallel_group_limit=self.limit,
            parallel_group_window=self.window,
            parallel_group_settles=self.settles,
        )
        self.asked += 1
        return entry


def _settled(member: GroupLeaf | GroupNode, live_run: LiveRun) -> Any:
    try:
        return member.value(live_run)
    except Exception as error:
        return error


def _window(root: GroupNode, leaves: list[GroupLeaf], limits: Limits) -> int | None:
    """Return how many leaves may be open at a time; None if all of them fit."""
    pending = {
        "activity": limits.pending_activity_count,
        "child": limits.pending_child_count,
        "timer": limits.pending_timer_count,
    }
    bounds = [limits.command_batch_size, *(pending[kind] for kind in {leaf.kind for leaf in leaves})]
    room = min((bound for bound in bounds if bound), default=len(leaves))
    # Large enough that a bounded group always has further members ready when one ends.
    wanted = len(leaves) if root.limit is None else max(FEW, 4 * root.limit)
    if len(leaves) <= min(room, wanted):
        return None
    return max(1, min(wanted, room // 2))  # half of the limit is left for other steps of the run


_ONE = "a closure in gather() makes one durable call and then only computes; for more steps use spawn()"


class GroupPlan:
    """The members given to `gather`. Closures among them are called when the group runs."""

    def __init__(self, members: list[Any], shape: Callable[[list[Any]], Any], limit: int | None, settles: bool) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        self.members = members
        self.shape = shape
        self.limit = limit
        self.settles = settles

    def node(self, live_run: LiveRun) -> GroupNode:
        return GroupNode([_member(live_run, member) for member in self.members], self.shape, self.limit, self.settles)

    def outside(self) -> Any:
        return self.shape([self._made(member) for member in self.members])

    def _made(self, member: Callable[[], Any]) -> Any:
        try:
            return member()
        except Exception as error:
            if self.settles:
                return error
            raise


def _member(live_run: LiveRun, member: Any) -> GroupLeaf | GroupNode:
    if isinstance(member, GroupStep):
        return member.plan.node(live_run)
    if isinstance(member, Step) and member.composite:
        raise TypeError("race() cannot be a member of gather(); use spawn() for it")
    if isinstance(member, Step):
        return GroupLeaf(_grouped(member._call), None, [])  # pyright: ignore[reportPrivateUsage, reportUnknownArgumentType, reportUnknownMemberType]
    if not callable(member):
        raise TypeError(f"gather() takes steps or functions without arguments, not {member!r}; did you forget .step?")
    return _collect(live_run, member)


def _grouped(call: Call[Any]) -> Call[Any]:
    if call.shape not in KINDS:
        raise TypeError(f"{call.describe()} cannot be a member of gather(); use spawn() for it")
    return copy(call)  # one step may be a member several times, each with its own entry


def _collect(live_run: LiveRun, closure: Callable[[], Any]) -> GroupLeaf:
    """Run a closure on its own greenlet up to its durable call."""
    made: list[tuple[WorkflowGreenlet, Call[Any]]] = []
    returned: list[Any] = []

    def job() -> None:
        greenlet = current_greenlet()
        assert greenlet is not None
        greenlet.collect = lambda call: made.append((greenlet, call))
        try:
            returned.append((closure(), None))
        except Exception as error:
            returned.append((None, error))

    greenlets.run(live_run, job)
    if not made:
        error = returned[0][1] if returned else None
        raise error or TypeError("a closure in gather() must make one durable call")
    greenlet, call = made[0]
    return GroupLeaf(_grouped(call), greenlet, returned)


class GroupRun:
    """A running group. It calls `done` when all leaves have ended, or when a failure ends the group."""

    def __init__(self, live_run: LiveRun, plan: GroupPlan, done: Callable[[], None]) -> None:
        self._live_run = live_run
        self._done = done
        self.root = plan.node(live_run)
        self.leaves = list(self.root.leaves())
        self.left = len(self.leaves)
        self._open = 0
        self.root.window = self._window()
        self._ask(self.root.window or self.left)

    def _window(self) -> int | None:
        recorded = self._live_run.peek()
        if recorded is None:
            return _window(self.root, self.leaves, self._live_run.machine.limits)
        path: list[GroupEntry] = getattr(recorded, "parallel_group_path", [])
        return path[0].parallel_group_window if path else None

    def _ask(self, most: int) -> None:
        """Schedule further leaves until `most` are open."""
        live_run = self._live_run
        while self._open < most and self.root.asked < len(self.leaves):
            leaf = self.leaves[self.root.asked]
            cast(Any, leaf.call).group = [node.place(live_run.step + 1) for node in leaf.around]
            self._open += 1
            leaf.step = live_run.ask(leaf.call, lambda outcome, leaf=leaf: self._answered(leaf, outcome))

    @property
    def over(self) -> bool:
        return self.root.failed is not None or self.left == 0

    def _answered(self, leaf: GroupLeaf, outcome: Outcome) -> None:
        leaf.outcome = outcome
        if self.root.failed is not None:
            return  # the group has failed already; results of other members are only recorded
        self.left -= 1
        self._open -= 1
        if isinstance(outcome, Thrown):
            self._fail(leaf)
        window = self.root.window
        if self.over:
            self._done()
        elif window is not None and self._open <= window // 2 and self.root.asked < len(self.leaves):
            self._live_run.wake_job(partial(self._ask, window))  # on a greenlet, because replay may block in it

    def _fail(self, leaf: GroupLeaf) -> None:
        """Fail the groups around a leaf, from the inside, up to one with `return_exceptions`."""
        for node in reversed(leaf.around):
            if node.settles:
                return
            if node.failed is None:
                node.failed = self._first_failure(leaf) if node is self.root else leaf

    def _first_failure(self, leaf: GroupLeaf) -> GroupLeaf:
        """Return the leaf with the lowest step among the failures that were recorded at the same moment."""
        by_step = {other.step: other for other in self.leaves if other.step}
        for step, outcome in self._live_run.simultaneous():
            other = by_step.get(step)
            if (
                other is not None
                and isinstance(outcome, Thrown)
                and other.step < leaf.step
                and not any(node.settles for node in other.around)
            ):
                other.outcome = outcome
                leaf = other
        return leaf

    def value(self) -> Any:
        return self.root.value(self._live_run)

    def cancel(self) -> None:
        """Cancel the open calls: the code does not wait for the group any more."""
        for leaf in self.leaves:
            if leaf.step and leaf.outcome is None:
                self._live_run.drop(leaf.step)
                leaf.call.cancel(self._live_run, leaf.step)


class GroupStep(Composite):
    """A described group, to be a member of another group or awaited."""

    __slots__ = ("plan",)

    def __init__(self, plan: GroupPlan) -> None:
        super().__init__()
        self.plan = plan

    def begin(self, live_run: LiveRun, done: Callable[[], None]) -> GroupRun:
        return GroupRun(live_run, self.plan, done)

    def outside(self) -> Any:
        return self.plan.outside()

    def __repr__(self) -> str:
        return f"<step gather of {len(self.plan.members)}>"


def plan(steps: tuple[Any, ...], limit: int | None, settles: bool) -> GroupPlan:
    """Return the plan of a group from the arguments of `gather`: several members, or one list, dict or generator of them."""
    if len(steps) == 1 and not callable(steps[0]):
        given = steps[0]
        if isinstance(given, Mapping):
            named = cast(Mapping[Any, Any], given)
            keys = list(named)
            return GroupPlan(list(named.values()), lambda values: dict(zip(keys, values, strict=True)), limit, settles)
        if isinstance(given, set | frozenset):
            raise TypeError("a set has no order; give gather() a list, a tuple, a dict or a generator")
        if isinstance(given, Iterable):
            return GroupPlan(list(cast(Iterable[Any], given)), list, limit, settles)
    return GroupPlan(list(steps), tuple, limit, settles)
