"""Try a database that speaks PostgreSQL's protocol (YugabyteDB, Citus, a managed one) before anything depends on it.

    python -m tools.try_database postgresql://user@host:5433/database            what Backstay needs of it, one line each
    python -m tools.try_database postgresql://user@host:5433/database --tests    and then the tests of the store

It writes into schemas of its own, `backstay_try` and those of the tests, and drops the first again. `needed`: without it Backstay
cannot be used there. `saves time`: without it a dead process is noticed after 15 seconds instead of at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg

from backstay import AsyncBackstay, activity, workflow

SCHEMA = "backstay_try"
NUMBER = 0x54727921  # "Try!": an advisory lock that nobody else takes
PATIENCE = 30.0
TESTS = ["tests/store/test_postgresql.py", "tests/store/test_postgresql_sql.py", "tests/processes/test_postgresql.py"]

Check = Callable[[str], Awaitable[str]]


@activity
async def add(a: int) -> int:
    return a + 1


@workflow(type="try-add")
def adds(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = add.step(total).run()
    return total


class Sessions:
    """Two sessions in the schema of the trial."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> tuple[asyncpg.Connection, asyncpg.Connection]:
        self._both = [await asyncpg.connect(self._url, timeout=PATIENCE, command_timeout=PATIENCE) for _ in range(2)]
        for session in self._both:
            await session.execute(f"create schema if not exists {SCHEMA}; set search_path = {SCHEMA}")
        return self._both[0], self._both[1]

    async def __aexit__(self, *_: object) -> None:
        for session in self._both:
            session.terminate()


async def what_it_is(url: str) -> str:
    async with Sessions(url) as (one, _):
        told = await one.fetchval("select version()")
        citus = await one.fetchval("select extversion from pg_extension where extname = 'citus'")
        return (
            f"{told}{f', Citus {citus}' if citus else ''}, isolation {await one.fetchval('show transaction_isolation')}"
        )


async def several_changes_in_one_statement(url: str) -> str:
    """A batch is one statement that changes several tables, some of them twice."""
    async with Sessions(url) as (one, _):
        await one.execute("create table a (id bigint primary key, n bigint); create table b (id bigint primary key)")
        await one.execute("insert into a values (1, 1)")
        await one.execute(
            "with marked as (update a set n = n + 1 where id = 1 and n = 1 returning n), put as (insert into a select 2, n"
            " from marked returning id) insert into b select id from put"
        )
        rows = [tuple(row) for row in await one.fetch("select * from a order by id")]
        if rows != [(1, 2), (2, 2)] or await one.fetchval("select id from b") != 2:
            raise ValueError(f"found {rows}")
    return "a statement with three of them did what it says"


async def a_guard_is_judged_after_waiting(url: str) -> str:
    """Who is to be deposed is judged again after its batch: an update that waited sees what was committed meanwhile."""
    async with Sessions(url) as (one, other):
        await one.execute("create table guard (id int primary key, alive boolean, fenced boolean default false)")
        await one.execute("insert into guard values (1, false)")
        batch = one.transaction()
        await batch.start()
        await one.execute("update guard set alive = true where id = 1")
        deposing = asyncio.create_task(other.execute("update guard set fenced = true where id = 1 and not alive"))
        await asyncio.sleep(0.5)
        if deposing.done():
            raise ValueError(f"it did not wait for the row: {deposing.result()}")
        await batch.commit()
        done = await asyncio.wait_for(deposing, PATIENCE)
        if done != "UPDATE 0":
            raise ValueError(f"{done} after a commit that should have kept it from it")
    return "it waited, judged anew, and changed nothing"


async def one_of_two_names_wins(url: str) -> str:
    """Two starts under one id: the second waits for the first, and is told that the name is taken."""
    async with Sessions(url) as (one, other):
        await one.execute("create table names (name text primary key)")
        first = one.transaction()
        await first.start()
        await one.execute("insert into names values ('order-1')")
        second = asyncio.create_task(other.execute("insert into names values ('order-1') on conflict do nothing"))
        await asyncio.sleep(0.5)
        await first.commit()
        done = await asyncio.wait_for(second, PATIENCE)
        if done != "INSERT 0 0":
            raise ValueError(f"the second said {done}")
    return "the second found it taken"


async def the_clock_of_the_database(url: str) -> str:
    async with Sessions(url) as (one, _):
        before = await one.fetchval("select clock_timestamp()")
        await asyncio.sleep(0.2)
        went = (await one.fetchval("select clock_timestamp()") - before).total_seconds()
        if not 0.15 < went < PATIENCE:
            raise ValueError(f"it went on by {went} s in 0.2 s")
    return f"went on by {went:.3f} s in 0.2 s"


async def locks_of_sessions(url: str) -> str:
    """A session holds a lock with its number, others see it, and it is gone with the session."""
    async with Sessions(url) as (one, other):
        seen = f"select count(*) from pg_locks where locktype = 'advisory' and objid = {NUMBER} and granted"
        if not await one.fetchval(f"select pg_try_advisory_lock({NUMBER})"):
            raise ValueError("nobody has it, and it was not given")
        if await other.fetchval(f"select pg_try_advisory_lock({NUMBER})"):
            raise ValueError("two sessions got it")
        if await other.fetchval(seen) != 1:
            raise ValueError("pg_locks does not show it")
        one.terminate()
        began = time.monotonic()
        while await other.fetchval(seen):
            if time.monotonic() - began > 5:
                raise ValueError("it is still there 5 s after its session")
            await asyncio.sleep(0.02)
    return f"gone {time.monotonic() - began:.2f} s after its session"


async def work(url: str) -> str:
    """Backstay itself, alone and with many workflows at a time."""
    where = f"{url}{'&' if '?' in url else '?'}schema={SCHEMA}_work"
    async with AsyncBackstay(where, [adds, add]) as app:
        began = time.monotonic()
        for number in range(10):
            await app.execute(adds, f"alone-{number}", 3)
        alone = (time.monotonic() - began) / 30
        began = time.monotonic()
        await asyncio.gather(*(app.execute(adds, f"many-{number}", 3) for number in range(200)))
        many = 600 / (time.monotonic() - began)
    return f"{alone * 1e3:.1f} ms for a step alone, {many:.0f} steps a second with 200 workflows at a time"


CHECKS: list[tuple[str, Check, str]] = [
    ("several changes in one statement", several_changes_in_one_statement, "needed"),
    ("a guard is judged after waiting", a_guard_is_judged_after_waiting, "needed"),
    ("one of two equal names wins", one_of_two_names_wins, "needed"),
    ("the clock of the database", the_clock_of_the_database, "needed"),
    ("locks of sessions", locks_of_sessions, "saves time"),
    ("workflows", work, "needed"),
]


async def clean(url: str) -> None:
    session = await asyncpg.connect(url, timeout=PATIENCE)
    await session.execute(f"drop schema if exists {SCHEMA} cascade; drop schema if exists {SCHEMA}_work cascade")
    await session.close()


async def tried(url: str) -> int:
    """Every check, one after the other. Returns how many of what is needed failed."""
    print(await what_it_is(url))
    await clean(url)
    missing = 0
    for name, check, need in CHECKS:
        try:
            print(f"ok      {name}: {await check(url)}", flush=True)
        except Exception as error:  # whatever a database says is a result
            missing += need == "needed"
            print(f"FAILED  {name} ({need}): {type(error).__name__}: {error}", flush=True)
    await clean(url)
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--tests", action="store_true", help="run the tests of the store on it, too")
    options = parser.parse_args()
    missing = asyncio.run(tried(options.url))
    if options.tests and not missing:
        command = [sys.executable, "-m", "pytest", *TESTS]
        environment = os.environ | {"BACKSTAY_TEST_POSTGRESQL": options.url}
        missing = subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=False).returncode
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
