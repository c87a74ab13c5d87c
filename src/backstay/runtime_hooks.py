"""The four hooks of Backstay in the Python runtime of the process that imports it.

**The running event loop.** asyncio keeps the loop that runs on a thread in a variable of that thread. Workflow code runs on
greenlets of the same thread, below the loop of the engine or of the worker, and must not find that loop: `asyncio.sleep()`
would wait there, in time that no history knows of, and a replay would not repeat it. An `async def` workflow must find its
own loop, the deterministic one. So the variable is set to None, or to the workflow's loop, for as long as its code runs, and
back afterwards. asyncio has no public name for that; `_set_running_loop` is what every event loop calls to run. Without it
plain workflow code takes itself for a coroutine: `test_an_async_activity_is_awaited_in_async_code_and_run_as_a_step_in_plain_code`.

**The garbage collector.** A collection of cycles may begin at any allocation, so also in the middle of workflow code, and
runs `__del__` and `finally` blocks of the objects it finds: perhaps of another run that was dropped long ago. A durable call
in such a block would become a step of the run whose code is just running, and a replay would not repeat it. While a collection
runs on a thread, durable calls on it are refused. `tests/sdk/test_collector.py` shows it.

**Forks.** A child process inherits the engine, its file locks and its sockets, and may use none of them: two processes would
write under one lock. To compare the process id for every message would be a system call each, so the owners of such things
register a callback that runs in the child. `test_an_engine_opened_before_a_fork_is_refused_in_the_child` forks under an engine.

**Sets of coroutines.** `asyncio.as_completed` and `asyncio.wait` put what they are given into a set before they start it, to drop
duplicates. A coroutine is hashed by its address, so they would start in another order in each process, and a replay would give
each the other's results. asyncio's module of tasks therefore finds an ordered set under the name `set`: the functions themselves
stay as they are, also where code has imported them by name. `test_as_completed_starts_coroutines_in_their_order` counts on it.
"""

from __future__ import annotations

import asyncio.events
import asyncio.tasks
import gc
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

get_running_loop: Final = asyncio.events._get_running_loop
set_running_loop: Final = asyncio.events._set_running_loop


class _Collector(threading.local):
    """Whether a collection of cycles runs on this thread."""

    collecting = False


collector: Final = _Collector()


def _on_collection(phase: str, _: object, collector: _Collector = collector) -> None:
    collector.collecting = phase == "start"


gc.callbacks.append(_on_collection)


def after_fork_in_child(callback: Callable[[], None]) -> None:
    """Call this in every child process that is forked from now on, before anything else runs there."""
    os.register_at_fork(after_in_child=callback)


def _set(items: Iterable[Any] | None = None) -> Any:
    """Return a set; of items a dictionary with them as its keys, which is a set in order to code that only iterates it."""
    return set[Any]() if items is None else dict.fromkeys(items)


setattr(asyncio.tasks, "set", _set)  # noqa: B010 - it is no attribute that the module declares
