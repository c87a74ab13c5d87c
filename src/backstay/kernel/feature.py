"""A feature: one module with its commands, events, decisions, folds, expectations and replay rule.

A feature hands the machine its tables and hooks, in sections. Adding a feature is adding a file and its name in
`feature_list.FEATURES`: the machine merges the tables once, and calls no feature by name.
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
from backstay.kernel.operator_command import OperatorCommand
from backstay.kernel.send import OutboxMessage
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Resume, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import InstanceKind, Micros
from backstay.kernel.words import Words


class CommandRule(NamedTuple):
    """`check` refuses before anything of the completion is applied; `apply` can no longer refuse."""

    check: Callable[[Turn, Any], None]
    apply: Callable[[Turn, Any], None]


class TaskRule(NamedTuple):
    """The rules of one kind of task."""

    serves: Callable[[Instance, Task], bool]
    """Whether the task is for something that is open."""
    assign: Callable[[Instance, Task], Any]
    """The data for the worker with the leased task."""
    lost: Callable[[Turn, Task, bool], None]
    """The decision when a lease ends without a report. The flag says whether work may have begun."""
    claimed: Callable[[Turn, Task], None] | None = None
    """The record when the task is leased."""
    stray: Callable[[Turn, Task], None] | None = None
    """How to correct a row that serves nothing, instead of deleting it. It may change no other row."""


class Deadline(NamedTuple):
    """A kind of agenda entry. An entry counts only while `armed` still returns its time.

    `length` is how far in the future it was set. An entry that lies farther away shows that the clock was set back
    since.
    """

    armed: Callable[[Instance, Any], Micros | None]
    due: Callable[[Turn, Any], None]
    length: Callable[[Instance, Any], Micros] | None = None
    after_clock_change: Callable[[Instance, Any, Micros], Micros] | None = None
    """When it is due instead if the clock was set back; without this rule, its length from now."""
    silence: bool = False
    """Whether it measures the silence of a worker, which may also be unable to reach the engine."""


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
    """The kind of step of an event, and the one detail that must not change under a run."""

    name: str
    detail: Callable[[Any], object] | None = None


Decide = Callable[[Turn, Any], None]
Fold = Callable[[Run, Any, Recorded], None]


class Deciding(Struct, frozen=True, kw_only=True, eq=False):
    """The part of a feature in the decision of a message."""

    messages: Mapping[type[Message], Decide] = {}
    commands: Mapping[type[Command], CommandRule] = {}
    limits: Callable[[Turn, list[Command]], Breach | None] | None = None
    """The limit that these commands would pass, if any; the run then fails instead. It is called if one of the commands
    is this feature's. A feature without commands is called for every completion, after the others."""
    deadlines: Mapping[str, Deadline] = {}
    tasks: Mapping[str, TaskRule] = {}
    expect: Callable[[Instance], Iterable[Task]] | None = None
    """The tasks that must exist for open steps."""
    ensure_task: Callable[[Turn], None] | None = None
    """Create the task for events that wake the code of the run, unless it exists."""
    dispatch: Callable[[Turn, int], bool] | None = None
    """Dispatch the leaf of this step, which waited in a bounded group; False if the step is another feature's."""
    on_group_won: Callable[[Turn, Recorded], None] | None = None
    """Called when an event ends the first member of a group that has a winner."""
    on_wait_timeout: Callable[[Turn, int], None] | None = None
    """Called when the timer of the wait at this step fires."""
    on_task_closing: Callable[[Turn, Task], None] | None = None
    """Records at the end of a workflow task which events its code had seen. It is recorded before the task's
    commands."""


class History(Struct, frozen=True, kw_only=True, eq=False):
    """The meaning of the events of a feature: for the state, for the code they wake, and for replay."""

    evolve: Mapping[type[Event], Fold] = {}
    resume: Mapping[type[Event], Callable[[Run, Any, Recorded], Resume | None]] = {}
    """Events that make a workflow task due, and the `Resume` of that task."""
    own_task: Mapping[type[Event], Callable[[Run, Any, Recorded], Resume]] = {}
    """Events that get a workflow task of their own. The feature removes them from `run.own_task_events` once they are
    handled."""
    shapes: Mapping[type[Event], Callable[[Any], Shape]] = {}
    outcomes: Mapping[type[Event], Callable[[Any], Outcome | None]] = {}
    """How replay answers the author's code that awaits the step."""


class Lifecycle(Struct, frozen=True, kw_only=True, eq=False):
    """The part of a feature when a run is stopped, ends or continues, and whether it delays that."""

    cancel: Callable[[Turn], None] | None = None
    """End open steps because the run is being stopped."""
    on_close: Callable[[Turn], None] | None = None
    """Called right after a terminal event."""
    after_close: Callable[[Turn], None] | None = None
    """Called for a closed run after every `on_close`: its next run may open."""
    carry: Callable[[Run], Iterable[tuple[int, Event, Context]]] | None = None
    """The events that the next run of the chain begins with, each with its sequence in the history of this run."""
    allows_tasks: Callable[[Run], bool] | None = None
    """Whether tasks of the run may be given to workers now."""
    waits_externally: Callable[[Run], bool] | None = None
    """Whether the run waits for something that can only come from outside."""


class Sends(Struct, frozen=True, kw_only=True, eq=False):
    """The outbox messages that a feature receives from other instances, and the answers it waits for."""

    kind: InstanceKind = "workflow"
    """The kind of instance that receives the sends below."""
    receive: Mapping[type[OutboxMessage], Callable[[Turn, Any], None]] = {}
    """The function that decides each kind of outbox message when it is delivered."""
    unanswered: Callable[[Run], int] | None = None
    """How many other instances owe this run an answer."""
    resend: Callable[[Turn], None] | None = None
    """Repeat the unanswered sends to those instances."""


class Compatibility(Struct, frozen=True, kw_only=True, eq=False):
    """How to read the reports of workers that do not number their steps, as the published protocol allows."""

    infer: Callable[[Turn, Task, list[Command]], list[Command]] | None = None
    """The commands of a completion, in full."""
    acknowledged: Callable[[Turn, Task], None] | None = None
    """Called when the worker has seen all events and still waits."""


class Feature(Struct, frozen=True, kw_only=True, eq=False):
    name: str
    deciding: Deciding = Deciding()
    history: History = History()
    lifecycle: Lifecycle = Lifecycle()
    sends: Sends = Sends()
    compatibility: Compatibility = Compatibility()
    words: Mapping[type[Event], Words] = {}
    """The subject of each event, and its line of text."""
    operator: tuple[OperatorCommand, ...] = ()
    """The commands that operators send to runs."""


def nothing_to_check(turn: Turn, command: Any) -> None:
    """For commands whose types already say everything."""
