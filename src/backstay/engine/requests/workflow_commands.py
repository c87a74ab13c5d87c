"""Commands to running workflows: signals, updates, queries and the operator's commands become messages or queries.

Payloads are opaque to the engine. Its host supplies `Payloads`, because arguments are checked against contracts as values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances, resolver, start_message
from backstay.engine.core.waiters import Waiter
from backstay.engine.requests.earlier_runs import earlier_run
from backstay.engine.requests.queries import Queries
from backstay.engine.requests.signal_barrier import SignalBarrier
from backstay.engine.requests.update_lookup import find_update
from backstay.kernel import contract
from backstay.kernel.event import Recorded
from backstay.kernel.features import pause
from backstay.kernel.features.instance_commands import NOT_LOOKED_AT, CommandReply
from backstay.kernel.features.message_stream import MessageAppend, MessageReply, request_id
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.repair import Repair
from backstay.kernel.features.signal import DeliverSignal
from backstay.kernel.features.signal_with_start import SignalAndStart, SignalWithStartReply
from backstay.kernel.features.start import Identity, WorkflowStarted
from backstay.kernel.features.update import PENDING, Update, topic
from backstay.kernel.message import Message, Refused
from backstay.kernel.operator_command import OperatorCommand
from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.kernel.state import Instance
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, run_of
from backstay.kernel.views.liveness import liveness, wait_of
from backstay.protocol import commands as tell
from backstay.protocol.requests import Request

R = TypeVar("R")


class Payloads(Protocol):
    """The encoding of values, supplied by the host of the engine."""

    def decode(self, blob: bytes) -> Any: ...
    def encode(self, value: Any) -> bytes: ...


class Arguments:
    """A call's arguments: encoded for history, as values for the contract, and the errors found so far."""

    def __init__(self, blob: bytes | None, values: list[Any], errors: contract.Errors) -> None:
        self.blob = blob
        self.values = values
        self.errors = errors


class WorkflowCommands:
    def __init__(
        self,
        engine: Engine,
        instances: Instances,
        payloads: Payloads,
        *,
        guest: bool,
        unoffered: Callable[[Task], bool],
    ) -> None:
        self._engine = engine
        self._is_unoffered = unoffered
        self._instances = instances
        self._payloads = payloads
        self._signals = SignalBarrier(engine, instances, guest=guest)
        self._queries = Queries(engine, instances, self._signals)
        self.table: dict[type[Request[Any]], Callable[[Any], Awaitable[Any]]] = {
            tell.SignalWorkflow: self.signal,
            tell.SignalWithStart: self.signal_with_start,
            tell.AppendMessage: self.append_message,
            tell.UpdateWorkflow: self.update,
            tell.GetUpdate: self.get_update,
            tell.QueryWorkflow: self.query,
            **{request: partial(self.operate, OPERATOR_COMMANDS[name]) for name, request in tell.OPERATOR.items()},
        }
        self._facts: dict[str, Callable[[int], Awaitable[dict[str, Any]]]] = {Repair.command_type: self._of_repair}

    # -- signals

    def signal(self, request: tell.SignalWorkflow) -> Awaitable[CommandReply]:
        key = self._engine.cache.named(request.namespace, request.workflow_id)
        may_be_repeated = request.request_id is not None and not request.fresh
        if key is None or request.run_id is not None or request.named is not None or may_be_repeated:
            return self._signal(request)
        # Nothing has to be read first, so this signal joins the open batch.
        message = DeliverSignal(
            name=request.signal_name,
            arguments=request.arguments,
            values=self._values(request.arguments),
            request_id=request.request_id,
            source=request.source,
            context=request.context or self._engine.origin,
        )
        return self._instances.submit(key, message)

    async def _signal(self, request: tell.SignalWorkflow) -> CommandReply:
        key = await self._target(request)
        given = await self._arguments(key, request, request.signal_name, "declared_signal_contracts")
        return await self._command(
            request,
            "signal",
            DeliverSignal,
            name=request.signal_name,
            arguments=given.blob,
            values=given.values,
            errors=given.errors,
        )

    async def signal_with_start(self, request: tell.SignalWithStart) -> SignalWithStartReply:
        start = start_message(request.start, self._engine)
        key = await self._engine.key_of(start.namespace, start.workflow_id)
        request_id = None if request.fresh else request.request_id
        before = None if key is None else await self._instances.retained(key, "signal", request_id)
        signal = DeliverSignal(
            name=request.signal_name,
            arguments=request.arguments,
            values=self._values(request.arguments),
            request_id=request.request_id,
            source=request.start.source,
            context=start.context,
            retained=before,
        )
        message = SignalAndStart(start=start, signal=signal)
        return await self._instances.address(start.namespace, start.workflow_id, message)

    async def append_message(self, request: tell.AppendMessage) -> MessageReply:
        id = request_id(request.stream_name, request.message_id)
        request = replace(
            request, request_id=id, fresh=False
        )  # the sender has chosen the id, so this may be a repetition
        return await self._command(
            request,
            MessageAppend.command_type,
            MessageAppend,
            name=request.stream_name,
            message_id=request.message_id,
            arguments=request.arguments,
        )

    # -- updates

    async def update(self, request: tell.UpdateWorkflow) -> tell.UpdateStatus:
        if request.wait_for not in ("accepted", "completed"):
            raise Refused(
                "invalid_wait_for", f"wait for 'accepted' or 'completed', not {request.wait_for!r}", field="wait_for"
            )
        key = await self._target(request)
        given = await self._arguments(key, request, request.update_name, "declared_update_contracts")
        end: asyncio.Future[Recorded | None] = self._engine.world.future()
        command = await self._ask_for_update(key, request, given, end)
        status = tell.UpdateStatus(
            workflow_id=command.workflow_id,
            run_id=command.run_id,
            update_id=command.update_id,
            update_name=request.update_name,
            update_status="accepted" if command.accepted else "rejected",
            command=command,
            wait_for=request.wait_for,
        )
        if command.update_id is None or not command.accepted:
            return status
        if request.wait_for == "accepted":
            self._engine.waiters.remove(key, topic(command.update_id), end)
            return status
        if command.repeated:
            return await self._follow(request.namespace, key, status, command.update_id, request.wait_seconds)
        completed = await self._engine.waiters.wait_on(key, topic(command.update_id), end, request.wait_seconds)
        return _stands(status, completed, request.wait_seconds)

    async def _ask_for_update(
        self, key: int, request: tell.UpdateWorkflow, given: Arguments, end: asyncio.Future[Recorded | None]
    ) -> CommandReply:
        """Validate and submit an update; with `after_signals`, after the signals that were accepted before it.

        A signal that arrives during the validation makes the kernel refuse the update (`PENDING`), and it is validated again.
        When the code does not run now, or the time is over, the update is submitted anyway, and the kernel rejects it on record.
        """
        ticks = self._engine.world.ticks
        wait = tell.SIGNAL_WAIT if request.wait_seconds is None else min(request.wait_seconds, tell.SIGNAL_WAIT)
        until = ticks() + round(wait * SECOND)
        patient = request.after_signals
        while True:
            addressed = await self._addressed(key, request, "update")
            try:
                missing, objection = None, None
                if addressed["retained"] is None and not given.errors:
                    missing, objection = await self._queries.would_take(
                        key, request.update_name, given.blob, patient=patient
                    )
                    addressed = await self._addressed(key, request, "update")  # again: the validator took a while
                message = Update(
                    name=request.update_name,
                    arguments=given.blob,
                    values=given.values,
                    errors=given.errors,
                    missing=missing,
                    objection=objection,
                    patient=patient,
                    **addressed,
                )
                return await self._submit_update(request.namespace, key, message, end)
            except Refused as refusal:
                if refusal.reason == NOT_LOOKED_AT:
                    continue
                if refusal.reason != PENDING or not patient:
                    raise
            settled = await self._signals.wait(key, max(until - ticks(), 0) / SECOND)
            patient = not settled.stands and ticks() < until

    def _submit_update(
        self, namespace: str, key: int, message: Update, end: asyncio.Future[Recorded | None]
    ) -> asyncio.Future[CommandReply]:
        """Submit an update. Its waiter is added in the reply, since the end of the update may be in the same commit."""
        future: asyncio.Future[CommandReply] = self._engine.world.future()
        resolve = resolver(future)

        def accepted(command: CommandReply | None, error: BaseException | None) -> None:
            if command is not None and command.update_id is not None and command.accepted and not command.repeated:
                id = command.update_id
                watcher = Waiter(lambda entry: entry, lambda: self._look_for(namespace, key, id), end)
                self._engine.waiters.add(key, topic(id), watcher)
            resolve(command, error)

        self._engine.submit(key, message, accepted)
        return future

    async def get_update(self, request: tell.GetUpdate) -> tell.UpdateStatus:
        key = await self._instances.key(request.namespace, request.workflow_id)
        update = await find_update(self._engine, self._instances, request.namespace, key, request.update_id)
        if update is None:
            raise Refused(
                "update_not_found",
                f"workflow {request.workflow_id!r} has no update {request.update_id!r}",
                update_id=request.update_id,
            )
        status = tell.UpdateStatus(
            workflow_id=request.workflow_id,
            run_id=run_of(request.update_id),
            update_id=request.update_id,
            update_name=update.name,
            update_status="accepted",
        )
        if update.completed is not None:
            return _ended(status, update.completed)
        if request.wait_seconds == 0:
            return status
        followed = await self._follow(request.namespace, key, status, request.update_id, request.wait_seconds)
        return replace(followed, wait_for="status")

    async def _follow(
        self, namespace: str, key: int, status: tell.UpdateStatus, update_id: str, seconds: float | None
    ) -> tell.UpdateStatus:
        """Wait for the end of an update. After `seconds` the answer is its status so far."""
        completed = await self._engine.waiters.wait(
            key, topic(update_id), lambda entry: entry, lambda: self._look_for(namespace, key, update_id), seconds
        )
        return _stands(status, completed, seconds)

    async def _look_for(self, namespace: str, key: int, update_id: str) -> Recorded | None:
        update = await find_update(self._engine, self._instances, namespace, key, update_id)
        return None if update is None else update.completed

    # -- queries

    async def query(self, request: tell.QueryWorkflow) -> tell.QueryResult:
        key = await self._instances.key(request.namespace, request.workflow_id)
        return await self._queries.query(key, request, self._listed)

    # -- the operator's commands

    async def operate(self, command: OperatorCommand, request: tell.OperatorRequest) -> Any:
        given = {field.name: getattr(request, field.name) for field in command.fields}
        facts = self._facts.get(command.name)
        if facts is not None:
            given |= await facts(await self._target(request))
        return await self._command(request, command.name, command.message, **given)

    async def _of_repair(self, key: int) -> dict[str, Any]:
        """The facts that a repair needs beside the instance: the live workers, and the tasks that the lanes do not
        offer."""
        instance = await self._instances.committed(key)
        now = self._engine.world.now()
        # A row that is missing on disk may still be in memory. So the instance is read again, and repaired as it is on disk.
        self._engine.reload(key)
        return {
            "work": Reconcile(
                incarnation=await self._living(key),
                force=True,
                unoffered=self._unoffered(instance),
            ),
            "liveness_state": None if instance.run is None else liveness(self._engine.machine, instance, now),
            "wait_kind": None if instance.run is None else wait_of(instance).kind,
        }

    def _unoffered(self, instance: Instance) -> frozenset[str]:
        if instance.run is None or not pause.allows(instance.run):
            return frozenset()  # tasks of a paused run are in no lane on purpose
        return frozenset(task.id for task in instance.tasks.values() if self._is_unoffered(task))

    async def _living(self, key: int) -> str | None:
        """The incarnation whose in-process leases are alive. None: another process owns the instance, and grants such
        leases meanwhile."""
        if not self._engine.owns(key) and await self._engine.store.has_engine():
            return None
        return self._engine.incarnation

    # -- inside

    async def _command(
        self, request: tell.ToInstance[Any], command_type: str, message: Callable[..., Message], **more: Any
    ) -> Any:
        key = await self._target(request)
        while True:
            addressed = await self._addressed(key, request, command_type)
            try:
                return await self._instances.submit(key, message(**addressed, **more))
            except Refused as refusal:
                if refusal.reason != NOT_LOOKED_AT:
                    raise  # otherwise the run that it names has been continued, or the instance read again, meanwhile

    async def _target(self, request: tell.ToInstance[Any]) -> int:
        key = await self._instances.key(request.namespace, request.workflow_id)
        if request.run_id is not None:
            located = await self._engine.store.locate(request.namespace, request.run_id)
            if located is None or located.workflow != key:
                raise Refused(
                    "run_not_found",
                    f"workflow {request.workflow_id!r} has no run {request.run_id!r}",
                    run_id=request.run_id,
                )
        return key

    async def _addressed(self, key: int, request: tell.ToInstance[Any], command_type: str) -> dict[str, Any]:
        command = OPERATOR_COMMANDS.get(command_type)
        with_history = command is not None and not command.current_run  # it changes the run that it names
        return {
            "run_id": request.run_id,
            "earlier": await earlier_run(self._engine, key, request, with_history=with_history),
            "request_id": request.request_id,
            "source": request.source,
            "context": request.context or self._engine.origin,
            "retained": await self._instances.retained(
                key, command_type, None if request.fresh else request.request_id
            ),
        }

    async def _arguments(self, key: int, request: Any, name: str, contracts: str) -> Arguments:
        if request.named is None:
            return Arguments(request.arguments, self._values(request.arguments), {})
        instance = await self._instances.committed(key)
        started = None if instance.run is None else instance.run.part(Identity).started
        return self._arranged(started, contracts, name, request.named)

    def _listed(self, started: WorkflowStarted, name: str, request: tell.QueryWorkflow) -> Arguments:
        if request.named is not None:
            return self._arranged(started, "declared_query_contracts", name, request.named)
        return Arguments(request.arguments, self._values(request.arguments), {})

    def _arranged(self, started: WorkflowStarted | None, contracts: str, name: str, named: dict[str, Any]) -> Arguments:
        """Named arguments in the order of the recorded contract."""
        declaration = None if started is None else contract.find(getattr(started, contracts), name)
        if declaration is None:
            return Arguments(
                None, [], {contract.SURPLUS: [f"{name!r} has no contract to put named arguments in order"]}
            )
        values, errors = contract.arrange(declaration, named)
        return Arguments(None if errors else self._payloads.encode(values), values, errors)

    def _values(self, blob: bytes | None) -> list[Any]:
        if blob is None:
            return []
        decoded = self._payloads.decode(blob)
        return decoded if isinstance(decoded, list) else [decoded]  # pyright: ignore[reportUnknownVariableType]


def _stands(status: tell.UpdateStatus, completed: Recorded | None, seconds: float | None) -> tell.UpdateStatus:
    if completed is not None:
        return _ended(status, completed)
    return replace(status, wait_timed_out=True, wait_timeout_seconds=seconds)


def _ended(status: tell.UpdateStatus, completed: Recorded) -> tell.UpdateStatus:
    event: Any = completed.event
    failed = event.outcome != "update_completed"
    return replace(status, update_status="failed" if failed else "completed", event=completed)
