"""What tests do in a process of its own: `python -m tests.store.child VERB PATH`. Talks in lines on stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

from backstay.store import Store
from backstay.store.errors import StoreError
from backstay.store.opening import open_store
from backstay.store.sqlite import SqliteStore

from ..kernel.given import MACHINE
from .instances import StoredFlow, apply
from .seam import connection_of

NOBODY = 65534


def say(thing: Any) -> None:
    print(json.dumps(thing), flush=True)


def opened(path: str) -> SqliteStore:
    return SqliteStore(path, MACHINE.kinds)


async def opening(database: str) -> Store:
    return await open_store(database, MACHINE.kinds)


async def heard() -> None:
    """A line on stdin, without holding up the event loop."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def open_together(path: str) -> None:
    """Open when the others do."""
    say("ready")
    sys.stdin.readline()

    async def go() -> None:
        await (await opening(path)).close()

    try:
        asyncio.run(go())
    except StoreError as error:
        say(str(error))
    else:
        say("opened")


def refused(path: str) -> None:
    """Try to open as a user without privileges."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        opened(path).close()
    except StoreError as error:
        say([type(error).__name__, str(error)])
    else:
        say(["opened", ""])


def hold(path: str) -> None:
    """Be the engine until killed."""

    async def go() -> None:
        store = await opening(path)
        say(await store.acquire())
        await heard()
        await store.close()

    asyncio.run(go())


def hold_and_fork(path: str) -> None:
    """Be the engine until killed, with a child process that lives on."""

    async def go() -> None:
        store = await opening(path)
        assert await store.acquire()
        if os.fork() == 0:
            say("forked")
            sys.stdin.readline()
            os._exit(0)
        await heard()
        await store.close()

    asyncio.run(go())


def start_many(path: str) -> None:
    """Start workflows, batch after batch, and say which of them are on disk."""

    async def go() -> None:
        store = await opening(path)
        while True:
            batch = [StoredFlow() for _ in range(20)]
            result = await apply(store, *(instance.start() for instance in batch))
            assert not result.stale
            assert not result.failed
            assert result.down is None
            say([instance.run.run_id for instance in batch])

    asyncio.run(go())


def contend(path: str) -> None:
    """Get ten decisions of this process into the one instance that everybody changes."""

    async def go() -> None:
        store = await opening(path)
        key = await store.find("default", "contended")
        assert key is not None
        say("ready")
        await heard()
        won = tries = 0
        while won < 10:
            tries += 1
            loaded = await store.load(key)
            assert loaded is not None
            result = await apply(store, StoredFlow.read(loaded).start())
            if result.down is not None:
                while await store.probe() is not None:
                    pass
            elif not result.stale:
                won += 1
        await store.close()
        say(tries)

    asyncio.run(go())


def fill_the_disk(path: str) -> None:
    """No file of this process may grow; then it may again. Says what happened."""

    async def go() -> None:
        store = opened(path)
        kept, lost, later = StoredFlow(), StoredFlow(), StoredFlow()
        assert (await apply(store, kept.start())).down is None
        statements: list[str] = []
        connection = connection_of(store)
        connection.set_trace_callback(statements.append)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path + "-wal"), hard))
        start = lost.start()
        full = await apply(store, start)
        say({"down": str(full.down), "commits": statements.count("commit")})
        say({"probe while full": str(await store.probe())})
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        blind = await apply(store, start)
        say({"down without a probe": str(blind.down)})
        say({"probe": await store.probe(), "lost": await store.load(lost.key)})
        after = await apply(store, later.start())
        say({"down": after.down, "kept": kept.key, "lost": lost.key, "later": later.key})
        store.close()

    asyncio.run(go())


VERBS: dict[str, Callable[[str], None]] = {
    verb.__name__: verb for verb in (open_together, refused, hold, hold_and_fork, start_many, contend, fill_the_disk)
}

if __name__ == "__main__":
    VERBS[sys.argv[1]](sys.argv[2])
