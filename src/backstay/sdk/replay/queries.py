"""Queries and validators: they run in live or replayed workflow code, and nothing is recorded or changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backstay.codec.errors import PayloadError
from backstay.codec.values import dumps
from backstay.kernel.event import Recorded
from backstay.kernel.features.child import ChildRunStarted
from backstay.kernel.features.start import started_of
from backstay.kernel.features.workflow_task import WorkflowAssignment, query_refusal, replay_position
from backstay.kernel.machine import Machine
from backstay.kernel.message import Refused
from backstay.kernel.task import Task
from backstay.protocol.commands import Inquiry
from backstay.sdk.author.child import shown
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.replay.guard import guard_of
from backstay.sdk.replay.inbound import HandlerOutcome, call_member, run_handler
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.reactions import REACTIONS
from backstay.sdk.replay.workflow_greenlet import Readonly
from backstay.sdk.worker.registry import Registry


def answer_on(live_run: LiveRun, inquiry: Inquiry, history: Sequence[Recorded] = ()) -> Any:
    """Run a query or validator on live code. An exception is returned, not raised, because it crosses threads.

    Live code has not seen the events of children that were recorded since its last task, as a replay would have. So the query
    is shown them: no task is made for those.
    """
    return _answer(
        live_run,
        inquiry,
        [
            entry
            for entry in history
            if entry.sequence > live_run.position
            and (
                entry.context.decided_after is not None
                or entry.sequence <= inquiry.cursor
                or isinstance(entry.event, ChildRunStarted)
            )
        ],
    )


def _answer(live_run: LiveRun, inquiry: Inquiry, unmet: list[Recorded]) -> Any:
    """`unmet`: events that the code has not seen yet, whose children the query may see."""
    try:
        with shown(live_run, unmet):
            return _query(live_run, inquiry) if inquiry.kind == "query" else _objection(live_run, inquiry)
    except Exception as error:
        return error


def replayed(
    machine: Machine,
    registry: Registry,
    definition: WorkflowDefinition,
    inquiry: Inquiry,
    history: list[Recorded],
    *,
    whole: bool = False,
    make: Callable[..., LiveRun] = LiveRun,
) -> LiveRun:
    """Return a live run that was replayed up to the last event of the run's tasks, for reading only. The caller drops
    it. `whole`: it gets the events after that too, as the next task would. `make` makes it."""
    horizon = _horizon(inquiry, history)
    live_run = make(
        machine,
        _assignment(inquiry, history, horizon),
        definition.main,
        registry.exceptions,
        definition.fingerprint,
        None,
        REACTIONS,
        definition.handlers,
    )
    live_run.guard = guard_of(definition, registry.guard)  # the same guard as in live code
    live_run.looking = True
    try:
        seen = history if whole else [entry for entry in history if replay_position(entry) <= horizon]
        live_run.resume(seen, horizon)
    except BaseException:
        live_run.abandon()
        raise
    return live_run


def _horizon(inquiry: Inquiry, history: list[Recorded]) -> int:
    """Return the last event that the run's tasks have seen: their decisions record it."""
    return max(inquiry.cursor, *(entry.context.decided_after or 0 for entry in history), 0)


def answer_from(
    machine: Machine, registry: Registry, definition: WorkflowDefinition, inquiry: Inquiry, history: list[Recorded]
) -> Any:
    """Run a query or validator on code that is replayed for it. An exception is returned, not raised."""
    try:
        live_run = replayed(machine, registry, definition, inquiry, history)
    except Exception as error:
        return Refused("query_rejected", f"the run could not be replayed: {error}")
    try:
        if live_run.block is not None:
            return query_refusal(live_run.block)
        if live_run.instance is None and definition.is_class:
            # No task has run yet, so the state is that of a new object of the class.
            made = run_handler(live_run, Readonly(f"{definition.class_name}()"), definition.target)
            if made.error is not None:
                return Refused("query_rejected", f"its class could not be instantiated: {made.error!r}")
            live_run.instance = made.value
        horizon = _horizon(inquiry, history)
        moved = [
            entry for entry in history if isinstance(entry.event, ChildRunStarted) and replay_position(entry) > horizon
        ]
        return _answer(live_run, inquiry, moved)
    except Exception as error:
        return Refused("query_rejected", f"the run could not be replayed: {error}")
    finally:
        live_run.abandon()


def _query(live_run: LiveRun, inquiry: Inquiry) -> bytes:
    handlers = live_run.handlers
    member = handlers.queries.get(inquiry.name)
    if member is None:
        known = ", ".join(handlers.queries) or "none"
        raise Refused("query_not_found", f"there is no query {inquiry.name!r}; the code has: {known}")
    ran = call_member(live_run, member, inquiry.arguments, replayed=False)
    if isinstance(ran.error, PayloadError):
        raise Refused("invalid_query_arguments", f"query {inquiry.name!r}: {ran.error}", field="arguments")
    if ran.error is not None:
        raise Refused("query_rejected", f"query {inquiry.name!r} raised {type(ran.error).__name__}: {ran.error}")
    return dumps(ran.value)


def _objection(live_run: LiveRun, inquiry: Inquiry) -> str | None:
    member = live_run.handlers.updates.get(inquiry.name)
    check = None if member is None else member.check
    if member is None or check is None:
        return None

    def call() -> None:
        args, kwargs = member.unpack(inquiry.arguments)
        check(live_run.instance, *args, **kwargs)

    validator = Readonly(f"the validator of update {inquiry.name!r}", replayed=False)
    ran: HandlerOutcome = run_handler(live_run, validator, call)
    return None if ran.error is None else f"{type(ran.error).__name__}: {ran.error}"


def _assignment(inquiry: Inquiry, history: list[Recorded], horizon: int) -> WorkflowAssignment:
    started = started_of(history)
    assert started is not None, "a history begins with the start of its run"
    return WorkflowAssignment(
        task=Task(
            id="",
            workflow=0,
            run=inquiry.run_key,
            kind="workflow",
            type=inquiry.workflow_type,
            routing=started.routing,
            available_at=inquiry.at,
            created_at=inquiry.at,
        ),
        namespace=inquiry.namespace,
        workflow_id=inquiry.workflow_id,
        run_id=inquiry.run_id,
        run_key=inquiry.run_key,
        run_number=inquiry.run_number,
        run_status="",  # not used in a replay
        workflow_type=inquiry.workflow_type,
        started=started,
        last_sequence=horizon,
        cursor=horizon,
    )
