"""Worker sessions: a series of activities that one worker runs, because it keeps something for them.

created → active → closed | expired (its time is over) | failed (its lease ran out) | orphaned (its worker is gone). The
state of a session follows from its entry, the clock and the workers; only creating, taking over, renewing and closing it are
written. A session never replaces the lease of an attempt: it says which worker may have the next one.

Several servers may match activities of one session at the same time. Each writes the session only if it is as it was read, so one of
them decides whose it is. An activity is sent to its worker when that is known; the others release theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.core.world import Alarm
from backstay.kernel.session import WorkerSession
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.http.errors import HttpError
from backstay.server.registries.registry import StoredRegistry
from backstay.server.workers.session_leases import SessionLeases
from backstay.server.workers.worker_registry import RegisteredWorker, WorkerRegistry
from backstay.store import Store
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.server")

MOST = 10_000  # sessions of a namespace: more are refused until some are forgotten
MOST_BYTES = 16 << 20  # of all sessions of a namespace, as JSON
ENDED_KEPT = 1000  # sessions of a namespace that were closed or have expired
TERMINAL = ("closed", "expired", "failed", "orphaned")
FAILURES = {"expired": "ttl_expired", "failed": "lease_expired", "orphaned": "worker_heartbeat_stale"}


class SessionHolder(Struct, frozen=True, kw_only=True):
    """The worker that holds a session."""

    worker_id: str
    task_queue: str
    status: str
    last_heartbeat_at: str | None
    is_stale: bool


class WorkerSessionAnswer(Struct, frozen=True, kw_only=True):
    """A worker session: a series of activities that one worker runs."""

    session_id: str
    namespace: str
    queue: str
    connection: str | None
    requirements: list[str]
    status: str
    lease_owner: str
    holder: SessionHolder
    created_at: str
    lease_expires_at: str
    ttl_expires_at: str
    closed_at: str | None
    close_reason: str | None
    failure_reason: str | None
    lease_seconds: int
    ttl_seconds: int
    max_concurrent_activities: int
    create_if_missing: bool
    allow_reacquire_after_failure: bool
    active_activity_count: Annotated[int, Meta(description="Activities of the session that a worker has.")]
    waiting_activity_count: Annotated[int, Meta(description="Activities of the session that wait.")]


class SessionRecord(Struct, frozen=True, kw_only=True):
    namespace: str
    queue: str
    worker_id: str
    options: WorkerSession
    created_at: Micros
    lease_seconds: int
    lease_expires_at: Micros
    ttl_expires_at: Micros
    closed_at: Micros | None = None
    close_reason: str | None = None


class SessionRegistry:
    """Every worker session. `engine` returns the engine, which is built after this registry."""

    def __init__(self, store: Store, engine: Engine, workers: WorkerRegistry) -> None:
        self.kept = StoredRegistry(store, "worker_session", SessionRecord)
        self._engine = engine
        self._workers = workers
        self._writing: dict[tuple[str, str], asyncio.Task[None]] = {}  # changes of sessions on their way to disk
        self._alarms: dict[tuple[str, str], Alarm] = {}
        self._renewals: dict[tuple[str, str], Alarm] = {}  # when notes are written
        self._leases = SessionLeases(engine)
        self._version: int | None = None  # of the registries, when sessions were read last

    async def load(self) -> None:
        await self.kept.load()
        for session in self.kept.all():
            if session.closed_at is None:
                self._watch(session)

    # -- for matching

    def admits(self, namespace: str, session: WorkerSession, worker_id: str) -> bool:
        worker = self._workers.get(namespace, worker_id)
        return worker is not None and self._refusal(worker, session) is None

    def took(self, namespace: str, session: WorkerSession, worker_id: str) -> None:
        """Create the session with its first admitted activity, and renew it with each further one."""
        worker = self._workers.get(namespace, worker_id)
        if worker is None:
            return
        record = self.get(namespace, session.session_id)
        if record is None or self.status(record) != "active":
            self._write_soon(self._made(worker, session))
        else:
            self.heard(namespace, session.session_id)

    async def holds(self, namespace: str, session: WorkerSession, worker_id: str) -> bool:
        """Whether the session is this worker's, once that is on disk."""
        if self._engine.store.exclusive:
            return True
        key = (namespace, session.session_id)
        while (writing := self._writing.get(key)) is not None:
            await asyncio.wait([writing])
        try:
            await self._look()
        except Unavailable:
            return False
        record = self.kept.stored(*key)  # another server may not see mere notes
        return record is not None and record.worker_id == worker_id and record.closed_at is None

    def heard(self, namespace: str, session_id: str) -> None:
        """Renew the session, since one of its activities is alive."""
        record = self.get(namespace, session_id)
        if record is None or self.status(record) != "active":
            return
        renewed = self._renewed(record, record.lease_seconds)
        stored = self.kept.stored(namespace, session_id)
        due = 0 if stored is None else stored.lease_expires_at - record.lease_seconds * SECOND // 2
        if due < self._now():  # written only now: a restart, and other servers, would take it for expired
            self._write_soon(renewed)
        else:
            self.kept.note(namespace, session_id, renewed)
            if (namespace, session_id) not in self._renewals and not self._engine.store.exclusive:
                self._renewals[namespace, session_id] = self._engine.world.at(
                    due, lambda: self._write_renewal(namespace, session_id)
                )

    def _write_renewal(self, namespace: str, session_id: str) -> None:
        """Write the notes, before other servers treat the session as expired."""
        del self._renewals[namespace, session_id]
        record, stored = self.get(namespace, session_id), self.kept.stored(namespace, session_id)
        if record is not None and stored is not None and stored.lease_expires_at < record.lease_expires_at:
            self._write_soon(record)

    # -- for workers

    async def create(self, worker: RegisteredWorker, session: WorkerSession) -> tuple[str, SessionRecord]:
        while True:
            refusal = self._refusal(worker, replace(session, create_if_missing=True), creating=True)
            if refusal is not None:
                if await self._look():
                    continue
                raise self._shown(refusal, worker.namespace, session.session_id)
            record = self.get(worker.namespace, session.session_id)
            if record is not None and self.status(record) == "active":
                outcome, written = "reused", self._renewed(record, session.lease_seconds)
            else:
                outcome, written = "created" if record is None else "reacquired", self._made(worker, session)
            if await self._write(written):
                return outcome, written

    async def renew(self, worker: RegisteredWorker, session_id: str, lease_seconds: int | None) -> SessionRecord:
        while True:
            record = await self._owned(worker, session_id)
            if self.status(record) != "active":
                raise self._shown(
                    _refused(409, "session_not_active", f"session {session_id!r} is {self.status(record)}"),
                    worker.namespace,
                    session_id,
                )
            renewed = self._renewed(record, lease_seconds or record.lease_seconds)
            if await self._write(renewed):
                return renewed

    async def close(self, worker: RegisteredWorker, session_id: str, reason: str | None) -> tuple[str, SessionRecord]:
        while True:
            record = await self._owned(worker, session_id)
            if record.closed_at is not None:
                return "already_closed", record
            closed = replace(record, closed_at=self._now(), close_reason=reason)
            if await self._write(closed):
                return "closed", closed

    async def check_claim(self, worker: RegisteredWorker, session: WorkerSession) -> None:
        """Refuse a claim by task id that a poll would not get either."""
        refusal = self._refusal(worker, session)
        if refusal is not None and await self._look():
            refusal = self._refusal(worker, session)
        if refusal is not None:
            raise self._shown(refusal, worker.namespace, session.session_id)

    # -- for operators

    def get(self, namespace: str, session_id: str) -> SessionRecord | None:
        return self.kept.get(namespace, session_id)

    def of(self, namespace: str) -> list[SessionRecord]:
        return [session for _, session in self.kept.of(namespace)]

    def status(self, session: SessionRecord) -> str:
        now = self._now()
        if session.closed_at is not None:
            return "closed"
        if session.ttl_expires_at <= now:
            return "expired"
        worker = self._workers.get(session.namespace, session.worker_id)
        if worker is None or self._workers.given_up(worker):
            return "orphaned"
        return "failed" if session.lease_expires_at <= now else "active"

    def view(self, session: SessionRecord) -> WorkerSessionAnswer:
        worker = self._workers.get(session.namespace, session.worker_id)
        status = self.status(session)
        options = session.options
        return WorkerSessionAnswer(
            session_id=options.session_id,
            namespace=session.namespace,
            queue=session.queue,
            connection=options.connection,
            requirements=list(options.requirements),
            status=status,
            lease_owner=session.worker_id,
            holder=SessionHolder(
                worker_id=session.worker_id,
                task_queue=session.queue if worker is None else worker.task_queue,
                status="gone" if worker is None else "stale" if self._workers.stale(worker) else "active",
                last_heartbeat_at=None if worker is None else iso(self._workers.last_heard(worker)),
                is_stale=worker is None or self._workers.stale(worker),
            ),
            created_at=iso(session.created_at),
            lease_expires_at=iso(session.lease_expires_at),
            ttl_expires_at=iso(session.ttl_expires_at),
            closed_at=optional_iso(session.closed_at),
            close_reason=session.close_reason,
            failure_reason=FAILURES.get(status),
            lease_seconds=session.lease_seconds,
            ttl_seconds=options.ttl_seconds,
            max_concurrent_activities=options.max_concurrent_activities,
            create_if_missing=options.create_if_missing,
            allow_reacquire_after_failure=options.allow_reacquire_after_failure,
            active_activity_count=self._leases.count(session.namespace, options.session_id),
            waiting_activity_count=self._engine.matching.lanes.count_of_session(session.namespace, options.session_id),
        )

    async def settle(self) -> None:
        """Wait until all changes so far are on disk."""
        while self._writing:
            await asyncio.gather(*self._writing.values(), return_exceptions=True)

    async def forget(self) -> None:
        """Remove sessions that were closed or have expired, but for the last `ENDED_KEPT` of each namespace."""
        ended: dict[str, list[SessionRecord]] = {}
        for session in self.kept.all():
            if self.status(session) in ("closed", "expired"):
                ended.setdefault(session.namespace, []).append(session)
        for many in ended.values():
            many.sort(key=lambda session: session.closed_at or session.ttl_expires_at, reverse=True)
            for session in many[ENDED_KEPT:]:
                await self.kept.change(session.namespace, session.options.session_id, None)
                alarm = self._alarms.pop((session.namespace, session.options.session_id), None)
                if alarm is not None:
                    alarm.cancel()

    # -- inside

    def _refusal(self, worker: RegisteredWorker, session: WorkerSession, *, creating: bool = False) -> HttpError | None:
        """Why this worker may not work in this session now."""
        id = session.session_id
        if (session.queue or worker.task_queue) != worker.task_queue:
            return _refused(
                409, "session_queue_mismatch", f"session {id!r} is for queue {session.queue!r}", field="queue"
            )
        missing = sorted(set(session.requirements) - set(worker.capabilities))
        if missing:
            return _refused(
                409,
                "session_requirements_not_met",
                f"worker {worker.worker_id!r} does not offer {', '.join(missing)}",
                missing_requirements=missing,
            )
        record = self.get(worker.namespace, id)
        if record is not None and self.status(record) == "active" and record.worker_id == worker.worker_id:
            limit = record.options.max_concurrent_activities
            if not creating and self._leases.count(worker.namespace, id) >= limit:
                self._leases.check(worker.namespace, id, lambda: self.relieve(worker.namespace, worker.task_queue))
                message = f"session {id!r} runs as many activities as its limit allows ({limit})"
                return _refused(409, "session_activity_limit_exceeded", message)
            return None
        return self._closed_to(worker, session, record) or self._no_room(worker, record)

    def _closed_to(
        self, worker: RegisteredWorker, session: WorkerSession, record: SessionRecord | None
    ) -> HttpError | None:
        """Why this worker may not create the session, or take it over."""
        id = session.session_id
        if record is None:
            if session.create_if_missing:
                return None
            return _refused(404, "session_missing", f"session {id!r} does not exist, and create_if_missing is false")
        status = self.status(record)
        if status == "active":
            message = f"session {id!r} is held by worker {record.worker_id!r}"
            return _refused(409, "session_owned_by_another_worker", message)
        if status in ("closed", "expired"):
            message = f"session {id!r} is {status}, and that is final; use another id"
            return _refused(409, "session_closed", message)
        if not record.options.allow_reacquire_after_failure:
            message = f"session {id!r} lost its worker and does not allow another one"
            return _refused(409, "session_reacquire_disallowed", message)
        return None

    def _no_room(self, worker: RegisteredWorker, record: SessionRecord | None) -> HttpError | None:
        if record is None and self.kept.count(worker.namespace) >= MOST:
            message = f"namespace {worker.namespace!r} has {MOST} sessions; close unused ones"
            return _refused(429, "session_capacity_exhausted", message, retryable=True, retry_after_seconds=60)
        if record is None and self.kept.bytes_of(worker.namespace) >= MOST_BYTES:
            message = f"the sessions of namespace {worker.namespace!r} have {MOST_BYTES} bytes; close unused ones"
            return _refused(429, "session_capacity_exhausted", message, retryable=True, retry_after_seconds=60)
        held = sum(s.worker_id == worker.worker_id and self.status(s) == "active" for s in self.of(worker.namespace))
        if held < worker.max_concurrent_worker_sessions:
            return None
        message = f"worker {worker.worker_id!r} holds as many sessions as its limit allows ({held})"
        return _refused(409, "worker_session_limit_exceeded", message)

    async def _owned(self, worker: RegisteredWorker, session_id: str) -> SessionRecord:
        record = self.get(worker.namespace, session_id)
        if record is None or record.worker_id != worker.worker_id:
            await self._look()
            record = self.get(worker.namespace, session_id)
        if record is None:
            raise _refused(404, "session_not_found", f"there is no session {session_id!r}")
        if record.worker_id != worker.worker_id:
            message = f"session {session_id!r} is held by worker {record.worker_id!r}"
            raise self._shown(_refused(409, "session_owner_mismatch", message), worker.namespace, session_id)
        return record

    def _shown(self, problem: HttpError, namespace: str, session_id: str) -> HttpError:
        """The refusal, with the current state of the session."""
        record = self.get(namespace, session_id)
        problem.fields["status"] = None if record is None else self.status(record)
        problem.fields["session"] = None if record is None else self.view(record)
        return problem

    def _made(self, worker: RegisteredWorker, session: WorkerSession) -> SessionRecord:
        now = self._now()
        record = SessionRecord(
            namespace=worker.namespace,
            queue=worker.task_queue,
            worker_id=worker.worker_id,
            options=session,
            created_at=now,
            lease_seconds=session.lease_seconds,
            lease_expires_at=now + session.lease_seconds * SECOND,
            ttl_expires_at=now + session.ttl_seconds * SECOND,
        )
        self._watch(record)
        return record

    def _renewed(self, session: SessionRecord, lease_seconds: int) -> SessionRecord:
        until = self._now() + lease_seconds * SECOND
        renewed = replace(session, lease_seconds=lease_seconds, lease_expires_at=until)
        self._watch(renewed)
        return renewed

    def _watch(self, session: SessionRecord) -> None:
        """Serve the queue again when the lease runs out: another worker may wait for the session's activities."""

        name = (session.namespace, session.options.session_id)

        def look() -> None:
            self._alarms.pop(name, None)
            self.relieve(session.namespace, session.queue)

        before = self._alarms.get(name)
        if before is not None:
            before.cancel()
        self._alarms[name] = self._engine.world.at(session.lease_expires_at, look)

    def relieve(self, namespace: str, queue: str) -> None:
        """Serve a queue whose session has lost its worker: another worker may take the session over."""
        self._engine.dispatcher.serve_polls(("activity", namespace, queue))

    async def _write(self, session: SessionRecord) -> bool:
        """Write a session. False: another server has changed it, and it was read again."""
        if self._engine.store.exclusive:
            await self.kept.put(session.namespace, session.options.session_id, session)
            return True
        return await self.kept.change(session.namespace, session.options.session_id, session)

    def _write_soon(self, session: SessionRecord) -> None:
        """Change the session in memory at once and write it later. The next activity repeats a write that is lost."""
        key = (session.namespace, session.options.session_id)
        self.kept.note(*key, session)
        before = self._writing.get(key)

        async def write() -> None:
            if before is not None:
                await asyncio.wait([before])
            try:
                while await self._may_write(session):
                    if await self._write(session):
                        return
            except Unavailable as error:
                log.warning("session %s could not be written: %s", session.options.session_id, error)
            if not self._engine.store.exclusive:
                self.kept.undo(*key)

        task = self._writing[key] = self._engine.world.spawn(write(), "backstay-session")
        task.add_done_callback(lambda done: self._written(key, done))

    async def _may_write(self, session: SessionRecord) -> bool:
        """Whether a change that was decided a moment ago may still be made: another server may have been faster."""
        key = (session.namespace, session.options.session_id)
        stored = self.kept.stored(*key)
        if self._engine.store.exclusive or stored is None:
            return True
        if stored.worker_id == session.worker_id:
            return stored.closed_at is None and stored.lease_expires_at < session.lease_expires_at
        if self._workers.get(stored.namespace, stored.worker_id) is None:
            await self._workers.kept.load()  # it may be known to the server that has made the session
            stored = self.kept.stored(*key) or stored
        return self.status(stored) in ("failed", "orphaned") and stored.options.allow_reacquire_after_failure

    async def _look(self) -> bool:
        """Read sessions and workers again if another server may have changed some. Whether one has."""
        store = self._engine.store
        before = self.kept.changes, self._workers.changes
        version = None if store.exclusive else await store.registry_version()
        if not store.exclusive and (version is None or version != self._version):
            await self._workers.kept.load()
            await self.kept.load()
            self._version = version
        return before != (self.kept.changes, self._workers.changes)

    def _written(self, key: tuple[str, str], done: asyncio.Task[None]) -> None:
        if self._writing.get(key) is done:
            del self._writing[key]

    @property
    def _now(self) -> Callable[[], Micros]:
        return self._engine.world.now


def _refused(status: int, reason: str, message: str, **more: Any) -> HttpError:
    return HttpError(status, reason, message, admitted=False, outcome="rejected", **more)
