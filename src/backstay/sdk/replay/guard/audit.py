"""The audit hook: Python tells it of every file, socket, process and thread, whatever code below opens one, C included.

A hook cannot be removed, so it is installed once, with the first workflow that wants it. Everywhere but on a greenlet it costs
one look-up for an event that is not watched, and two for one that is.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from greenlet import getcurrent

from backstay.sdk.replay.guard.verdict import accuse, culprit, guarded
from backstay.sdk.replay.workflow_greenlet import WorkflowGreenlet

_ACTIVITY = "use an activity"
_SPAWN = "use backstay.spawn(), or an activity for blocking work"

_IO = """
    open mmap.__new__ sqlite3.connect subprocess.Popen glob.glob tempfile.mkstemp tempfile.mkdtemp
    shutil.copyfile shutil.copymode shutil.copystat shutil.copytree shutil.move shutil.rmtree shutil.chown
    shutil.make_archive shutil.unpack_archive
    os.system os.listdir os.scandir os.walk os.fwalk os.remove os.rename os.mkdir os.rmdir os.link os.symlink os.truncate
    os.utime os.chdir os.chmod os.chown os.chflags os.lockf os.getxattr os.setxattr os.listxattr os.removexattr
    os.exec os.spawn os.posix_spawn os.startfile pty.spawn webbrowser.open
    socket.__new__ socket.bind socket.connect socket.sendto socket.sendmsg socket.getaddrinfo socket.getnameinfo
    socket.gethostbyname socket.gethostbyaddr socket.gethostname socket.sethostname
    http.client.connect urllib.Request ftplib.connect smtplib.connect poplib.connect imaplib.open telnetlib.Telnet.open
"""
# Python does not audit everything: `time.sleep` before Python 3.13, the start of a thread before 3.12, clocks and
# `os.urandom` on any. The shims and the monitor know those.
_RULES: dict[str, tuple[str, str]] = {
    **{event: (event, _ACTIVITY) for event in _IO.split()},
    "builtins.input": ("input", _ACTIVITY),
    "os.fork": ("os.fork", _ACTIVITY),
    "os.forkpty": ("os.forkpty", _ACTIVITY),
    "os.putenv": ("os.putenv", "pass it as an argument"),
    "os.unsetenv": ("os.unsetenv", "pass it as an argument"),
    "time.sleep": ("time.sleep", "use backstay.sleep()"),
    "_thread.start_new_thread": ("threading.Thread.start", _SPAWN),
    "_thread.start_joinable_thread": ("threading.Thread.start", _SPAWN),
}

_installed = False


def install() -> None:
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_heard)


def _heard(event: str, args: tuple[Any, ...], rules: dict[str, tuple[str, str]] = _RULES) -> None:
    # `rules` is bound here: Python empties this module when it exits, and the hook hears what happens after that.
    rule = rules.get(event)
    if rule is None:
        return
    try:
        if type(getcurrent()) is not WorkflowGreenlet:
            return
    except RuntimeError:
        return  # the interpreter is ending
    live_run = guarded()
    if live_run is None or (event == "open" and _time_zone(args[0])):
        return
    frame = culprit(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    if frame is not None:
        accuse(live_run, frame, _call(rule[0], args), rule[1])


def _time_zone(path: object) -> bool:
    """Return whether this is the time zone database. `zoneinfo` opens it from C, so none of its frames is on the stack."""
    zoneinfo = sys.modules.get("zoneinfo")
    return zoneinfo is not None and isinstance(path, str) and path.startswith(tuple(zoneinfo.TZPATH))


def _call(name: str, args: tuple[Any, ...]) -> str:
    """Return the call as its author may have written it, with the path or command that it names."""
    first = args[0] if args else None
    if isinstance(first, os.PathLike):
        first = os.fspath(first)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if not isinstance(first, str | bytes):
        return f"{name}()"
    text = repr(first)
    return f"{name}({text if len(text) <= 80 else text[:77] + '...'})"
