"""Who waits for which instance to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.kernel.decision import Ended


class Watcher(NamedTuple):
    """Somebody waits for an instance to end."""

    closed: Callable[[Ended], None]
    future: asyncio.Future[Any]
    workflow_id: str


class Watching:
    def __init__(self) -> None:
        self._watchers: dict[int, list[Watcher]] = {}

    def __iter__(self) -> Iterator[tuple[int, list[Watcher]]]:
        return iter(list(self._watchers.items()))

    def pop(self, key: int) -> list[Watcher]:
        """Everybody who waits for this instance; they are about to be told."""
        return self._watchers.pop(key, [])

    def watch(self, key: int, closed: Callable[[Ended], None], future: asyncio.Future[Any], workflow_id: str) -> None:
        """Call `closed` when the chain of runs of this instance ends."""
        self._watchers.setdefault(key, []).append(Watcher(closed, future, workflow_id))

    def unwatch(self, key: int, future: asyncio.Future[Any]) -> None:
        """Nobody waits on this future any more."""
        left = [watcher for watcher in self._watchers.get(key, ()) if watcher.future is not future]
        if left:
            self._watchers[key] = left
        else:
            self._watchers.pop(key, None)
