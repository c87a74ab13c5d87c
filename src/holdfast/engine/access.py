"""How operations reach an instance: by name, by an id derived from one of its runs, as it is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.engine.engine import Engine
from holdfast.kernel.message import Message, Refused
from holdfast.kernel.state import Workflow
from holdfast.kernel.values import run_of


class Access:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def key(self, namespace: str, workflow_id: str) -> int:
        key = self._engine.cache.named(namespace, workflow_id)
        if key is None:
            key = await self._engine.store.find(namespace, workflow_id)
        if key is None:
            raise Refused(
                "workflow_not_found",
                f"there is no workflow {workflow_id!r} in namespace {namespace!r}",
                workflow_id=workflow_id,
            )
        return key

    async def key_of(self, derived_id: str) -> int:
        found = await self._engine.store.locate(run_of(derived_id))
        if found is None:
            raise Refused("task_not_found", f"nothing is known of {derived_id!r}", task_id=derived_id)
        return found[0]

    async def committed(self, key: int) -> Workflow:
        loaded = await self._engine.store.load(key)
        if loaded is None:
            raise Refused("workflow_not_found", "no such workflow", key=key)
        return self._engine.loading.restore(loaded)

    def submit(self, key: int, message: Message) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._engine.world.future()
        self._engine.submit(key, message, resolver(future))
        return future

    def address(self, namespace: str, workflow_id: str, message: Message) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._engine.world.future()
        self._engine.address(namespace, workflow_id, message, resolver(future))
        return future


def resolver(future: asyncio.Future[Any]) -> Callable[[Any, BaseException | None], None]:
    def resolve(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    return resolve
