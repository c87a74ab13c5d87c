"""How often Python looks for garbage cycles while workflows run in this process.

It does so whenever 700 more containers are alive than at its last look. A workflow in flight has about sixty, none of them in a
cycle, so with fifty in flight it looks again and again, finds nothing, and takes a tenth of the processor for that. While
something of ours is open it looks more rarely. A threshold that the program has chosen itself is left alone.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

RARELY = 10_000  # containers more than at the last look: some megabytes
DEFAULTS = (700, 2000)  # of the Pythons there are

_lock = threading.Lock()
_open = 0
_before: tuple[int, int, int] | None = None  # what is put back with the last one that closes
_resting = 0


def relax() -> None:
    """Something of ours has opened."""
    global _open, _before
    with _lock:
        _open += 1
        threshold = gc.get_threshold()
        if threshold[0] in DEFAULTS:
            _before = threshold
            gc.set_threshold(RARELY, *threshold[1:])


def restore() -> None:
    """It has closed again."""
    global _open, _before
    with _lock:
        _open -= 1
        if _open == 0 and _before is not None:
            if gc.get_threshold()[0] == RARELY:
                gc.set_threshold(*_before)
            _before = None


@contextmanager
def resting() -> Generator[None]:
    """Not at all for now. Whoever builds millions of objects on a thread, none of them in a cycle, would have every other
    thread stand still for seconds while they are looked through in vain. A program that has switched it off finds it so."""
    global _resting
    with _lock:
        mine = gc.isenabled() or _resting > 0
        _resting += mine
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _resting -= mine
            if mine and _resting == 0:
                gc.enable()
