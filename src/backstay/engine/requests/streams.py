"""Output streams of runs: requests become messages to the instances of streams, or reads of them.

The read position of a stream is kept in memory: a reader that asks for the items after an offset has processed those
before it. `max_pending_items` of an append counts from there; after a restart, from the beginning until a reader has
read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances
from backstay.engine.core.waiters import ENDED, Waiter
from backstay.kernel.command import Command
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features import stream as kernel
from backstay.kernel.features.stream import SEGMENT, Stream, StreamItemAppended, StreamKey, WriteStream, of
from backstay.kernel.features.stream.append import ITEMS_CHANGED, refuse_closed, refuse_full
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND, STREAMS, Micros
from backstay.protocol import streams as ask
from backstay.protocol.requests import Request
from backstay.store import Loaded, RunFilter

EVERY = 1_000_000  # no limit
REMEMBERED = 20_000  # streams whose read offset and parts are kept in memory
LOOK = SECOND // 10  # how often to look for a stream that does not exist yet, since nothing notifies of its creation
LOOK_ANYWAY = SECOND
CHUNK = 50  # items read at a time
PAGE_BYTES = 4 << 20  # a page ends with the item that exceeds this


class StreamApi:
    def __init__(self, engine: Engine, instances: Instances) -> None:
        self._engine = engine
        self._instances = instances
        self._read: dict[int, int] = {}  # the offset up to which a stream was read, by its key
        self._parts: dict[tuple[int, int], int] = {}  # (stream, number of its run) -> run
        self.table: dict[type[Request[Any]], Callable[[Any], Awaitable[Any]]] = {
            ask.AppendStream: self.append,
            ask.CloseStream: self.close,
            ask.DescribeStream: self.describe,
            ask.ListStreams: self.list,
            ask.ReadStream: self.read,
        }

    # -- writing

    async def append(self, request: ask.AppendStream) -> ask.StreamAppended:
        row = await self._open_run(request)
        to = _key(row, request.stream_name)
        key = await self._engine.key_of(row.namespace + STREAMS, to.id)
        what = kernel.Items(
            items=request.items,
            max_pending_items=request.max_pending_items,
            read=0 if key is None else self._read.get(key, 0),
        )
        done: kernel.AppendReply = await self._instances.address(
            row.namespace + STREAMS, to.id, kernel.AppendItems(to=to, batch=what)
        )
        return ask.StreamAppended(
            view=await self._view(row, done.stream),
            offsets=done.offsets,
            accepted_offsets=done.accepted_offsets,
            deduped=done.deduped,
        )

    async def close(self, request: ask.CloseStream) -> ask.StreamView:
        row = await self._run(request)
        to = _key(row, request.stream_name)
        if row.closed_at is not None and await self._stream(row, to) is None:
            raise _not_found(row, request.stream_name)
        message = kernel.FinishStream(
            to=to, error_reason=request.error_reason, retention_seconds=request.retention_seconds
        )
        return await self._view(row, await self._instances.address(row.namespace + STREAMS, to.id, message))

    async def admit(self, namespace: str, run_id: str, commands: Iterable[Command]) -> None:
        """Refuse a completion whose code writes to a stream that is closed or full."""
        writes = [command for command in commands if isinstance(command, WriteStream)]
        if not writes:
            return
        row = await self._engine.store.run(namespace, run_id)
        if row is None:
            return  # the kernel refuses the completion for that
        streams: dict[str, Stream | None] = {}
        for write in writes:
            name = write.stream_name
            to = _key(row, name)
            if name not in streams:
                await self._arrived(row, to)
                streams[name] = await self._stream(row, to)
            stream = streams[name]
            if stream is not None:
                refuse_closed(stream)
            if write.finish:
                streams[name] = Stream(**_names(to), opened_at=row.started_at, status="closed")
                continue
            key = await self._engine.key_of(row.namespace + STREAMS, to.id)
            read = 0 if key is None else self._read.get(key, 0)
            refuse_full(
                stream, name, kernel.Items(items=write.items, max_pending_items=write.max_pending_items, read=read)
            )
            before = stream or Stream(**_names(to), opened_at=row.started_at)
            streams[name] = replace(before, total_items=before.total_items + len(write.items))

    # -- reading

    async def describe(self, request: ask.DescribeStream) -> ask.StreamView:
        row = await self._run(request)
        return await self._view(row, await self._existing(row, request.stream_name))

    async def list(self, request: ask.ListStreams) -> list[ask.StreamView]:
        row = await self._run(request)
        rows = await self._engine.store.runs(
            RunFilter(namespace=row.namespace + STREAMS, business_key=row.run_id, current=True, limit=EVERY)
        )
        streams = [stream for part in rows if (stream := await self._at(part.workflow)) is not None]
        return [await self._view(row, stream) for stream in sorted(streams, key=lambda stream: stream.stream_name)]

    async def read(self, request: ask.ReadStream) -> ask.StreamPage:
        if request.offset < 0 or request.limit < 1:
            raise Refused("invalid_offset", "an offset is at least 0, and a page has at least one item", field="offset")
        world = self._engine.world
        row = await self._run(request)
        deadline = world.now() + round(min(request.wait_seconds, ask.WAIT_MAX) * SECOND)
        while True:
            watched = StreamWatch(self._engine, row, _key(row, request.stream_name))
            await watched.begin()
            try:
                page = await self._page(row, request)
                if page.items or page.terminal or world.now() >= deadline:
                    return page
                await watched.until(deadline)
            finally:
                watched.end()
            row = await self._run(request)

    async def _page(self, row: RunRow, request: ask.ReadStream) -> ask.StreamPage:
        to = _key(row, request.stream_name)
        if row.closed_at is not None:
            await self._arrived(row, to)
        key = await self._engine.key_of(row.namespace + STREAMS, to.id)
        loaded = None if key is None else await self._engine.store.load(key)
        stream = None if loaded is None else self._restored(loaded)
        if key is None or loaded is None or stream is None or self._expired(stream):
            if row.closed_at is not None or stream is not None:
                raise _not_found(row, request.stream_name)
            stream = Stream(**_names(to), opened_at=row.started_at)  # nothing was written to it so far
            return ask.StreamPage(
                view=await self._view(row, stream), items=[], next_offset=request.offset, terminal=False
            )
        if len(self._read) >= REMEMBERED:
            self._read.clear()
        self._read[key] = max(self._read.get(key, 0), min(request.offset, stream.total_items))
        end = min(stream.total_items, request.offset + min(request.limit, ask.PAGE_MAX))
        items = await self._items(key, loaded, stream, request.offset, end)
        view = await self._view(row, stream)
        after = items[-1].offset + 1 if items else request.offset
        return ask.StreamPage(
            view=view, items=items, next_offset=after, terminal=view.terminal and after >= stream.total_items
        )

    async def _items(self, key: int, loaded: Loaded, stream: Stream, begin: int, end: int) -> list[ask.StoredItem]:
        items: list[ask.StoredItem] = []
        size = 0
        while begin < end and size < PAGE_BYTES:
            offset = begin % SEGMENT
            count = min(end - begin, SEGMENT - offset, CHUNK)
            run = await self._part(key, loaded, begin // SEGMENT + 1)
            for entry in await self._engine.store.history(run, offset + 1, count):
                items.append(_stored(begin, entry))
                size += len(entry.body)
                begin += 1
        return items

    async def _part(self, key: int, loaded: Loaded, number: int) -> int:
        """The run that holds this part of a stream. It never changes."""
        if loaded.run is not None and loaded.run.number == number:
            return loaded.run.key
        if (key, number) not in self._parts:
            if len(self._parts) >= REMEMBERED:
                self._parts.clear()
            where = RunFilter(namespace=loaded.row.namespace, workflow_id=loaded.row.workflow_id, limit=EVERY)
            self._parts |= {(key, part.number): part.key for part in await self._engine.store.runs(where)}
        return self._parts[key, number]

    # -- inside

    async def _run(self, request: Any) -> RunRow:
        """The run that the request names, from the index."""
        store = self._engine.store
        if request.run_id is not None:
            row = await store.run(request.namespace, request.run_id)
        else:
            where = RunFilter(namespace=request.namespace, workflow_id=request.workflow_id, current=True, limit=1)
            row = next(iter(await store.runs(where)), None)
        if row is None or row.workflow_id != request.workflow_id:
            raise Refused(
                "run_not_found",
                f"workflow {request.workflow_id!r} has no run {request.run_id or ''!r}".removesuffix(" ''"),
                workflow_id=request.workflow_id,
                run_id=request.run_id,
            )
        return row

    async def _open_run(self, request: ask.AppendStream) -> RunRow:
        row = await self._run(request)
        if row.closed_at is not None:
            raise Refused(
                "stream_closed",
                f"run {row.run_id} is {row.status}, and its streams ended with it",
                stream_name=request.stream_name,
                stream_status="closed",
                run_status=row.status,
            )
        return row

    async def _arrived(self, row: RunRow, to: StreamKey) -> None:
        """Wait for the items that the run's own code has written: they arrive as sends, after its commit."""
        await self._engine.outbox.arrival(row.workflow, row.namespace + STREAMS, to.id)

    async def _existing(self, row: RunRow, name: str) -> Stream:
        to = _key(row, name)
        await self._arrived(row, to)
        stream = await self._stream(row, to)
        if stream is None or self._expired(stream):
            raise _not_found(row, name)
        return stream

    async def _stream(self, row: RunRow, to: StreamKey) -> Stream | None:
        key = await self._engine.key_of(row.namespace + STREAMS, to.id)
        return None if key is None else await self._at(key)

    async def _at(self, key: int) -> Stream | None:
        loaded = await self._engine.store.load(key)
        return None if loaded is None else self._restored(loaded)

    def _restored(self, loaded: Loaded) -> Stream | None:
        run = self._engine.loading.restore(loaded).run
        return None if run is None else of(run)

    def _expired(self, stream: Stream) -> bool:
        return expired(stream, self._engine.world.now())

    async def _view(self, row: RunRow, stream: Stream) -> ask.StreamView:
        key = await self._engine.key_of(row.namespace + STREAMS, stream.key.id)
        read = 0 if key is None else self._read.get(key, 0)
        if stream.status == "open" and row.closed_at is not None:
            stream = replace(stream, status="closed", closed_at=row.closed_at)
        return ask.StreamView(
            workflow_id=row.workflow_id,
            run_id=row.run_id,
            stream=replace(stream, keys={}),
            pending_items=stream.total_items - min(read, stream.total_items),
        )


class StreamWatch:
    """A reader that waits for items, for the end of the stream, or for the end of its run.

    It is on the list of waiters before it reads, so that it misses no commit in between.
    """

    def __init__(self, engine: Engine, row: RunRow, to: StreamKey) -> None:
        self._engine = engine
        self._row = row
        self._id = to.id
        self._news: asyncio.Future[None] = engine.world.future()
        self._watches: list[tuple[int, str]] = []

    async def begin(self) -> None:
        key = await self._engine.key_of(self._row.namespace + STREAMS, self._id)
        self._watches = [(self._row.workflow, ENDED), *([] if key is None else [(key, ITEMS_CHANGED)])]
        for watch in self._watches:
            self._engine.waiters.add(*watch, Waiter(_answer, self._look, self._news))

    async def until(self, deadline: Micros) -> None:
        world = self._engine.world
        soon = LOOK if len(self._watches) == 1 else LOOK_ANYWAY
        alarm = world.at(min(deadline, world.now() + soon), self._tell)
        try:
            await self._news
        finally:
            alarm.cancel()

    def end(self) -> None:
        for watch in self._watches:
            self._engine.waiters.remove(*watch, self._news)

    def _tell(self) -> None:
        if not self._news.done():
            self._news.set_result(None)

    async def _look(self) -> bool:
        """End the wait after any commit of another process: the reader then reads again."""
        return True


def _answer(_: Any) -> None:
    """End the wait without a value: the reader then reads again."""


def expired(stream: Stream, now: Micros) -> bool:
    """Whether the retention of a closed stream is over."""
    at, seconds = stream.closed_at, stream.retention_seconds
    return at is not None and seconds is not None and now >= at + seconds * SECOND


def _key(row: RunRow, name: str) -> StreamKey:
    kernel.check_name(name)
    return StreamKey(stream_name=name, workflow_instance_id=row.workflow_id, workflow_run_id=row.run_id)


def _names(to: StreamKey) -> dict[str, Any]:
    return {name: getattr(to, name) for name in to.__struct_fields__}


def _stored(offset: int, entry: Recorded) -> ask.StoredItem:
    event = entry.event
    assert isinstance(event, StreamItemAppended), "an offset says where its item is"
    fields = {name: getattr(event, name) for name in StreamItemAppended.__struct_fields__ if name != "payload_codec"}
    return ask.StoredItem(offset=offset, at=entry.at, **fields)


def _not_found(row: RunRow, name: str) -> Refused:
    return Refused(
        "stream_not_found",
        f"run {row.run_id} of workflow {row.workflow_id!r} has no stream {name!r}",
        stream_name=name,
        run_id=row.run_id,
    )
