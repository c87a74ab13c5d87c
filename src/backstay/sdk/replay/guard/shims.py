"""Clocks and randomness that answer from the run, for code that reads them all the same. Opt-in, for the whole process.

`time.time()` in a workflow is then the run's time, `random.random()` and `os.urandom()` (and so `uuid.uuid4()`) repeat in every
replay. Outside workflow code, and in side effects, each call goes through to the real function, at a price of about 0.2 µs.
Names bound before (`from time import time`) escape, and so does `datetime.now`; the source check and the monitor know those.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from backstay.kernel.values import SECOND
from backstay.sdk.replay.guard.verdict import accuse, culprit, guarded, replayed
from backstay.sdk.replay.live_run import LiveRun

_real: list[tuple[Any, str, Any]] = []  # what was replaced, to be put back
_answering: set[int] = set()


def install() -> None:
    """Replace the functions, once."""
    if _real:
        return
    for name in ("time", "monotonic", "perf_counter"):
        _answer(time, name, _seconds)
        _answer(time, f"{name}_ns", _nanoseconds)
    for name in random.__all__:
        drawn = getattr(random, name)
        if isinstance(getattr(drawn, "__self__", None), random.Random):
            _answer(random, name, _draw(name))
    _answer(os, "urandom", _bytes)
    _refuse(time, "sleep", "time.sleep()", "use backstay.sleep()")
    spawn = "use backstay.spawn(), or an activity for blocking work"
    _refuse(threading.Thread, "start", "threading.Thread.start()", spawn)


def remove() -> None:
    """Put the real functions back."""
    while _real:
        owner, name, real = _real.pop()
        setattr(owner, name, real)
    _answering.clear()


def answers(function: object) -> bool:
    """Return whether this is a shim, which answers from the run."""
    return id(function) in _answering


def _seconds(live_run: LiveRun) -> float:
    return live_run.read_clock() / SECOND


def _nanoseconds(live_run: LiveRun) -> int:
    return live_run.read_clock() * 1000


def _bytes(live_run: LiveRun, size: int, /) -> bytes:
    return live_run.rng().randbytes(size)


def _draw(name: str) -> Callable[..., Any]:
    def draw(live_run: LiveRun, *args: Any, **kwargs: Any) -> Any:
        return getattr(live_run.rng(), name)(*args, **kwargs)

    return draw


def _answer(owner: Any, name: str, answer: Callable[..., Any]) -> None:
    real = getattr(owner, name)

    def shim(*args: Any, **kwargs: Any) -> Any:
        live_run = replayed()
        return real(*args, **kwargs) if live_run is None else answer(live_run, *args, **kwargs)

    _answering.add(id(_replace(owner, name, real, shim)))


def _refuse(owner: Any, name: str, what: str, advice: str) -> None:
    real = getattr(owner, name)

    def shim(*args: Any, **kwargs: Any) -> Any:
        live_run = guarded()
        frame = None if live_run is None else culprit(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if live_run is not None and frame is not None:
            accuse(live_run, frame, what, advice)
        return real(*args, **kwargs)

    _replace(owner, name, real, shim)


def _replace(owner: Any, name: str, real: Any, shim: Callable[..., Any]) -> Callable[..., Any]:
    shim = wraps(real)(shim)
    _real.append((owner, name, real))
    setattr(owner, name, shim)
    return shim
