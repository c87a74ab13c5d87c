"""Streams of the live feed: one reader each, with at most one unsent frame of each of its topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from backstay.server.operators.feed_topics import Counts, FeedTopic, TopicName

if TYPE_CHECKING:
    from backstay.server.operators.feed import LiveFeed

HEARTBEAT = 15.0
STUCK = 60.0  # a reader that has taken nothing for so long is cut off


class LiveStream:
    """One reader and its topics. `valid` says whether its credential still opens them."""

    def __init__(
        self,
        feed: LiveFeed,
        names: list[TopicName],
        address: str,
        after: str | None,
        valid: Callable[[], bool],
    ) -> None:
        self._feed = feed
        self.names = list(dict.fromkeys(names))
        self.address = address
        self._after = after
        self._valid = valid
        self._unsent: dict[TopicName, bytes] = {}  # at most one frame of each topic
        self._missed = False  # frames were dropped, since the reader is slow
        self._unplaced = [name for name in self.names if name.kind == "run"]  # whose position was not sent yet
        self._ended: str | None = None
        self._told_end = False
        self._beats = False
        self._wakes: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._taken_at = 0.0
        self._sending = False  # the reader has not taken the last part yet

    async def parts(self) -> AsyncGenerator[bytes]:
        """The body of the response. The server takes the next part when the reader has read the previous one."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        self._taken_at = loop.time()
        feed = self._feed
        feed.enter(self)
        try:
            part = b"retry: 2000\n\n" + self._open()
            while True:
                self._sending = True
                yield part
                self._sending = False
                self._taken_at = loop.time()
                if self._told_end:
                    return
                part = await self._next()
        finally:
            feed.leave(self)

    async def _next(self) -> bytes:
        while self._unplaced:
            part = await self._where(self._unplaced.pop())
            if part:
                return part
        if not (self._unsent or self._missed or self._beats or self._ended):
            self._wakes = asyncio.get_running_loop().create_future()
            await self._wakes
            self._wakes = None
        return self._take()

    def _open(self) -> bytes:
        """The first frame, and the changes since the frame that the reader names."""
        feed = self._feed
        topics = {"topics": [name.said for name in self.names]}
        if self._after is None:
            return feed.frame("open", topics)
        number = feed.seen(self._after)
        missed: list[tuple[FeedTopic[LiveStream], Counts]] = []
        for name in self.names:
            topic = feed.topic(name)
            assert topic is not None, "it is followed since this stream has entered"
            counts = None if number is None else topic.since_frame(number)
            if counts is None:
                return feed.frame("reload", topics | {"reason": "gap_unknown"})
            if counts:
                missed.append((topic, counts))
        return b"".join(
            (feed.frame("open", topics), *(feed.frame("moved", feed.moved(topic, counts)) for topic, counts in missed))
        )

    async def _where(self, name: TopicName) -> bytes:
        """The current position of a run, so that its reader can see whether it has missed something."""
        feed = self._feed
        topic = feed.topic(name)
        found = await feed.position(name)
        if topic is None or found is None:
            return b""
        topic.stands_at(*found)
        return feed.frame("moved", feed.moved(topic, {}))

    def _take(self) -> bytes:
        unsent, self._unsent = self._unsent, {}
        missed, self._missed = self._missed, False
        beats, self._beats = self._beats, False
        if missed:
            frames = self._feed.frame(
                "reload", {"topics": [name.said for name in self.names], "reason": "reader_too_slow"}
            )
        else:
            frames = b"".join(unsent.values()) or (b": heartbeat\n\n" if beats else b"")
        if self._ended is not None:
            self._told_end = True
            frames += self._feed.frame("end", {"reason": self._ended})
        return frames

    @property
    def is_slow(self) -> bool:
        """Whether the reader has not read its frames, and later ones were dropped."""
        return self._missed

    @property
    def unsent_bytes(self) -> int:
        return sum(map(len, self._unsent.values()))

    def push(self, name: TopicName, frame: bytes) -> None:
        """A frame of one of its topics. If the frame before was not taken, the reader is slow and gets neither."""
        if name in self._unsent or self._missed:
            self._unsent.clear()
            self._missed = True
        else:
            self._unsent[name] = frame
        self._wake()

    def end(self, reason: str) -> None:
        """End with a last frame; at once without it if the reader takes nothing."""
        self._ended = reason
        if self._sending and self._task is not None:
            self._task.cancel()
        self._wake()

    def keep(self, now: float, *, check: bool) -> None:
        """Beat if it was quiet for long, end if its credential has ended, and cut off a reader that is stuck."""
        quiet = now - self._taken_at
        if self._sending and quiet > STUCK and self._task is not None:
            self._task.cancel()
        beat = quiet >= HEARTBEAT and not self._sending
        if (check or beat) and not self._valid():
            self.end("credential_ended")
        elif beat:
            self._beats = True
            self._wake()

    def _wake(self) -> None:
        if self._wakes is not None and not self._wakes.done():
            self._wakes.set_result(None)
