"""Reading a database or a server while an engine runs. A Reader never takes the engine's lock and writes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

from backstay.cli.control import download
from backstay.cli.options import Place, ServerAt, existing
from backstay.cli.problems import CliError, as_problems, waiting_for
from backstay.codec.payloads import AvroPayloads
from backstay.engine.core.world import AsyncioWorld
from backstay.engine.node import Node
from backstay.kernel.decision import Decision, RunRow
from backstay.kernel.machine import Machine
from backstay.protocol.export import exporter
from backstay.protocol.export_file import AS_IT_IS, Exporting
from backstay.protocol.redaction import RedactionFailed
from backstay.protocol.requests import ExportHistory, ListWorkflows, Request
from backstay.protocol.run_entries import make_views
from backstay.store import Applied
from backstay.store.opening import open_store

if TYPE_CHECKING:
    from backstay import Client

R = TypeVar("R")

LOOK = 0.5  # seconds between two looks at a server


class StoreReader:
    """`how`: how exports are signed and redacted."""

    def __init__(self, path: str, *, create: bool = False, how: Exporting = AS_IT_IS) -> None:
        self.path = path if create else existing(path)
        self._create = create
        self._how = how

    def __enter__(self) -> Self:
        machine = Machine()
        self._loop = asyncio.new_event_loop()
        try:
            with as_problems():  # a file is opened here and now, a server when its answer is waited for
                opening = open_store(self.path, machine.kinds, create=self._create)
            self.store = self.get(opening)
        except BaseException:
            self._loop.close()
            raise
        # A node that is never opened: it answers reads from disk.
        self.world = AsyncioWorld(self._loop)
        self.node = Node(self.world, self.store, machine, AvroPayloads(), exporter(self._how), make_views)
        self._api = self.node.api
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.get(self.store.close())
        self._loop.close()

    def ask(self, request: Request[R]) -> R:
        with as_problems():
            return self._loop.run_until_complete(self._api.call(request))

    def get(self, answer: Awaitable[R]) -> R:
        """Wait for the result of a store method."""

        async def waited() -> R:
            return await answer

        with as_problems():
            return self._loop.run_until_complete(waited())

    def has_engine(self) -> bool:
        return self.get(self.store.has_engine())

    def changed(self) -> bool:
        """Whether another process has committed since the last call."""
        return self.get(self.store.changed())

    def has_workflows(self) -> bool:
        """Whether there is any instance in the database, of workflows or of anything else."""
        return self.get(self.store.mismatched(0, 1))[1] is not None

    def apply(self, decision: Decision) -> None:
        """Write a decision."""

        async def applied() -> Applied:
            done: asyncio.Future[Applied] = self._loop.create_future()
            self.store.apply([decision], done.set_result)
            return await done

        result = self.get(applied())
        if result.down is not None or result.stale or result.failed:
            problem = result.down or next(iter(result.failed.values()), None)
            raise CliError(f"{self.path} was not written: {problem or 'another process wrote to it meanwhile'}")

    def export(self, namespace: str, workflow_id: str, run_id: str | None, into: Callable[[bytes], object]) -> None:
        """Write an export part by part."""
        request = ExportHistory(workflow_id=workflow_id, namespace=namespace, run_id=run_id)
        try:
            with as_problems():
                self._loop.run_until_complete(self._api.write(request, into))
        except RedactionFailed as failure:
            raise CliError(f"nothing was exported: {failure}") from None

    def run(self, namespace: str, workflow_id: str, run_id: str) -> RunRow | None:
        found = self.get(self.store.run(namespace, run_id))
        return found if found is not None and found.workflow_id == workflow_id else None


class ServerReader:
    """The same interface over HTTP, for a server."""

    def __init__(self, server: ServerAt, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    def __enter__(self) -> Self:
        self._client = client_of(self._server, self._namespace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def ask(self, request: Request[R]) -> R:
        with as_problems(), waiting_for(self._server.url):
            return self._client.call(request)

    def export(self, namespace: str, workflow_id: str, run_id: str | None, into: Callable[[bytes], object]) -> None:
        """Write an export part by part, as the server sends it."""
        run = "" if run_id is None else f"/runs/{quote(run_id, safe='')}"
        path = f"/api/workflows/{quote(workflow_id, safe='')}{run}/history/export"
        download(self._server, path, into, namespace=namespace)

    def has_engine(self) -> bool:
        """Always true: a server is the engine of its database."""
        return True

    def changed(self) -> bool:
        """Always true after a short pause: a server does not report changes, so the caller has to look."""
        time.sleep(LOOK)
        return True

    def run(self, namespace: str, workflow_id: str, run_id: str) -> RunRow | None:
        runs = self.ask(ListWorkflows(namespace=namespace, workflow_id=workflow_id, limit=1000))
        return next((run for run in runs if run.run_id == run_id), None)


def reader_of(place: Place, namespace: str, how: Exporting = AS_IT_IS) -> StoreReader | ServerReader:
    return ServerReader(place, namespace) if isinstance(place, ServerAt) else StoreReader(place, how=how)


def client_of(server: ServerAt, namespace: str) -> Client:
    from backstay import Client

    try:
        return Client(server.url, token=server.token, namespace=namespace)
    except ValueError as wrong:
        raise CliError(str(wrong)) from None
