"""Instances: how the API finds them by name or by an id of one of their runs, reads them, and submits to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from backstay.engine.core.engine import Engine
from backstay.kernel.decision import CommandRecord
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.standalone import ACTIVITY_DEFINITION, StartActivity
from backstay.kernel.features.start import Start, valid_traceparent
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Instance
from backstay.kernel.values import run_of
from backstay.protocol.requests import StartWorkflow
from backstay.store import Loaded, Located

REMEMBERED = 20_000  # runs whose instance is kept in memory


class Instances:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._located: dict[tuple[str, str], Located] = {}

    async def key(self, namespace: str, workflow_id: str) -> int:
        key = await self._engine.key_of(namespace, workflow_id)
        if key is None:
            raise Refused(
                "workflow_not_found",
                f"there is no workflow {workflow_id!r} in namespace {namespace!r}",
                workflow_id=workflow_id,
            )
        return key

    async def located(self, namespace: str, derived_id: str) -> Located:
        """The run that a task, attempt or other id was derived from. A run of another namespace is not found."""
        key = namespace, run_of(derived_id)
        located = self._located.get(key)
        if located is None:
            located = await self._engine.store.locate(*key)
            if located is None:
                raise Refused("task_not_found", f"nothing is known of {derived_id!r}", task_id=derived_id)
            if len(self._located) >= REMEMBERED:
                self._located.clear()
            self._located[key] = located  # a run never moves to another instance
        return located

    async def key_of(self, namespace: str, derived_id: str) -> int:
        return (await self.located(namespace, derived_id)).workflow

    async def load(self, key: int) -> Loaded | None:
        """Read the rows of an instance. If its history is damaged, its state in memory is dropped, so that nothing builds on it."""
        try:
            return await self._engine.store.load(key)
        except HistoryDamaged:
            self._engine.reload(key)
            raise

    async def committed(self, key: int) -> Instance:
        loaded = await self.load(key)
        if loaded is None:
            raise Refused("workflow_not_found", "no such workflow", key=key)
        return self._engine.loading.restore(loaded)

    async def retained(self, key: int, command_type: str, request_id: str | None) -> CommandRecord | None:
        return None if request_id is None else await self._engine.retained(key, command_type, request_id)

    async def retained_start(self, message: Start) -> CommandRecord | None:
        key = await self._engine.key_of(message.namespace, message.workflow_id)
        return None if key is None else await self.retained(key, "start", message.request_id)

    def submit(self, key: int, message: Message) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._engine.world.future()
        self._engine.submit(key, message, resolver(future))
        return future

    def address(self, namespace: str, workflow_id: str, message: Message) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._engine.world.future()
        self._engine.address(namespace, workflow_id, message, resolver(future))
        return future


def start_message(request: StartWorkflow, engine: Engine, name: Callable[[str], str] | None = None) -> Start:
    """The kernel's message for a start. A workflow id is made if the request has none: by `name`, for a namespace."""
    workflow_id = request.workflow_id
    if workflow_id is None:
        workflow_id = engine.world.ids.ulid() if name is None else name(request.namespace)
    activity = request.activity
    kind = Start if activity is None else partial(StartActivity, activity=activity)
    return kind(
        namespace=request.namespace,
        workflow_id=workflow_id,
        workflow_type=request.workflow_type,
        arguments=request.arguments,
        routing=request.routing,
        business_key=request.business_key,
        visibility_labels=request.visibility_labels,
        memo=request.memo,
        search_attributes=request.search_attributes,
        execution_timeout_seconds=request.execution_timeout_seconds,
        run_timeout_seconds=request.run_timeout_seconds,
        duplicate_policy=request.duplicate_policy,
        definition=request.definition if activity is None else ACTIVITY_DEFINITION,
        request_id=request.request_id,
        source=request.source,
        traceparent=valid_traceparent(request.traceparent) if request.traceparent else None,
        context=request.context or engine.origin,
    )


def resolver(future: asyncio.Future[Any]) -> Callable[[Any, BaseException | None], None]:
    def resolve(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    return resolve
