"""A program that waits for a workflow when Ctrl-C comes."""

from __future__ import annotations

import asyncio
import signal
import sys

from backstay import AsyncBackstay, Backstay

from . import flows


def waiting(path: str, ledger: str, gate: str) -> None:
    with Backstay(path, flows.REGISTER) as app:
        app.execute(flows.gated, "g", ledger, gate)


def waiting_beside(path: str, ledger: str, gate: str) -> None:
    """A local activity is running."""
    with Backstay(path, flows.REGISTER) as app:
        app.execute(flows.gated_beside, "g", ledger, gate)


def waiting_async(path: str, ledger: str, gate: str) -> None:
    async def wait() -> None:
        async with AsyncBackstay(path, flows.REGISTER) as app:
            await app.execute(flows.gated, "g", ledger, gate)

    asyncio.run(wait())


if __name__ == "__main__":
    # Whatever it was started with: a shell starts the programs in the background of a script with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    globals()[sys.argv[1]](*sys.argv[2:])
