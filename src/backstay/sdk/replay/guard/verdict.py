"""Decides whether the running code is replayed, and refuses or warns of a call that a replay could not repeat."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Literal

from greenlet import getcurrent

from backstay.sdk.errors import Evicted, NonDeterminismError, NonDeterminismWarning
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import WorkflowGreenlet

Guard = Literal["error", "warn", "off"]

# Below any of these packages the world is read or written for the sake of the process, not of the workflow: loading code
# and what is deployed with it, showing where something happened, logging it, cleaning up after an object that the
# collector met by chance.
_MACHINERY = frozenset(
    {
        "importlib",
        "_frozen_importlib",
        "_frozen_importlib_external",
        "zipimport",
        "zoneinfo",
        "linecache",
        "traceback",
        "warnings",
        "logging",
        "weakref",
    }
)
_FINALIZER = "__del__"

_warned: set[tuple[str, int, str]] = set()


def replayed() -> LiveRun | None:
    """Return the run whose code is executing, if a replay will execute that code again."""
    try:
        greenlet = getcurrent()
    except RuntimeError:
        return None  # the interpreter is ending: what its last code does belongs to no workflow
    if type(greenlet) is not WorkflowGreenlet:
        return None
    readonly = greenlet.readonly
    return greenlet.live_run if readonly is None or readonly.replayed else None


def guarded() -> LiveRun | None:
    """Return the same run, if its guard is not off."""
    live_run = replayed()
    return live_run if live_run is not None and live_run.guard != "off" else None


def culprit(frame: FrameType | None) -> FrameType | None:
    """Return the frame of workflow code that is responsible for the call of `frame`; None if none is.

    The walk ends at the first frame of our own: whatever lies below it is the author's code, or nothing.
    """
    found: FrameType | None = None
    outside: FrameType | None = None
    while frame is not None:
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        if top == "backstay":
            break
        if top in _MACHINERY or frame.f_code.co_name == _FINALIZER:
            return None
        if top not in sys.stdlib_module_names:
            found = found or frame
            if outside is None and "site-packages" not in frame.f_code.co_filename:
                outside = frame
        frame = frame.f_back
    return outside or found


def accuse(live_run: LiveRun, frame: FrameType, what: str, advice: str) -> None:
    """Refuse the call that `frame` makes, or warn of it, as the run's guard says."""
    if live_run.abandoned:
        raise Evicted  # dropped code is being unwound, and nothing it does may have an effect
    place = f"{what} inside a workflow; {advice}"
    if live_run.guard == "error":
        raise NonDeterminismError(f"{frame.f_code.co_filename}:{frame.f_lineno}: {place}")
    site = (frame.f_code.co_filename, frame.f_lineno, what.partition("(")[0])
    if site not in _warned:
        _warned.add(site)
        warnings.warn_explicit(place, NonDeterminismWarning, frame.f_code.co_filename, frame.f_lineno)
