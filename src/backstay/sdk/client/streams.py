"""Output streams: `emit()` in workflow code writes them, `handle.stream(...)` reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from backstay.codec.values import dumps, loads
from backstay.kernel.command import Command
from backstay.kernel.features.stream import StreamItem, WriteStream, check_name
from backstay.kernel.features.stream.append import BATCH
from backstay.kernel.message import Refused
from backstay.kernel.values import execution_id
from backstay.protocol.streams import PAGE_MAX, ReadStream, StreamPage
from backstay.sdk import errors
from backstay.sdk.author.primitives import Immediate
from backstay.sdk.replay.workflow_greenlet import current_run

if TYPE_CHECKING:
    from backstay.sdk.client.client import AsyncClient

RUNS = 100  # runs of a workflow that are listed at a time
WAIT = 15.0  # seconds that one request for items waits
SOON = 0.05  # for a request that only checks whether the server is there

_EMIT = Immediate("side effect")


def emit(stream: str, /, *items: Any) -> None:
    """Append items to an output stream of this run, exactly once, without waiting.

    Clients read them with `handle.stream(name)`. The stream ends with the run. Raises `NotInWorkflow` outside a workflow.
    """
    live_run = current_run()
    if live_run is None:
        raise errors.NotInWorkflow("emit()")
    try:
        check_name(stream)
    except Refused as refusal:
        raise ValueError(refusal.message) from None
    if not 1 <= len(items) <= BATCH:
        raise ValueError(f"emit({stream!r}, ...) takes 1 to {BATCH} items, not {len(items)}")
    payloads = [dumps(item) for item in items]  # encoded first, so that an item that cannot be encoded takes no step
    run_id = live_run.assignment.run_id

    def write(step: int) -> Command:
        id = execution_id(run_id, step)
        return WriteStream(
            sequence=step,
            result=dumps(None),
            stream_name=stream,
            items=[StreamItem(payload=blob, idempotency_key=f"{id}.{n}") for n, blob in enumerate(payloads)],
            command_identity=id,
        )

    live_run.immediate(_EMIT, write)


class StreamReader:
    """The position of a client in an output stream, read page by page.

    Each run has its own streams. Those of a workflow that continues as new are read one after the other, from the first run that
    is kept, whichever run the caller knows: an offset means the same item to every reader. `one` limits the reader to this run.
    """

    def __init__(
        self, client: AsyncClient, workflow_id: str, run_id: str | None, name: str, start: int, *, one: bool
    ) -> None:
        self._client = client
        self._workflow_id = workflow_id
        self._run_id = run_id
        self._one = one
        self._begun = one
        self._name = name
        self._offset: int = start
        self._beyond: int | None = None  # this run is read to its end, and this many items of the next are skipped
        self.over = False
        self.failed: str | None = None

    async def page(self) -> list[Any]:
        """Wait a while for new items and return them, perhaps none."""
        if not self._begun:
            try:
                self._run_id = await self._first_run() or self._run_id
            except errors.ServerUnreachable:
                # Lists do not outlast an outage, and waits do, unless the server was never there. Then look again.
                with suppress(errors.RequestRefused):
                    await self._read(1, SOON)
                return []
            self._begun = True
        if self._beyond is not None:
            await self._go_on(self._beyond)
            return []
        try:
            page = await self._read(PAGE_MAX, WAIT)
        except errors.RequestRefused as refusal:
            if refusal.reason != "stream_not_found":
                raise
            self._beyond = self._offset  # the run has ended without writing to this stream
            return []
        self._run_id = page.view.run_id
        if page.terminal:
            self._beyond = max(0, self._offset - page.view.stream.total_items)
        if not self._beyond:
            self._offset = page.next_offset
        if page.terminal and page.view.stream.status == "errored":
            self.failed = page.view.stream.error_reason
            self.over = True
        return [loads(item.payload) for item in page.items if item.payload is not None]

    def _read(self, limit: int, seconds: float) -> Awaitable[StreamPage]:
        return self._client.call(
            ReadStream(
                workflow_id=self._workflow_id,
                run_id=self._run_id,
                stream_name=self._name,
                namespace=self._client.namespace,
                offset=self._offset,
                limit=limit,
                wait_seconds=seconds,
            )
        )

    async def _go_on(self, offset: int) -> None:
        """Continue with the next run, if there is one, at this offset: this run has no more items."""
        self._beyond = None
        try:
            following = None if self._one or self._run_id is None else await self._next_run()
        except errors.ServerUnreachable:
            return  # asking for the end of this run again would be a wait that the server may answer late
        self.over = following is None
        self._run_id = following
        self._offset = offset

    async def _first_run(self) -> str | None:
        """Return the first run of the workflow that is kept; None if there is none."""
        before: int | None = None
        first: str | None = None
        while True:
            page = await self._client.list(workflow_id=self._workflow_id, before=before, limit=RUNS)
            if page:
                first, before = page[-1].run_id, page[-1].key
            if len(page) < RUNS:
                return first

    async def _next_run(self) -> str | None:
        """Return the run after this one. Runs are listed newest first."""
        before: int | None = None
        following: str | None = None
        while True:
            page = await self._client.list(workflow_id=self._workflow_id, before=before, limit=RUNS)
            for run in page:
                if run.run_id == self._run_id:
                    return following
                following = run.run_id
            if len(page) < RUNS:
                return None  # this run has been removed
            before = page[-1].key

    def end(self) -> None:
        """Raise the error of a stream that did not end well, after its last item."""
        if self.failed is not None:
            raise errors.RequestRefused(
                "stream_errored", f"stream {self._name!r} of workflow {self._workflow_id!r}: {self.failed}"
            )


async def follow(reader: StreamReader) -> AsyncIterator[Any]:
    while not reader.over:
        for item in await reader.page():
            yield item
    reader.end()
