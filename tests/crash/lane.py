"""A process that has imported everything and opened nothing. It forks victims, one at a time, and says how each ended.

Importing takes longer than most victims live.
"""

from __future__ import annotations

import os
import sys
import traceback

import msgspec

import backstay.sdk.embedded  # noqa: F401 - so that every fork has it

from . import workflows
from .victim import Job, run

_decode = msgspec.json.Decoder(Job).decode


def main() -> None:
    for definition in workflows.BY_NAME.values():
        assert definition.definition.snapshot  # read from source once, not in every fork
    for line in sys.stdin.buffer:
        job = _decode(line)
        pid = os.fork()
        if pid == 0:
            _live(job)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _live(job: Job) -> None:
    code = 1
    try:
        log = os.open(f"{job.directory}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        run(job)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
