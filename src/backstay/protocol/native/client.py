"""The messages between our own clients and server: each request under its name, as it is.

    POST /api/call/start-workflow   {"workflow_type": "order", ...}   ->   {"workflow_id": ..., "run_id": ...}

Calls that are made at the same moment go in one request; each is answered as soon as it is done:

    POST /api/calls   {"calls": [["start-workflow", {...}], ["signal-workflow", {...}]]}   ->   [[1, {...}]] [[0, {...}]]

A refusal keeps its reason and fields, so a caller cannot tell a server from an engine in its own process. A request that
may be sent again carries a request id; `X-Backstay-Again` says that an earlier try may have arrived.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.fork import ForkPlan
from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.features.message_stream import MessageReply
from backstay.kernel.features.schedule import Schedule, ScheduleReply
from backstay.kernel.features.signal_with_start import SignalWithStartReply
from backstay.kernel.features.start import ReserveReply, StartReply
from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.kernel.views.why import Why
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol import run_lists, schedules, streams
from backstay.protocol.native.events import WireEvent, pack, packed, unpack, unpacked

VERSION = 1
"""The version of the native protocol. A server refuses others."""

HEADER = "X-Backstay-Protocol"
AGAIN_HEADER = "X-Backstay-Again"
PATH = "/api/call/"
MANY = "/api/calls"
TOGETHER = 1000
"""Calls in one request at most."""

PATIENCE = 20.0
"""Seconds that a server lets a call wait before the client has to repeat it."""


class Refusal(Struct, frozen=True):
    """A refusal of the engine."""

    reason: str
    message: str
    fields: dict[str, Any] = {}


class BatchedCall(Struct, frozen=True, array_like=True, gc=False):
    """One of several calls."""

    verb: str
    request: Raw


class Calls(Struct, frozen=True):
    calls: Annotated[list[BatchedCall], Meta(min_length=1, max_length=TOGETHER)]


class BatchedReply(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The answer to the call at this place. `status`: as of a call that came alone."""

    place: int
    body: Raw
    status: int = 200


class _Result(Struct, frozen=True, omit_defaults=True):
    workflow_id: str
    run_id: str
    status: str | None
    closed_reason: str | None = None
    event: WireEvent | None = None


class _Update(Struct, frozen=True, omit_defaults=True):
    workflow_id: str
    run_id: str | None
    update_id: str | None
    update_name: str
    update_status: str
    command: CommandReply | None = None
    event: WireEvent | None = None
    wait_for: str = "status"
    wait_timed_out: bool = False
    wait_timeout_seconds: float | None = None


def _pack_result(found: ask.Result) -> _Result:
    event = None if found.event is None else packed(found.event)
    return _Result(found.workflow_id, found.run_id, found.status, found.closed_reason, event)


def _unpack_result(found: _Result) -> ask.Result:
    return ask.Result(
        workflow_id=found.workflow_id,
        run_id=found.run_id,
        status=found.status,
        closed_reason=found.closed_reason,
        event=None if found.event is None else unpacked(found.event),
    )


def _pack_update(found: tell.UpdateStatus) -> _Update:
    values: dict[str, Any] = {name: getattr(found, name) for name in found.__struct_fields__}
    values["event"] = None if found.event is None else packed(found.event)
    return _Update(**values)


def _unpack_update(found: _Update) -> tell.UpdateStatus:
    values: dict[str, Any] = {name: getattr(found, name) for name in found.__struct_fields__}
    values["event"] = None if found.event is None else unpacked(found.event)
    return tell.UpdateStatus(**values)


class _ScheduleEvent(Struct, frozen=True):
    id: str
    sequence: int
    entry: WireEvent


class _ScheduleHistory(Struct, frozen=True):
    events: list[_ScheduleEvent]
    more: bool


def _pack_schedule(found: schedules.ScheduleHistory) -> _ScheduleHistory:
    return _ScheduleHistory([_ScheduleEvent(e.id, e.sequence, packed(e.entry)) for e in found.events], found.more)


def _unpack_schedule(found: _ScheduleHistory) -> schedules.ScheduleHistory:
    events = [schedules.ScheduleEvent(id=e.id, sequence=e.sequence, entry=unpacked(e.entry)) for e in found.events]
    return schedules.ScheduleHistory(events=events, more=found.more)


class Verb(NamedTuple):
    """How one request and its reply cross the wire."""

    name: str
    request: type[ask.Request[Any]]
    decode_request: msgspec.json.Decoder[Any]
    answered: msgspec.json.Decoder[Any]
    pack: Callable[[Any], Any] | None
    unpack: Callable[[Any], Any] | None

    def encode_reply(self, reply: Any) -> bytes:
        return encode(reply if self.pack is None else self.pack(reply))

    def decode_reply(self, body: bytes) -> Any:
        reply = self.answered.decode(body)
        return reply if self.unpack is None else self.unpack(reply)


encode = msgspec.json.Encoder().encode
decode_said = msgspec.json.Decoder(list[BatchedReply]).decode

_PLAIN: dict[type[ask.Request[Any]], Any] = {
    ask.StartWorkflow: StartReply,
    ask.ReserveWorkflow: ReserveReply,
    ask.DescribeWorkflow: ask.Description,
    ask.ListWorkflows: list[RunRow],
    run_lists.SearchRuns: run_lists.FoundRuns,
    run_lists.CountRuns: run_lists.CountedRuns,
    ask.ExportHistory: str,
    ask.ExplainWorkflow: Why,
    tell.SignalWorkflow: CommandReply,
    tell.SignalWithStart: SignalWithStartReply,
    tell.AppendMessage: MessageReply,
    tell.QueryWorkflow: tell.QueryResult,
    tell.PlanFork: ForkPlan,
    **{request: OPERATOR_COMMANDS[name].reply or CommandReply for name, request in tell.OPERATOR.items()},
    schedules.CreateSchedule: ScheduleReply,
    schedules.UpdateSchedule: ScheduleReply,
    schedules.PauseSchedule: ScheduleReply,
    schedules.ResumeSchedule: ScheduleReply,
    schedules.TriggerSchedule: ScheduleReply,
    schedules.BackfillSchedule: ScheduleReply,
    schedules.DeleteSchedule: ScheduleReply,
    schedules.DescribeSchedule: Schedule,
    schedules.ListSchedules: schedules.SchedulePage,
    streams.AppendStream: streams.StreamAppended,
    streams.CloseStream: streams.StreamView,
    streams.DescribeStream: streams.StreamView,
    streams.ListStreams: list[streams.StreamView],
    streams.ReadStream: streams.StreamPage,
}


def _name(request: type[Any]) -> str:
    return "-".join(re.findall("[A-Z][a-z]+", request.__name__)).lower()


def verb(
    request: type[ask.Request[Any]],
    reply: Any,
    pack: Callable[[Any], Any] | None = None,
    unpack: Callable[[Any], Any] | None = None,
) -> Verb:
    """The verb of a request, with the type of its reply; `pack` and `unpack` if the reply has another shape on the wire."""
    return Verb(_name(request), request, msgspec.json.Decoder(request), msgspec.json.Decoder(reply), pack, unpack)


_ALL = (
    *(verb(request, reply) for request, reply in _PLAIN.items()),
    verb(ask.RunWorkflow, _Result, _pack_result, _unpack_result),
    verb(ask.AwaitResult, _Result, _pack_result, _unpack_result),
    verb(ask.GetHistory, list[WireEvent], pack, unpack),
    verb(tell.UpdateWorkflow, _Update, _pack_update, _unpack_update),
    verb(tell.GetUpdate, _Update, _pack_update, _unpack_update),
    verb(schedules.GetScheduleHistory, _ScheduleHistory, _pack_schedule, _unpack_schedule),
)
VERBS: dict[str, Verb] = {made.name: made for made in _ALL}
"""By name."""

OF: dict[type[ask.Request[Any]], Verb] = {made.request: made for made in _ALL}


def page(history: list[Recorded]) -> bool:
    """Whether this may be one page of several."""
    return len(history) == ask.PAGE_MAX
