"""The routes of operator commands, made from their declarations: cancel, pause, retry-now and the others.

    POST /api/workflows/{workflow_id}/retry-now
    POST /api/workflows/{workflow_id}/runs/{run_id}/activities/{activity_execution_id}/retry-now

A command goes to the current run of an instance, or with a run in the path to exactly that one. A field that names a part of the
run may stand in the path.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import cache
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.fork import ForkReply, RepeatedEffect
from backstay.kernel.features.repair import Repair, Repaired
from backstay.kernel.operator_command import REASON, CommandField, OperatorCommand
from backstay.kernel.operators import OPERATOR_COMMANDS, command_of
from backstay.protocol import commands as tell
from backstay.server.access.auth import ADMIN, OPERATOR, READER, Role
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Plane, Route
from backstay.server.published.control.commands import RUN_PATHS, CommandAnswer, CommandBody, accepted, addressed
from backstay.server.server import Server

ROLES: dict[str, frozenset[Role]] = {"operator": OPERATOR, "admin": ADMIN}


class CommandFieldAnswer(Struct, frozen=True, kw_only=True):
    name: str
    help: str
    part: Annotated[str | None, Meta(description="The part of a run that the field names in the path; null: none.")]


class OperatorCommandAnswer(Struct, frozen=True, kw_only=True):
    name: str
    verb: Annotated[str, Meta(description="The end of its path, and its command in `dw`.")]
    action: Annotated[str, Meta(description="Its name in `can_...` and `..._blocked_reason` of a run.")]
    label: str
    help: str
    more: str
    fields: list[CommandFieldAnswer]
    role: Annotated[str, Meta(description="The least role that may send it.")]
    danger: Annotated[bool, Meta(description="Whether it ends something that does not come back.")]
    bulk: Annotated[bool, Meta(description="Whether a bulk operation may send it to many runs.")]
    current_run: Annotated[bool, Meta(description="Whether it is only for the current run of an instance.")]
    outcomes: Annotated[dict[str, str], Meta(description="What it may come to, in words, by outcome.")]
    refusals: Annotated[list[str], Meta(description="The reasons for which it is rejected.")]
    blocked_words: Annotated[dict[str, str], Meta(description="Why it is not possible now, in words, by reason.")]
    hidden: Annotated[list[str], Meta(description="The reasons for which a page does not offer it at all.")]
    parts: Annotated[list[str], Meta(description="The lists of a run whose entries accept it.")]


class CapabilitiesAnswer(Struct, frozen=True, kw_only=True):
    operator_commands: list[OperatorCommandAnswer]


class RepairAnswer(CommandAnswer, frozen=True, kw_only=True):
    """The receipt of a repair, and what it did. `repair_blocked_reason`: why nothing was done."""

    restored: Annotated[list[str], Meta(description="Tasks that were missing.")] | UnsetType = UNSET
    released: Annotated[list[str], Meta(description="Tasks whose worker is gone.")] | UnsetType = UNSET
    dropped: Annotated[list[str], Meta(description="Tasks that served nothing.")] | UnsetType = UNSET
    revived: Annotated[list[str], Meta(description="Blocked tasks that are tried again.")] | UnsetType = UNSET
    woken: Annotated[bool, Meta(description="Whether its wake was missing.")] | UnsetType = UNSET
    repair_blocked_reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


class ForkAnswer(CommandAnswer, frozen=True, kw_only=True):
    """The receipt of a fork or a rewind, with the new run, and its plan. A repeated request has no plan."""

    through_event: Annotated[int, Meta(description="The last event before the point.")] | UnsetType = UNSET
    kept_events: Annotated[int, Meta(description="How many events the new run has taken over.")] | UnsetType = UNSET
    repeats: (
        Annotated[list[RepeatedEffect], Meta(description="Work after the point that may be done again.")] | UnsetType
    ) = UNSET


_ANSWERS: dict[type[Any] | None, type[CommandAnswer]] = {Repaired: RepairAnswer, ForkReply: ForkAnswer}
"""By the type of the reply."""

Act = Callable[[Server, HttpRequest], Coroutine[Any, Any, CommandAnswer]]


@cache
def body_of(command: OperatorCommand) -> type[CommandBody]:
    """The struct of a command's body: a reason, a request id, and the fields of its declaration."""
    more = [
        (field.name, (dict[str, Any] | None) if field.json else (str | None), None)
        for field in command.fields
        if field is not REASON
    ]
    if not more:
        return CommandBody
    made = defstruct(f"{command.request}Body", more, bases=(CommandBody,), module=__name__, frozen=True, kw_only=True)
    return cast(type[CommandBody], made)


@cache
def answer_of(command: OperatorCommand) -> type[CommandAnswer]:
    """The struct of a command's answer: its receipt, and the fields of its declaration."""
    base = _ANSWERS.get(command.reply, CommandAnswer)
    if not command.fields:
        return base
    more = [
        (field.name, (dict[str, Any] | None | UnsetType) if field.json else (str | None | UnsetType), UNSET)
        for field in command.fields
    ]
    made = defstruct(f"{command.request}Answer", more, bases=(base,), module=__name__, frozen=True, kw_only=True)
    return cast(type[CommandAnswer], made)


def _handler(command: OperatorCommand) -> Act:
    body_type, answer_type = body_of(command), answer_of(command)

    async def act(server: Server, request: HttpRequest) -> CommandAnswer:
        body = request.decode(body_type)
        given: dict[str, Any] = {
            field.name: request.params.get(field.name) or getattr(body, field.name) for field in command.fields
        }
        texts: dict[str, Any] = {field.name: _text(field, given[field.name]) for field in command.fields}
        asked = tell.OPERATOR[command.name](**addressed(request, body.request_id), **texts)
        reply: Any = await server.api.call(asked)
        work: dict[str, Any] = {}
        if isinstance(reply, Repaired) and reply.work is not None:
            work = msgspec.to_builtins(reply.work)
        elif isinstance(reply, ForkReply) and reply.plan is not None:
            plan = reply.plan
            work = {
                "through_event": plan.through_event,
                "kept_events": plan.kept_events,
                "repeats": plan.repeats,
            }
        return answer_type(**accepted(request, command_of(reply), body.request_id), **work, **given)

    act.__name__ = command.name
    act.__doc__ = command.about()
    return act


def _text(field: CommandField, given: Any) -> str | None:
    return msgspec.json.encode(given).decode() if field.json and given is not None else given


def _of_repair(act: Act) -> Act:
    async def repair(server: Server, request: HttpRequest) -> CommandAnswer:
        try:
            return await act(server, request)
        except HistoryDamaged as damage:
            # A damaged history can neither be repaired from nor recorded to.
            return RepairAnswer(
                workflow_id=request.params["workflow_id"],
                namespace=request.namespace,
                outcome="repair_not_needed",
                repair_blocked_reason="unsupported_history",
                message=str(damage),
            )

    repair.__doc__ = act.__doc__
    return repair


HANDLERS: dict[str, Act] = {name: _handler(command) for name, command in OPERATOR_COMMANDS.items()}
"""By the name of the command."""

HANDLERS[Repair.command_type] = _of_repair(HANDLERS[Repair.command_type])


def routes_of(command: OperatorCommand, paths: Iterable[str], plane: Plane) -> Iterator[Route]:
    """The routes of a command under the paths of an instance and of its runs."""
    parts = [f"/{field.part}/{{{field.name}}}" for field in command.fields if field.part is not None]
    for path in paths:
        for part in ("", *parts):
            yield Route(
                "POST",
                f"{path}{part}/{command.verb}",
                HANDLERS[command.name],
                plane,
                ROLES[command.role],
                command.name if plane == "control" else None,
                body=body_of(command),
                told=answer_of(command),
            )


def shown_command(command: OperatorCommand) -> OperatorCommandAnswer:
    return OperatorCommandAnswer(
        name=command.name,
        verb=command.verb,
        action=command.able,
        label=command.label,
        help=command.about(),
        more=command.more,
        fields=[CommandFieldAnswer(name=field.name, help=field.help, part=field.part) for field in command.fields],
        role=command.role,
        danger=command.danger,
        bulk=command.bulk,
        current_run=command.current_run,
        outcomes={name: outcome.words for name, outcome in command.outcomes.items()},
        refusals=list(command.refusals),
        blocked_words=dict(command.blocked_words),
        hidden=sorted(command.hidden),
        parts=list(command.parts),
    )


async def capabilities(server: Server, request: HttpRequest) -> CapabilitiesAnswer:
    """The operator commands of this server: their names, labels, fields, outcomes and refusals."""
    return CapabilitiesAnswer(operator_commands=[shown_command(command) for command in OPERATOR_COMMANDS.values()])


ROUTES = [
    Route("GET", "/api/capabilities", capabilities, "discovery", READER),
    *(route for command in OPERATOR_COMMANDS.values() for route in routes_of(command, RUN_PATHS, "control")),
]
