"""The arguments of a process of `dw dev`: the file, the address of its runs, and its parent."""

from __future__ import annotations

import os
import sys

import msgspec
from msgspec import Struct

RELOAD = 75  # exit code: a file was saved, start again


class DevPlan(Struct, frozen=True, kw_only=True):
    """`server`: the address of the server that the process works for; empty until the server listens.

    `open_runs`: how many runs go on with the code of this process, in words.
    """

    file: str
    path: str
    namespace: str
    queues: tuple[str, ...] = ()
    server: str = ""
    open_runs: str | None = None
    parent: int = msgspec.field(default_factory=os.getpid)

    def command_line(self) -> list[str]:
        return [sys.executable, "-P", "-m", "backstay.cli.dev_process", msgspec.json.encode(self).decode()]


def told(argument: str) -> DevPlan:
    """The plan that a process was started with."""
    return msgspec.json.decode(argument, type=DevPlan)
