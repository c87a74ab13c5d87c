"""Makes Python collect garbage cycles less often while workflows run in this process.

Python collects whenever 700 more containers are alive than after the last collection. A workflow in flight has about sixty,
none of them in a cycle. So with fifty in flight Python collects again and again, finds nothing, and spends a tenth of the
processor on it. While a node or a worker is open the threshold is higher. A threshold that the program has set is left alone.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

RARELY = 10_000  # new containers until the next collection: some megabytes
DEFAULTS = (700, 2000)  # thresholds of the supported Python versions

_lock = threading.Lock()
_open = 0
_before: tuple[int, int, int] | None = None  # the threshold that the last one to close restores
_resting = 0


def relax() -> None:
    """Raise the threshold: a node or a worker has opened."""
    global _open, _before
    with _lock:
        _open += 1
        threshold = gc.get_threshold()
        if threshold[0] in DEFAULTS:
            _before = threshold
            gc.set_threshold(RARELY, *threshold[1:])


def restore() -> None:
    """Restore the threshold when the last node or worker has closed."""
    global _open, _before
    with _lock:
        _open -= 1
        if _open == 0 and _before is not None:
            if gc.get_threshold()[0] == RARELY:
                gc.set_threshold(*_before)
            _before = None


@contextmanager
def resting() -> Generator[None]:
    """Switch collections off for a while. A thread that builds millions of objects, none of them in a cycle, would otherwise
    stop all other threads for seconds while Python looks through them. If the program has switched them off, they stay off."""
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
