"""Who waits for what to happen to which instance: its end, or the end of one of its updates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec import Struct

ENDED = "ended"
"""The topic under which the end of a chain of runs is told."""


class Watcher(Struct, frozen=True, eq=False):
    """`answer` makes of the news what is waited for; `look` finds that in the database, where another process may have put it."""

    answer: Callable[[Any], Any]
    look: Callable[[], Awaitable[Any]]
    future: asyncio.Future[Any]


class Watching:
    def __init__(self) -> None:
        self._watchers: dict[tuple[int, str], list[Watcher]] = {}

    def __iter__(self) -> Iterator[tuple[int, str, Watcher]]:
        """Everybody who waits, with what they wait for."""
        for (key, topic), watchers in list(self._watchers.items()):
            for watcher in list(watchers):
                yield key, topic, watcher

    def of(self, key: int, topic: str) -> list[Watcher]:
        return list(self._watchers.get((key, topic), ()))

    def tell(self, key: int, topic: str, news: Any) -> None:
        for watcher in self._watchers.pop((key, topic), ()):
            if watcher.future.done():
                continue
            try:
                answer = watcher.answer(news)
            except Exception as error:  # is told to whom it concerns: the others get the news
                watcher.future.set_exception(error)
            else:
                watcher.future.set_result(answer)

    def watch(self, key: int, topic: str, watcher: Watcher) -> None:
        self._watchers.setdefault((key, topic), []).append(watcher)

    def unwatch(self, key: int, topic: str, future: asyncio.Future[Any]) -> None:
        """Nobody waits on this future any more."""
        left = [watcher for watcher in self._watchers.get((key, topic), ()) if watcher.future is not future]
        if left:
            self._watchers[key, topic] = left
        else:
            self._watchers.pop((key, topic), None)
