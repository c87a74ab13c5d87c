"""`dw doctor` on PostgreSQL: faults of a real database."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

from backstay import Backstay
from backstay.cli.doctor import machine, postgresql
from backstay.cli.main import dw
from backstay.store.postgresql.connection import address

from ..postgresql import with_schema
from .pooler import PGBOUNCER, StorePooler, server_of

Found = dict[str, dict[str, Any]]
Doctor = Callable[..., Found]


def checks(text: str) -> Found:
    return {one["check"]: one for one in json.loads(text)["checks"]}


@pytest.fixture
def doctor(postgresql_url: str) -> Doctor:
    """The checks of a database that no process runs, with `more` at the end of its URL."""
    with Backstay(postgresql_url):
        pass

    def examined(more: str = "", url: str = postgresql_url) -> Found:
        return checks(CliRunner().invoke(dw, ["doctor", "--db", url + more, "--json"]).stdout)

    return examined


def run(url: str, *statements: str) -> None:
    async def ran() -> None:
        connection = await asyncpg.connect(address(url).dsn)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(ran())


@pytest.fixture
def reader(postgresql_url: str) -> Iterator[str]:
    """A user who may only read."""
    name = f"reader_{os.getpid()}"
    yield name
    run(postgresql_url, f"drop owned by {name}", f"drop role {name}")


def broken(found: Found) -> list[str]:
    return [name for name, one in found.items() if one["status"] in ("warning", "error")]


def test_nothing_is_wrong_with_a_database_that_a_process_runs(doctor: Doctor, postgresql_url: str) -> None:
    assert broken(doctor()) == ["engine"]
    with Backstay(postgresql_url):
        found = doctor()
    assert (broken(found), list(found)) == ([], [*machine.NAMES, *postgresql.NAMES, "engine", "causes"])


def test_the_address_is_wrong_or_nothing_is_there(doctor: Doctor) -> None:
    found = doctor(url="postgresql://a@b:port/c")
    assert (broken(found), found["clock"]["status"]) == (["address"], "skipped")
    found = doctor(url="postgresql://a:secret@127.0.0.1:1/c")
    assert broken(found) == ["connection"]
    assert "secret" not in json.dumps(found)


def test_sessions_do_not_see_each_other(doctor: Doctor) -> None:
    found = doctor("&sessions=no")
    assert broken(found) == ["pooler", "engine"]
    assert "in session mode" in found["pooler"]["fix"]


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
def test_a_pooler_shares_sessions(doctor: Doctor, postgresql_url: str) -> None:
    server = server_of(postgresql_url)
    if server is None:
        pytest.skip("the server of the tests is not one of this machine")
    with closing(StorePooler(server, "transaction")) as pooler:
        url = with_schema(pooler.url, address(postgresql_url).schema)
        found = doctor(url=url)
        assert (broken(found), found["rights"]["status"]) == (["pooler"], "skipped")
        assert "is a pooler in transaction mode" in found["pooler"]["message"]
        assert "?pooler=transaction" in found["pooler"]["fix"]
        assert broken(doctor(url=f"{url}&pooler=transaction")) == ["engine"], "the fix helps"


def test_the_schema_is_newer_older_or_of_another_program(doctor: Doctor, postgresql_url: str) -> None:
    table = f"{address(postgresql_url).schema}.migration"
    run(postgresql_url, f"insert into {table} values (900, 'later', '')")
    found = doctor()
    assert (found["schema"]["status"], "engine" in found) == ("error", False)
    assert "schema 900" in found["schema"]["message"]
    run(postgresql_url, f"delete from {table} where number > 1")
    found = doctor()
    assert found["schema"]["status"] == "warning"
    assert "has schema 1, this release uses" in found["schema"]["message"]
    run(postgresql_url, f"drop table {table}")
    assert "belongs to another program" in doctor()["schema"]["message"]
    assert "is empty" in doctor("_none")["schema"]["message"]


def test_the_user_may_not_write(doctor: Doctor, postgresql_url: str, reader: str) -> None:
    schema = address(postgresql_url).schema
    run(
        postgresql_url,
        f"create role {reader} login",
        f"grant usage on schema {schema} to {reader}",
        f"grant select on all tables in schema {schema} to {reader}",
    )
    url = postgresql_url.replace("postgres@", f"{reader}@")
    found = doctor(url=url)
    assert broken(found) == ["rights"]
    assert f"{reader} may not write command, engine, event" in found["rights"]["message"]
    run(postgresql_url, found["rights"]["fix"])
    assert "rights" not in broken(doctor(url=url)), "the fix helps"
    run(postgresql_url, f"alter role {reader} set default_transaction_read_only = on")
    found = doctor(url=url)
    assert broken(found) == ["rights"]
    assert f"transactions of {reader} are read only" in found["rights"]["message"]


def test_the_clock_of_this_machine_differs(doctor: Doctor, tmp_path: Path, postgresql_url: str) -> None:
    doctor()
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nreal = time.time_ns\ntime.time_ns = lambda: real() - 300 * 10**9\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "backstay.cli.main", "doctor", "--db", postgresql_url, "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        timeout=30,
        check=False,
    )
    found = checks(done.stdout)
    assert "clock" in broken(found)
    assert found["clock"]["message"].startswith("the clock of this machine is 5 min behind that of postgresql://")
