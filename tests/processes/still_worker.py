"""A worker of a server in a process of its own, with the code that it is told to have.

python -m tests.processes.still_worker code|work URL TOKEN NAME LEDGER
"""

from __future__ import annotations

import asyncio
import sys

from backstay import AsyncWorker, activity, workflow

from .flows import write

ledger = ""


@activity(type="still-work")
def work(key: str) -> str:
    write(ledger, f"work\t{key}")
    return key


@workflow(type="still")
def still(key: str) -> str:
    return work(key)


async def main(code: str, url: str, token: str, name: str) -> None:
    async with AsyncWorker(url, [still] if code == "code" else [work], token=token, worker_id=name):
        print("connected", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    ledger = sys.argv[5]
    asyncio.run(main(*sys.argv[1:5]))
