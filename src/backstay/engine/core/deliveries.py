"""Deliveries: a stored send becomes the message that its receiver decides."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from backstay.engine.core.cache import Reply
from backstay.engine.core.idempotency import CommandLog, with_record
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.message import Message, Refused
from backstay.kernel.send import Send
from backstay.kernel.values import Routing
from backstay.store.errors import StoreError

log = logging.getLogger("backstay.engine")


class Receives(CommandLog, Protocol):
    """The part of an engine that takes sends."""

    define: Callable[[Routing, str], tuple[Routing, RecordedDefinition | None]]

    def address(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None: ...
    async def key_of(self, namespace: str, workflow_id: str) -> int | None: ...


def delivery(engine: Receives, send: Send) -> Deliver:
    """The message that delivers a send, with the definition of the workflow that it starts, if it starts one."""
    content = send.message.with_definition(engine.define)
    return Deliver(send=send if content is send.message else replace(send, message=content))


def needs_records(message: Deliver) -> bool:
    """Whether it causes a command, or asks after earlier ones, and so is decided together with their records."""
    return message.idempotency_key() is not None or bool(message.send.message.asked_request_ids)


async def with_records(engine: Receives, message: Deliver) -> Message:
    """The message with the records of the commands that it causes or asks after."""
    send = message.send
    key = await engine.key_of(send.namespace, send.workflow_id)
    if key is None:
        return message
    request_ids = send.message.asked_request_ids
    if not request_ids:
        return await with_record(engine, key, message)
    return replace(
        message, known=frozenset([id for id in request_ids if await engine.retained(key, "signal", id) is not None])
    )


def hand_over(engine: Receives, send: Send, message: Message, reply: Reply) -> None:
    """Let the receiver decide a delivery. If the database refuses the rows of the new instance, the sender gets the
    error: otherwise it would wait forever for an instance that can never exist."""

    def tell(value: object, error: BaseException | None) -> None:
        if error is None or isinstance(error, StoreError | Refused) or not send.message.creates:
            reply(value, error)
            return
        log.error("workflow %s cannot be created; its sender gets the error: %r", send.workflow_id, error)
        try:
            engine.address(send.namespace, send.workflow_id, Deliver(send=send, unwritable=str(error)), reply)
        except StoreError as unavailable:
            reply(None, unavailable)

    engine.address(send.namespace, send.workflow_id, message, tell)


async def take(engine: Receives, send: Send) -> None:
    """Deliver a send that another process has brought. Returns when its receiver has taken it; raises as that refuses it."""
    message = delivery(engine, send)
    prepared = await with_records(engine, message) if needs_records(message) else message
    taken = engine.world.future()

    def resolve(value: object, error: BaseException | None) -> None:
        if taken.done():
            return
        if error is None:
            taken.set_result(None)
        else:
            taken.set_exception(error)

    hand_over(engine, send, prepared, resolve)
    await taken
