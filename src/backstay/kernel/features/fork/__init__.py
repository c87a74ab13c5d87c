"""Fork and rewind: a new run begins with a part of a history and goes on from there.

A fork starts a new instance; the run that it is taken from stays as it is, and may be open or closed. A rewind closes the
current run as `rewound`, if it is open, and opens the next run of the same instance in the same decision. The shell
passes the history. Results up to the point are kept, and everything after it is done anew. Signals and stream messages
that a rewound run got after the point are delivered to the next run; a fork gets none of them. Three chapters: `prefix`
(the point, and what is kept), `inherit` (the new history), `records` (events and replies).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.feature import Deciding, Feature, History
from backstay.kernel.features import close
from backstay.kernel.features.child.child_side import run_continued
from backstay.kernel.features.fork.inherit import Inheritance, inherit, last_command
from backstay.kernel.features.fork.prefix import Prefix, plan_of, prefix_of
from backstay.kernel.features.fork.records import (
    WORDS,
    ForkPlan,
    ForkReply,
    HistoryInherited,
    RepeatedEffect,
    WorkflowRewound,
    inherited,
    rewound,
    wake,
)
from backstay.kernel.features.instance_commands import (
    NOT_CURRENT,
    NOT_LOOKED_AT,
    NOT_STARTED,
    CommandReply,
    ReasonedCommand,
    Rejection,
    accept,
    answer_retry,
    cause,
    earlier_run,
    reject,
)
from backstay.kernel.features.message_stream import MessageReceived
from backstay.kernel.features.signal import SignalReceived
from backstay.kernel.features.start import STANDALONE, RecordedDefinition, WorkflowStarted, check_id, started_of
from backstay.kernel.features.update import UpdateAccepted, UpdateRejected
from backstay.kernel.message import Refused
from backstay.kernel.operator_command import REASON, CommandField, CommandOutcome, CommandRefusal, OperatorCommand
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, Routing

__all__ = [
    "FEATURE",
    "Fork",
    "ForkPlan",
    "ForkReply",
    "HistoryInherited",
    "RepeatedEffect",
    "Rewind",
    "WorkflowRewound",
    "plan_of",
]


class _FromHistory(ReasonedCommand, frozen=True, kw_only=True):
    """`history` is that of the whole run `from_run_id`. `set`: results by step, encoded. `routing` and `definition` find
    and describe the code that goes on."""

    at: str | None = None
    set: dict[int, bytes | None] = {}
    code: str | None = None
    history: list[Recorded]
    from_run_id: str
    routing: Routing
    definition: RecordedDefinition | None = None

    def intent(self) -> bytes:
        given = b"\0".join(b"%d=%s" % (step, result or b"") for step, result in sorted(self.set.items()))
        texts = (self.at, self.code, self.reason)
        return b"\0".join((given, *((text or "").encode() for text in texts)))


class Fork(_FromHistory, frozen=True, kw_only=True):
    """Start this instance, which does not exist yet, with the history of `from_workflow_id`: of the run that the caller has
    named, or else of its current run. A repetition is the same request, even if another run is current by now."""

    command_type = "fork"

    from_workflow_id: str
    named_run_id: str | None = None
    new_id: str | None = None

    def intent(self) -> bytes:
        return b"\0".join((self.from_workflow_id.encode(), (self.named_run_id or "").encode(), super().intent()))


class Rewind(_FromHistory, frozen=True, kw_only=True):
    """Go on from an earlier event of the current run, which may have ended."""

    command_type = "rewind"


ID_TAKEN = Rejection("instance_already_started", "rejected_duplicate")


def fork(turn: Turn, message: Fork) -> None:
    if answer_retry(turn, message):
        turn.reply = ForkReply(command=turn.reply)
        return
    instance = turn.instance
    check_id(instance.workflow_id)
    if instance.run is not None:
        reject(turn, message, ID_TAKEN)
        turn.reply = ForkReply(command=turn.reply)
        return
    prefix = prefix_of(turn.features, message.history, message.at, message.set)
    started = _started(message.history)
    instance.workflow_type = started.workflow_type
    run = turn.new_run()
    _open(turn, run, message, prefix, _WITHOUT_PARENT | {"continued_from_run_id": None})
    command = accept(turn, message, "forked")
    turn.record_with_context(
        HistoryInherited(
            workflow_command_id=command.id,
            from_workflow_instance_id=message.from_workflow_id,
            from_workflow_run_id=message.from_run_id,
            inherited_through=prefix.through,
            inherited_events=len(prefix.entries),
            replaced_steps=sorted(message.set),
            reason=message.reason,
        ),
        cause(command),
    )
    turn.reply = ForkReply(command=turn.reply, plan=_plan(turn, message, message.from_workflow_id))


_WITHOUT_PARENT: dict[str, Any] = dict.fromkeys(
    (
        "parent_workflow_instance_id",
        "parent_workflow_run_id",
        "parent_namespace",
        "parent_sequence",
        "workflow_link_id",
        "child_call_id",
        "retry_policy",
        "retry_attempt",
        "retry_of_child_workflow_run_id",
        "occurrence_time",
    )
)


def rewind(turn: Turn, message: Rewind) -> None:
    if answer_retry(turn, message):
        turn.reply = ForkReply(command=turn.reply)
        return
    instance = turn.instance
    old = instance.run
    if old is None or earlier_run(turn, message) is not None:
        reject(turn, message, NOT_STARTED if old is None else NOT_CURRENT)
        turn.reply = ForkReply(command=turn.reply)
        return
    if message.from_run_id != old.run_id or len(message.history) != old.length:
        raise Refused(NOT_LOOKED_AT, f"workflow {instance.workflow_id} has moved on meanwhile; try again")
    prefix = prefix_of(turn.features, message.history, message.at, message.set)
    new = turn.new_run()
    command = accept(turn, message, "rewound", resolved=new)
    reply: CommandReply = turn.reply
    late = _delivered_after(message.history, prefix)
    if old.is_open:
        turn.record_with_context(
            WorkflowRewound(
                workflow_command_id=command.id,
                continued_to_run_id=new.run_id,
                continued_to_run_number=new.number,
                rewound_through=prefix.through,
                reason=message.reason,
            ),
            cause(command),
        )
        close.closed(turn)
    for task_id in list(instance.tasks):
        turn.drop_task(task_id)
    # Updates have ended with the old run; what else arrived during its last task is for the new one.
    instance.buffered_events = [
        *late,
        *(entry for entry in instance.buffered_events if not isinstance(entry[0], UpdateAccepted | UpdateRejected)),
    ]
    _open(turn, new, message, prefix, {"continued_from_run_id": old.run_id})
    turn.record_with_context(
        HistoryInherited(
            workflow_command_id=command.id,
            from_workflow_instance_id=instance.workflow_id,
            from_workflow_run_id=old.run_id,
            inherited_through=prefix.through,
            inherited_events=len(prefix.entries),
            rewound=True,
            replaced_steps=sorted(message.set),
            reason=message.reason,
        ),
        cause(command),
    )
    run_continued(turn)
    turn.reply = ForkReply(command=reply, plan=_plan(turn, message, instance.workflow_id))


def _open(turn: Turn, run: Run, message: _FromHistory, prefix: Prefix, started: dict[str, Any]) -> None:
    turn.begin_run(run)
    turn.instance.command_sequence = last_command(message.from_run_id, prefix)
    command = turn.command(
        "start",
        outcome="started_new",
        source=message.source,
        resolved_run_id=run.run_id,
        context=message.context,
    )
    inherit(
        turn,
        run,
        Inheritance(
            command_id=command.id,
            from_run_id=message.from_run_id,
            prefix=prefix,
            replaced=message.set,
            started=started,
            definition=message.definition,
            routing=message.routing,
        ),
    )


def _plan(turn: Turn, message: _FromHistory, workflow_id: str) -> ForkPlan:
    return plan_of(
        turn.features, message.history, message.at, message.set, workflow_id=workflow_id, run_id=message.from_run_id
    )


def _delivered_after(history: Sequence[Recorded], prefix: Prefix) -> list[tuple[Event, Context]]:
    """The signals and stream messages that arrived after the point. Their senders know that they were accepted."""
    late = history[prefix.through :]
    return [
        (entry.event, replace(entry.context, clock_skew=None))  # recorded anew, by the clock as it is now
        for entry in late
        if isinstance(entry.event, SignalReceived | MessageReceived)
    ]


def _started(history: Sequence[Recorded]) -> WorkflowStarted:
    started = started_of(history)
    if started is None:
        raise Refused("point_missing", "the history does not begin with the start of a run", field="at")
    return started


POINT = CommandField(
    "at",
    "The point: a step (3) or type of step (charge), which is done anew, or the last event to keep (event:12). Default: the"
    " last step that failed.",
    ("--at",),
    "POINT",
    bulk=True,
)
GIVEN = CommandField(
    "set",
    "Results of steps up to the point that replace those in the history, as a JSON object by step.",
    ("--set",),
    "JSON",
    json=True,
)
CODE = CommandField(
    "code",
    "The code that goes on: `current` for the newest of its type, or `same` for that which the run is bound to.",
    ("--code",),
    "CODE",
    bulk=True,
)


def _blocked(instance: Instance, state: str, now: Micros) -> str | None:
    return "not_a_workflow" if instance.current.workflow_type == STANDALONE else None


_BLOCKED_WORDS = {"not_a_workflow": "It is a single activity, which has no steps before it."}


def _taken(command: CommandReply) -> str:
    return f"the id {command.workflow_id!r} is in use; choose another one, or none"


_REFUSALS = {ID_TAKEN.reason: CommandRefusal(_taken)}

FORK = OperatorCommand(
    message=Fork,
    request="ForkWorkflow",
    label="Fork",
    help="Start a new workflow from a point in the history of {run}.",
    more="The run itself stays as it is. Results up to the point are kept; everything after it is done anew.",
    examples=("order-1 --at charge --dry-run", "order-1 --at event:12 --id order-1-fixed --reason 'wrong address'"),
    fields=(
        POINT,
        CommandField("new_id", "The id of the new workflow. Default: one that is made from ID.", ("--id",), "ID"),
        GIVEN,
        CODE,
        REASON,
    ),
    reply=ForkReply,
    outcomes={"forked": CommandOutcome("forked", goes_on=True)},
    refusals=_REFUSALS,
    current_run=False,
    open_or_closed=True,
    blocked=_blocked,
    blocked_words=_BLOCKED_WORDS,
    hidden=frozenset(_BLOCKED_WORDS),
)

REWIND = OperatorCommand(
    message=Rewind,
    request="RewindWorkflow",
    label="Rewind",
    help="Continue {run} from an earlier point of its history, as a new run of the same id.",
    bulk_flags={"is_current_run": True},
    more="The run is closed as `rewound`, unless it has ended. Results up to the point are kept; everything after it is"
    " done anew.",
    examples=("order-1 --at charge --dry-run", "order-1 --at event:12 --reason 'the address was wrong'"),
    fields=(POINT, GIVEN, CODE, REASON),
    reply=ForkReply,
    danger=True,
    outcomes={"rewound": CommandOutcome("rewound; it goes on as a new run", goes_on=True)},
    open_or_closed=True,
    blocked=_blocked,
    blocked_words=_BLOCKED_WORDS,
    hidden=frozenset(_BLOCKED_WORDS),
)


FEATURE = Feature(
    name="fork",
    deciding=Deciding(messages={Fork: fork, Rewind: rewind}),
    history=History(
        evolve={HistoryInherited: inherited, WorkflowRewound: rewound},
        resume={HistoryInherited: wake},
    ),
    words=WORDS,
    operator=(FORK, REWIND),
)
