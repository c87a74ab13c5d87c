"""What a feature is: one module that holds its commands, events, decisions, folds, expectations and replay rule.

A feature hands the machine its tables. Adding one is adding a file and its name in `machine.FEATURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from backstay.kernel.command import Command
from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.limits import Breach
from backstay.kernel.message import Message
from backstay.kernel.send import Parcel
from backstay.kernel.state import Run, Workflow
from backstay.kernel.task import Resume, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import Kind, Micros
from backstay.kernel.words import Words


class CommandRule(NamedTuple):
    """`check` refuses before anything of the completion is applied; `apply` can no longer refuse."""

    check: Callable[[Turn, Any], None]
    apply: Callable[[Turn, Any], None]


class TaskRule(NamedTuple):
    """What is special about one kind of task."""

    serves: Callable[[Workflow, Task], bool]
    """Whether something open stands behind the task."""
    assign: Callable[[Workflow, Task], Any]
    """What a worker is handed with the leased task."""
    lost: Callable[[Turn, Task, bool], None]
    """What follows when a lease ends without a report. The flag: work may have begun."""
    claimed: Callable[[Turn, Task], None] | None = None
    """What a claim records."""
    stray: Callable[[Turn, Task], None] | None = None
    """What to do with a row that is offered and serves nothing, unless it is to be closed."""


class Deadline(NamedTuple):
    """A kind of agenda entry. An entry counts only while `armed` still answers its time.

    `length` is how far ahead it was set: an entry that lies farther away than that was set by a clock since set back.
    """

    armed: Callable[[Workflow, Any], Micros | None]
    due: Callable[[Turn, Any], None]
    length: Callable[[Workflow, Any], Micros] | None = None
    again: Callable[[Workflow, Any, Micros], Micros] | None = None
    """When it is due instead by a clock since set back; unless told, its length from now."""
    silence: bool = False
    """Whether it is about what a worker has not said, which may be because nobody could hear it."""


class Value(Struct, frozen=True, gc=False):
    """A step ended well; `blob` is its encoded result (None: it has no result)."""

    blob: bytes | None


class Plain(Struct, frozen=True):
    """A step ended well with a value that needs no decoding."""

    value: Any


class Thrown(Struct, frozen=True):
    """A step ended badly; the author's code sees an exception."""

    failure: Failure
    failure_id: str | None
    category: str
    timeout_kind: str | None = None


Outcome = Value | Plain | Thrown


class Shape(NamedTuple):
    """What kind of step an event belongs to, and the one detail that must not change under a run."""

    name: str
    detail: Callable[[Any], object] | None = None


Decide = Callable[[Turn, Any], None]
Fold = Callable[[Run, Any, Recorded], None]


class Feature(Struct, frozen=True, kw_only=True, eq=False):
    name: str
    kind: Kind = "workflow"
    """Of which kind of instance the parcels below are taken."""
    decide: Mapping[type[Message], Decide] = {}
    commands: Mapping[type[Command], CommandRule] = {}
    evolve: Mapping[type[Event], Fold] = {}
    resume: Mapping[type[Event], Callable[[Run, Any, Recorded], Resume | None]] = {}
    """Events that make a workflow task due, and what it is told about them."""
    apart: Mapping[type[Event], Callable[[Run, Any, Recorded], Resume]] = {}
    """Events that get a workflow task of their own. The feature takes them off `run.apart` once they are dealt with."""
    carry: Callable[[Run], Iterable[tuple[int, Event, Context]]] | None = None
    """What the next run of a chain is told again, by its place in the history of this one."""
    deadlines: Mapping[str, Deadline] = {}
    tasks: Mapping[str, TaskRule] = {}
    expect: Callable[[Workflow], Iterable[Task]] | None = None
    """The tasks that must exist for what is open."""
    cancel: Callable[[Turn], None] | None = None
    """Supersede what is open because the run is being stopped."""
    parcels: Mapping[type[Parcel], Callable[[Turn, Any], None]] = {}
    """What the delivery of each kind of send means."""
    awaited: Callable[[Run], int] | None = None
    """How many other instances owe this run an answer."""
    ask: Callable[[Turn], None] | None = None
    """Ask after them: what was sent to them is sent once more."""
    dispatch: Callable[[Turn, int], bool] | None = None
    """Hand out the leaf of this step, which a bounded group had held back; False: it is another feature's."""
    closed: Callable[[Turn], None] | None = None
    """What follows right behind a terminal event."""
    over: Callable[[Turn], None] | None = None
    """What a closed run leads to, once it is settled: its next one may open."""
    before: Callable[[Turn, Task], None] | None = None
    """What the end of a workflow task says about what it had seen, ahead of its commands."""
    infer: Callable[[Turn, Task, list[Command]], list[Command]] | None = None
    """What a completion means that comes from a worker which does not number its steps."""
    acknowledged: Callable[[Turn, Task], None] | None = None
    """What it means that such a worker was shown all news and goes on waiting."""
    timed_out: Callable[[Turn, int], None] | None = None
    """What follows at once when the timer behind the wait of this step fires."""
    outside: Callable[[Run], bool] | None = None
    """Whether the run waits for something that only comes from outside."""
    limits: Callable[[Turn, list[Command]], Breach | None] | None = None
    """Whether these commands, some of them this feature's, would pass a limit; the run then fails instead."""
    shapes: Mapping[type[Event], Callable[[Any], Shape]] = {}
    outcomes: Mapping[type[Event], Callable[[Any], Outcome | None]] = {}
    """How replay answers the awaiting author code."""
    words: Mapping[type[Event], Words] = {}
    """What each event is about, and how it is said in a line."""


def nothing_to_check(turn: Turn, command: Any) -> None:
    """For commands whose types already say everything."""
