"""Idempotency: a message with a request id is decided together with the stored record of its first attempt.

So a caller may repeat a request after a lost answer, and gets the first answer. Reports of workers have no request id; the
events that a report made remember which lease made them, and a repeated report is answered from those.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from backstay.engine.core.cache import Reply
from backstay.engine.core.world import World
from backstay.kernel.decision import CommandRecord
from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import (
    ActivityCompleted,
    ActivityFailed,
    ActivityRetryScheduled,
    AttemptReply,
)
from backstay.kernel.features.workflow_task import TaskReply
from backstay.kernel.message import Message


class CommandLog(Protocol):
    """The part of an engine that keeps the records of commands and decides messages."""

    world: World

    def submit(self, key: int, message: Message, reply: Reply | None = None, *, again: bool = True) -> None: ...
    async def retained(self, key: int, command_type: str, request_id: str) -> CommandRecord | None: ...


class NamedCommandLog(CommandLog, Protocol):
    """The same, for instances by name: also for those that do not exist yet."""

    def address(self, namespace: str, workflow_id: str, message: Message, reply: Reply) -> None: ...
    async def key_of(self, namespace: str, workflow_id: str) -> int | None: ...


async def with_record(log: CommandLog, key: int, message: Message) -> Message:
    """The message, with the record of its first attempt if it may be a repetition."""
    return message if message.idempotency_key() is None else message.with_record(await record_of(log, key, message))


async def record_of(log: CommandLog, key: int, message: Message) -> CommandRecord | None:
    """The record that an earlier attempt of this message has left."""
    idempotency_key = message.idempotency_key()
    if idempotency_key is None:
        return None
    kinds, request_id = idempotency_key
    for kind in kinds:
        record = await log.retained(key, kind, request_id)
        if record is not None:
            return record
    return None


def submit_late(log: CommandLog, key: int, message: Message, reply: Reply | None) -> None:
    """Submit a message that was delayed, with its record: another attempt of it may have been committed meanwhile."""
    if message.idempotency_key() is None:
        log.submit(key, message, reply)
    else:
        log.world.spawn(_submit_with_record(log, key, message, reply), "backstay-recall")


async def _submit_with_record(log: CommandLog, key: int, message: Message, reply: Reply | None) -> None:
    try:
        log.submit(key, await with_record(log, key, message), reply)
    except Exception as error:
        if reply is not None:
            reply(None, error)


def address_late(log: NamedCommandLog, name: tuple[str, str], message: Message, reply: Reply) -> None:
    """The same for an instance that is perhaps only being created."""
    log.world.spawn(_address_with_record(log, name, message, reply), "backstay-again")


async def _address_with_record(log: NamedCommandLog, name: tuple[str, str], message: Message, reply: Reply) -> None:
    """The message that creates the instance may fail while the record is being read. Then it has another key or none,
    and a record that was found has never been written."""
    try:
        key = await log.key_of(*name)
        while key is not None:
            again = await with_record(log, key, message)
            now = await log.key_of(*name)
            if now == key:
                log.submit(key, again, reply)
                return
            key = now
        log.address(*name, message.with_record(None), reply)
    except Exception as error:
        reply(None, error)


# -- repeated reports of workers


def completed_task(
    history: Iterable[Recorded], task_id: str, owner: str, attempt: int, run_id: str, status: str
) -> TaskReply | None:
    """The outcome of this attempt's completion, if history has one."""
    for entry in history:
        context = entry.context
        if context.task_id == task_id and context.owner == owner and context.attempt == attempt:
            return TaskReply(
                task_id=task_id,
                workflow_task_attempt=attempt,
                outcome="completed",
                run_id=run_id,
                run_status=status,
                reason="already_recorded",
            )
    return None


def ended_attempt(history: Iterable[Recorded], attempt_id: str, owner: str | None) -> AttemptReply | None:
    """The outcome that this attempt of an activity has reported before. `owner` None: by any worker."""
    for entry in history:
        match entry.event:
            case ActivityRetryScheduled(retry_after_attempt_id=id) if id == attempt_id:
                outcome = "retry_scheduled"
            case ActivityCompleted(activity_attempt_id=id) if id == attempt_id:
                outcome = "completed"
            case ActivityFailed(activity_attempt_id=id) if id == attempt_id:
                outcome = "failed"
            case _:
                continue
        if owner in (None, entry.context.owner) and entry.context.task_id is not None:
            return AttemptReply(
                task_id=entry.context.task_id,
                activity_attempt_id=attempt_id,
                outcome=outcome,
                reason="already_recorded",
            )
    return None
