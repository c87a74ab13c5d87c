"""Output streams: `emit()` in workflow code, and whoever follows it with `handle.stream(...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from backstay.codec.values import dumps, loads
from backstay.kernel.command import Command
from backstay.kernel.features.stream import StreamItem, WriteStream, check_name
from backstay.kernel.features.stream.append import BATCH
from backstay.kernel.message import Refused
from backstay.kernel.values import execution_id
from backstay.protocol.streams import PAGE_MAX, ReadStream
from backstay.sdk import errors
from backstay.sdk.author.primitives import Immediate
from backstay.sdk.replay.workflow_greenlet import current_run

if TYPE_CHECKING:
    from backstay.sdk.client.client import AsyncClient

RUNS = 100  # how many runs of a workflow are looked at together
WAIT = 15.0  # seconds that a reader is kept waiting before it asks again

_EMIT = Immediate("side effect")


def emit(stream: str, /, *items: Any) -> None:
    """Append items to an output stream of this run, once, however often the code is replayed. It does not wait.

    The stream ends with the run.
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
    payloads = [dumps(item) for item in items]  # what cannot be encoded takes no step
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
    """Where somebody stands who follows a stream: the next page, until there is no more.

    A workflow that continues as new goes on in another run, which has streams of its own: they are read one after the other,
    unless only this `one` run is asked for.
    """

    def __init__(
        self, client: AsyncClient, workflow_id: str, run_id: str | None, name: str, start: int, *, one: bool
    ) -> None:
        self._client = client
        self._workflow_id = workflow_id
        self._run_id = run_id
        self._one = one
        self._name = name
        self._offset: int = start
        self._beyond: int | None = None  # this run is read to its end, and so many items of the next are not wanted
        self.over = False
        self.failed: str | None = None

    async def page(self) -> list[Any]:
        """What has come, perhaps nothing; it is waited for a while."""
        if self._beyond is not None:
            await self._go_on(self._beyond)
            return []
        try:
            page = await self._client.call(
                ReadStream(
                    workflow_id=self._workflow_id,
                    run_id=self._run_id,
                    stream_name=self._name,
                    namespace=self._client.namespace,
                    offset=self._offset,
                    limit=PAGE_MAX,
                    wait_seconds=WAIT,
                )
            )
        except errors.RequestRefused as refusal:
            if refusal.reason != "stream_not_found":
                raise
            self._beyond = self._offset  # its run has ended, and nothing was ever written to it
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

    async def _go_on(self, offset: int) -> None:
        """There is no more in this run: go on with the next one, if there is one, from this offset."""
        self._beyond = None
        try:
            following = None if self._one or self._run_id is None else await self._next_run()
        except errors.ServerUnreachable:
            return  # to ask for the end of this run once more is a wait, which the server may take its time to answer
        self.over = following is None
        self._run_id = following
        self._offset = offset

    async def _next_run(self) -> str | None:
        """The run after this one. Runs are listed newest first."""
        before: int | None = None
        following: str | None = None
        while True:
            page = await self._client.list(workflow_id=self._workflow_id, before=before, limit=RUNS)
            for run in page:
                if run.run_id == self._run_id:
                    return following
                following = run.run_id
            if len(page) < RUNS:
                return None  # nobody knows this run any more
            before = page[-1].key

    def end(self) -> None:
        """A stream that ended badly says so after its last item."""
        if self.failed is not None:
            raise errors.RequestRefused(
                "stream_errored", f"stream {self._name!r} of workflow {self._workflow_id!r}: {self.failed}"
            )


async def follow(reader: StreamReader) -> AsyncIterator[Any]:
    while not reader.over:
        for item in await reader.page():
            yield item
    reader.end()
