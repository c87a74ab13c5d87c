"""A worker with workflow code that kills it (`URL TOKEN NAME`), and the same once that is corrected (`... corrected`)."""

from __future__ import annotations

import os
import sys

from backstay import Worker, workflow


@workflow(unchecked=True)
def fatal() -> str:
    os._exit(9)


@workflow(type="fatal")
def corrected() -> str:
    return "alive"


@workflow
def innocent() -> str:
    return "done"


if __name__ == "__main__":
    url, token, name, *rest = sys.argv[1:]
    Worker(url, [corrected if rest else fatal, innocent], token=token, worker_id=name).run()
