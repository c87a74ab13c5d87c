"""Forks and rewinds: the shell reads the history that they begin with, and the kernel decides them.

A fork is decided by the instance that it starts, a rewind by the instance whose run it closes. A history only grows, so
what was read of it stays true; a rewind whose run has moved on meanwhile is decided again with what was added.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances
from backstay.engine.requests.earlier_runs import earlier_run
from backstay.engine.requests.workflow_commands import Payloads
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.fork import Fork, ForkPlan, ForkReply, Rewind, plan_of
from backstay.kernel.features.instance_commands import NOT_LOOKED_AT
from backstay.kernel.features.start import check_id, started_of
from backstay.kernel.message import Refused
from backstay.protocol import commands as tell
from backstay.protocol.requests import Request

TRIES = 100
"""How often a rewind is decided while its run moves on."""

ID_MAX = 191
CODES = ("current", "same")


class SourceRun(NamedTuple):
    """The run that is forked or rewound."""

    key: int
    row: RunRow
    history: list[Recorded]


class Forks:
    def __init__(self, engine: Engine, instances: Instances, payloads: Payloads) -> None:
        self._engine = engine
        self._instances = instances
        self._payloads = payloads
        self.table: dict[type[Request[Any]], Callable[[Any], Awaitable[Any]]] = {
            tell.OPERATOR[Fork.command_type]: self.fork,
            tell.OPERATOR[Rewind.command_type]: self.rewind,
            tell.PlanFork: self.plan,
        }

    async def plan(self, request: tell.PlanFork) -> ForkPlan:
        source = await self._source(request)
        return plan_of(
            self._engine.machine,
            source.history,
            request.at,
            self._given(request.set),
            workflow_id=request.workflow_id,
            run_id=source.row.run_id,
        )

    async def fork(self, request: Any) -> ForkReply:
        source = await self._source(request)
        new_id = _new_id(request, self._engine)
        key = await self._engine.key_of(request.namespace, new_id)
        message = Fork(
            from_workflow_id=request.workflow_id,
            named_run_id=request.run_id,
            new_id=request.new_id,
            request_id=request.request_id,
            retained=None
            if key is None or request.fresh
            else await self._instances.retained(key, Fork.command_type, request.request_id),
            **self._asked(request, source),
        )
        return await self._instances.address(request.namespace, new_id, message)

    async def rewind(self, request: Any) -> ForkReply:
        for _ in range(TRIES):
            source = await self._source(replace(request, run_id=None))
            message = Rewind(
                run_id=request.run_id,
                earlier=await earlier_run(self._engine, source.key, request),
                request_id=request.request_id,
                retained=await self._instances.retained(
                    source.key, Rewind.command_type, None if request.fresh else request.request_id
                ),
                **self._asked(request, source),
            )
            try:
                return await self._instances.submit(source.key, message)
            except Refused as refusal:
                if refusal.reason != NOT_LOOKED_AT:
                    raise
        raise Refused(
            "run_is_busy", f"the run of workflow {request.workflow_id!r} does not stand still; pause it first"
        )

    async def _source(self, request: Any) -> SourceRun:
        """The run that a request names, or else the current one, with its history."""
        key = await self._instances.key(request.namespace, request.workflow_id)
        store = self._engine.store
        if request.run_id is None:
            opening = await store.opening(key)
            row = None if opening is None else opening.run
            if row is None:
                raise Refused("instance_not_started", f"workflow {request.workflow_id!r} has not been started")
        else:
            row = await store.run(request.namespace, request.run_id)
            if row is None or row.workflow != key:
                why = f"workflow {request.workflow_id!r} has no run {request.run_id!r}"
                raise Refused("run_not_found", why, run_id=request.run_id)
        return SourceRun(key, row, await store.history(row.key))

    def _asked(self, request: Any, source: SourceRun) -> dict[str, Any]:
        code = request.code or CODES[0]
        if code not in CODES:
            raise Refused("invalid_code", f"code is one of {', '.join(CODES)}, not {code!r}", field="code")
        started = started_of(source.history)
        if started is None:
            raise Refused("run_not_started", f"the history of run {source.row.run_id} does not begin with its start")
        routing, definition = started.routing, None
        if code == "current":
            routing, definition = self._engine.define(replace(routing, compatibility=None), started.workflow_type)
        return {
            "at": request.at,
            "set": self._given(request.set),
            "history": source.history,
            "code": request.code,
            "from_run_id": source.row.run_id,
            "routing": routing,
            "definition": definition,
            "reason": request.reason,
            "source": request.source,
            "context": request.context or self._engine.origin,
        }

    def _given(self, text: str | None) -> dict[int, bytes | None]:
        """The results that replace those of steps, encoded."""
        if text is None:
            return {}
        try:
            given: Any = json.loads(text)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise _invalid_set("it is no JSON object")
        found: dict[int, bytes | None] = {}
        for step, result in cast(dict[str, Any], given).items():
            if not (step.isascii() and step.isdecimal() and len(step) < 10):
                raise _invalid_set(f"{step!r} is no step")
            found[int(step)] = None if result is None else self._payloads.encode(result)
        return found


def _invalid_set(why: str) -> Refused:
    return Refused("invalid_set", f'set is a JSON object of results by step, such as {{"3": "ok"}}: {why}', field="set")


def _new_id(request: Any, engine: Engine) -> str:
    """The id of the new instance. One that is made is the same for every repetition of the request."""
    if request.new_id is not None:
        check_id(request.new_id)
        return request.new_id
    once = engine.world.ids.ulid() if request.request_id is None else request.request_id
    end = f"-fork-{sha256(once.encode()).hexdigest()[:10]}"
    return request.workflow_id[: ID_MAX - len(end)] + end
