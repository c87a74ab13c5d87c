"""The live feed: notices of changes, sent to all listeners after commits.

A stream listens to topics. When a batch is on disk, the engine hands it over (`Engine.commits.observe`), and the topics
that it belongs to become *dirty*. A dirty topic is published when its time has come: almost at once if it was quiet,
otherwise so that its frames keep their distance. A frame names the changed thing and its sequence, and carries no data.
It is encoded once and shared by all streams of the topic.

The invariant: a stream holds at most one unsent frame of each topic. A reader that has not taken a frame when the next
one of the same topic comes is slow: it loses both and gets a frame to reload. So a slow reader costs no memory, and no
other reader waits for it.

Frames are numbered. A stream that comes back names the last number it has seen. Topics are followed for a while after their
last stream has gone, so that the frames in between are known; if they are not, the stream gets a frame to reload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from backstay.engine.core.batch import BatchEntry
from backstay.engine.core.engine import Engine
from backstay.kernel.decision import Decision, RunRow
from backstay.protocol.history import iso
from backstay.server.http.errors import HttpError
from backstay.server.operators.feed_streams import LiveStream
from backstay.server.operators.feed_topics import Counts, FeedTopic, TopicName
from backstay.server.settings import Settings
from backstay.store import RunFilter
from backstay.store.errors import StoreError

LISTS_EVERY = 0.5  # seconds between two frames of a topic about many runs
RUN_EVERY = 0.1
TOGETHER = (
    0.1  # changes that follow the first change of a quiet list so soon, such as the end of a run, are sent with it
)
OVERVIEW_EVERY = 1.0
LINGER = 60.0  # how long a topic without streams is followed
LINGERING = 10_000  # topics above which none is followed without streams
AT_ONCE = 100  # streams that get a frame before the loop does other work
REREAD = 32  # runs whose position is read at a time after a commit of another process
REST = 3  # the pause before the next of these, as a multiple of their duration

_encode = msgspec.json.Encoder(decimal_format="number").encode


class LiveFeed:
    """All streams of a server, and the topics that they listen to. It costs the engine nothing without listeners."""

    def __init__(self, engine: Engine, settings: Settings, revision: Callable[[], int]) -> None:
        """`revision` changes whenever a registry (workers, rollouts, tokens) does."""
        self._engine = engine
        self._settings = settings
        self._revision = revision
        self._known_revision = 0
        self._topics: dict[TopicName, FeedTopic[LiveStream]] = {}
        self._runs: dict[tuple[str, str], FeedTopic[LiveStream]] = {}
        self._of_namespace: dict[str, list[FeedTopic[LiveStream]]] = {}
        self._system: FeedTopic[LiveStream] | None = None
        self._dirty: dict[FeedTopic[LiveStream], None] = {}
        self._decisions: list[Decision] = []
        self.watching = False  # commits: only with listeners
        self.streams: dict[LiveStream, None] = {}
        self._addresses: dict[str, int] = {}
        self._foreign = False
        self._rereading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._housekeeping: asyncio.TimerHandle | None = None
        self._folded_at = 0.0
        self.sequence = 0  # committed decisions that were seen
        self.number = 0  # of the last frame
        self.ended: str | None = None  # why no stream is served any more

    def __len__(self) -> int:
        return len(self.streams)

    # -- streams

    def admit(self, address: str) -> None:
        """Refuse one stream more than there may be."""
        if self.ended is not None:
            raise HttpError(
                503,
                self.ended,
                "this server is stopping; reconnect to another",
                retryable=True,
                retry_after_seconds=1,
            )
        here, settings = self._addresses.get(address, 0), self._settings
        if here >= settings.max_live_streams_per_address:
            raise HttpError(
                429,
                "too_many_live_streams_from_address",
                f"{here} live streams are open from this address, and max_live_streams_per_address allows no more; one"
                " stream takes several topics (topic=a&topic=b)",
                limit=settings.max_live_streams_per_address,
                retryable=True,
                retry_after_seconds=5,
            )
        if len(self.streams) >= settings.max_live_streams:
            raise HttpError(
                429,
                "too_many_live_streams",
                f"{len(self.streams)} live streams are open, and max_live_streams allows no more",
                limit=settings.max_live_streams,
                retryable=True,
                retry_after_seconds=5,
            )

    def enter(self, stream: LiveStream) -> None:
        self.streams[stream] = None
        self._addresses[stream.address] = self._addresses.get(stream.address, 0) + 1
        for name in stream.names:
            self._follow(name).streams[stream] = None
        if self._housekeeping is None:
            self._known_revision = self._revision()
            self._housekeeping = asyncio.get_running_loop().call_later(1, self._keep_house)

    def leave(self, stream: LiveStream) -> None:
        if self.streams.pop(stream, self) is self:
            return
        left = self._addresses[stream.address] - 1
        if left:
            self._addresses[stream.address] = left
        else:
            del self._addresses[stream.address]
        now = asyncio.get_running_loop().time()
        for name in stream.names:
            topic = self._topics.get(name)
            if topic is not None:
                topic.streams.pop(stream, None)
                topic.left_at = now
                if not topic.streams and len(self._topics) > LINGERING:
                    self._forget(topic)

    def end(self, reason: str) -> None:
        """End every stream now; no further one is served."""
        self.ended = reason
        for stream in list(self.streams):
            stream.end(reason)
        self.close()

    def close(self) -> None:
        """Follow nothing any more."""
        self._watch(False)
        for timer in (self._timer, self._housekeeping):
            if timer is not None:
                timer.cancel()
        self._timer = self._housekeeping = None
        if self._rereading is not None:
            self._rereading.cancel()
        self._topics.clear()
        self._runs.clear()
        self._of_namespace.clear()
        self._dirty.clear()
        self._system = None

    # -- topics

    def topic(self, name: TopicName) -> FeedTopic[LiveStream] | None:
        return self._topics.get(name)

    def _follow(self, name: TopicName) -> FeedTopic[LiveStream]:
        topic = self._topics.get(name)
        if topic is None:
            every = {"run": RUN_EVERY, "overview": OVERVIEW_EVERY, "system": OVERVIEW_EVERY}.get(name.kind, LISTS_EVERY)
            self.number += 1  # earlier changes are not known, so no earlier cursor reaches here
            topic = self._topics[name] = FeedTopic(name, every, self.number)
            if name.kind == "run":
                self._runs[name.namespace, name.id] = topic
            elif name.namespace and name.kind != "bulk":
                self._of_namespace.setdefault(name.namespace, []).append(topic)
            elif name.kind == "system":
                self._system = topic
        self._watch(True)
        return topic

    def _forget(self, topic: FeedTopic[LiveStream]) -> None:
        del self._topics[topic.name]
        self._runs.pop((topic.name.namespace, topic.name.id), None)
        self._dirty.pop(topic, None)
        if topic is self._system:
            self._system = None
        alike = self._of_namespace.get(topic.name.namespace, [])
        if topic in alike:
            alike.remove(topic)
            if not alike:
                del self._of_namespace[topic.name.namespace]
        if not self._topics:
            self._watch(False)

    # -- changes

    def _watch(self, on: bool) -> None:
        if on is not self.watching:
            self.watching = on
            (self._engine.commits.observe if on else self._engine.commits.ignore)(self._committed)

    def _committed(self, batch: Sequence[BatchEntry]) -> None:
        """A batch is on disk. Called for each of them, so it only keeps the decisions."""
        for item in batch:
            if item.decision is not None:
                self._decisions.append(item.decision)
        if self._timer is None:
            self._arm(self._folded_at + RUN_EVERY)

    def foreign_commit(self) -> None:
        """Another process has committed: all that is known is that something moved."""
        if self._topics:
            self._foreign = True
            self._arm(self._folded_at + RUN_EVERY)

    def engine_changed(self) -> None:
        """This process became the engine, or is no longer, or the database cannot be reached."""
        self.foreign_commit()

    def bulk_moved(self, namespace: str, id: str, position: dict[str, Any]) -> None:
        """A bulk operation has gone on."""
        topic = self._topics.get(TopicName("bulk", namespace, id))
        if topic is not None:
            topic.position = position
            self._mark(topic)
            self._arm(topic.due)

    def _mark(self, topic: FeedTopic[LiveStream]) -> None:
        if topic not in self._dirty:
            self._dirty[topic] = None
            if topic.every > RUN_EVERY:
                topic.due = max(topic.due, asyncio.get_running_loop().time() + TOGETHER)

    def _arm(self, at: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(max(at, loop.time()), self._tick)

    def _tick(self) -> None:
        """Fold the commits, and publish the topics that are due."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        self._folded_at = now
        self._fold()
        if self._foreign:
            self._foreign = False
            self._fold_foreign()
        later: float | None = None
        for topic in list(self._dirty):
            if topic.due <= now:
                del self._dirty[topic]
                topic.due = now + topic.every
                self.publish(topic)
            elif later is None or topic.due < later:
                later = topic.due
        if later is not None:
            self._arm(later)

    def _fold(self) -> None:
        decisions, self._decisions = self._decisions, []
        runs = self._runs
        for decision in decisions:
            row = decision.instance
            self.sequence += 1
            namespace, _, beside = row.namespace.partition("/")  # schedules and streams have a namespace beside it
            for topic in self._of_namespace.get(namespace, ()):
                kind = topic.name.kind
                if kind in ("overview", "system"):
                    self._mark(topic)
                elif kind == "runs" and not beside:
                    topic.count_runs(decision)
                    self._mark(topic)
                elif kind == "queues" and decision.tasks:
                    topic.count("tasks", len(decision.tasks))
                    self._mark(topic)
            if runs:
                topic = runs.get((row.namespace, row.workflow_id))
                if topic is not None and topic.follows(decision):
                    self._mark(topic)
        if decisions and self._system is not None:
            self._mark(self._system)

    def _fold_foreign(self) -> None:
        self.sequence += 1
        for topic in self._topics.values():
            kind = topic.name.kind
            if kind == "runs":
                for name in ("changed", "started", "closed"):
                    topic.count(name, None)
            elif kind == "queues":
                topic.count("tasks", None)
            if kind not in ("run", "bulk"):
                self._mark(topic)
        if self._rereading is None or self._rereading.done():
            self._rereading = self._engine.world.spawn(self._reread(), "backstay-live")

    async def _reread(self) -> None:
        """Read the positions of the runs that are listened to, a few at a time."""
        loop = asyncio.get_running_loop()
        topics = [topic for topic in self._runs.values() if topic.streams]
        for first in range(0, len(topics), REREAD):
            began = loop.time()
            for topic in topics[first : first + REREAD]:
                try:
                    found = await self.position(topic.name)
                except StoreError:
                    return  # changes are announced when the database is back
                if found is not None and topic.stands_at(*found):
                    self._mark(topic)
                    self._arm(topic.due)
            await asyncio.sleep(REST * (loop.time() - began))

    async def position(self, name: TopicName) -> tuple[RunRow, int] | None:
        """The current run of a workflow, and its last event, as they are on disk. None: there is no such run."""
        store = self._engine.store
        rows = await store.runs(RunFilter(namespace=name.namespace, workflow_id=name.id, current=True, limit=1))
        if not rows:
            return None
        last = await store.last_event(rows[0].key)
        return rows[0], 0 if last is None else last.sequence

    # -- frames

    def publish(self, topic: FeedTopic[LiveStream]) -> None:
        """Encode the change once, and send it to all streams of the topic."""
        counts, topic.counts = topic.counts, {}
        if topic.changed:
            runs, topic.changed = len(topic.changed), set()
            counts["changed"] = None if counts.get("changed", 0) is None else runs
        self.number += 1
        topic.frames.append((self.number, counts))
        if not topic.streams:
            return
        frame = self.frame("moved", self.moved(topic, counts))
        self._hand_out(topic, frame, list(topic.streams), 0)

    def _hand_out(self, topic: FeedTopic[LiveStream], frame: bytes, streams: list[LiveStream], first: int) -> None:
        for stream in streams[first : first + AT_ONCE]:
            stream.push(topic.name, frame)
        if first + AT_ONCE < len(streams):
            asyncio.get_running_loop().call_soon(self._hand_out, topic, frame, streams, first + AT_ONCE)

    def moved(self, topic: FeedTopic[LiveStream], counts: Counts) -> dict[str, Any]:
        name = topic.name
        body: dict[str, Any] = {"topic": name.said, "namespace": name.namespace, "sequence": self.sequence}
        if name.kind == "system":
            body["engine"] = self._state()
        if name.kind == "runs":
            body |= {"changed": 0, "started": 0, "closed": 0}
        counts.pop("moved", None)
        return body | counts | topic.position

    def frame(self, event: str, body: dict[str, Any]) -> bytes:
        """One server-sent event, with the number of the last frame as its id."""
        body = body | {"generated_at": iso(self._engine.world.now())}
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (self.cursor().encode(), event.encode(), _encode(body))

    def cursor(self) -> str:
        return f"{self._engine.incarnation}-{self.number}"

    def seen(self, cursor: str) -> int | None:
        """The number of the last frame that the holder of this cursor has; None: the cursor is of another process."""
        incarnation, _, number = cursor.rpartition("-")
        known = incarnation == self._engine.incarnation and number.isascii() and number.isdigit() and len(number) < 19
        return int(number) if known and int(number) <= self.number else None

    def _state(self) -> str:
        if self._engine.down is not None:
            return "unavailable"
        return "running" if self._engine.active else "standby"

    # -- housekeeping

    def _keep_house(self) -> None:
        """Once a second: heartbeats, expired credentials, stuck readers, topics without streams."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        revision = self._revision()
        changed, self._known_revision = revision != self._known_revision, revision
        self._look_after(list(self.streams), 0, changed)
        if changed:
            for topic in self._topics.values():
                if topic.name.kind in ("queues", "overview", "system"):
                    self._mark(topic)
            self._arm(now)
        for topic in list(self._topics.values()):
            if not topic.streams and now - topic.left_at > LINGER:
                self._forget(topic)
        self._housekeeping = loop.call_later(1, self._keep_house) if self._topics else None

    def _look_after(self, streams: list[LiveStream], first: int, check: bool) -> None:
        loop = asyncio.get_running_loop()
        for stream in streams[first : first + AT_ONCE]:
            stream.keep(loop.time(), check=check)
        if first + AT_ONCE < len(streams):
            loop.call_soon(self._look_after, streams, first + AT_ONCE, check)
