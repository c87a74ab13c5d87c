"""Checks of a PostgreSQL database. Nothing is written: a schema of an older release is not brought up to date, either."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from backstay.cli.doctor import clocks, files
from backstay.cli.doctor.results import CheckResult, error, ok, warning
from backstay.store.address import checked
from backstay.store.errors import StoreError
from backstay.store.sql import migrations

if TYPE_CHECKING:
    from backstay.store.postgresql.connection import Address
    from backstay.store.postgresql.driver import DriverConnection

NAMES = ("address", "connection", "pooler", "schema", "rights", "clock")

POOLER = "add ?pooler=transaction to the URL, set the pooler to session mode, or connect to the server itself"


async def checks(url: str) -> AsyncIterator[CheckResult]:
    """Ends with the first result that makes the rest impossible. The driver is there: see `machine`."""
    from backstay.store.postgresql.connection import address, check_server, check_sessions, connect
    from backstay.store.postgresql.driver import asyncpg, unavailable

    try:
        database = address(checked(url))
    except StoreError as problem:
        yield error("address", str(problem), "write postgresql://USER@HOST:5432/DATABASE")
        return
    yield ok("address", f"schema {database.schema} of {database.shown}")
    try:
        connection = await connect(database)
    except StoreError as problem:
        fix = "start the server, or correct host, port, database, user and password (PGPASSWORD, ~/.pgpass)"
        yield error("connection", str(problem), fix)
        return
    try:
        check_server(database.shown, connection.get_server_version())
        yield ok("connection", f"PostgreSQL {connection.get_server_version()[0]}, this user may connect")
        try:
            sessions = await check_sessions(database, connection)
        except StoreError as problem:
            yield error("pooler", str(problem), POOLER)
            return
        yield _pooler(database.pooled, sessions)
        found = await _schema(connection, database)
        yield found
        if found.status == "ok":
            yield await _rights(connection, database)
        yield await _clock(connection, database.shown)
    except StoreError as problem:
        yield error("connection", str(problem), "upgrade the server")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as problem:
        yield error("connection", str(unavailable(database.shown, problem)), "see the log of the server")
    finally:
        connection.terminate()


def _pooler(pooled: bool, sessions: bool) -> CheckResult:
    if pooled:
        return ok("pooler", "the URL says that a pooler in transaction mode is between")
    if not sessions:
        message = "one session does not see the locks of another, so a dead node is replaced by time and not at once"
        return warning("pooler", message, "connect to PostgreSQL itself, or to a pooler in session mode")
    return ok("pooler", "none, or one in session mode")


async def _schema(connection: DriverConnection, database: Address) -> CheckResult:
    from backstay.store.postgresql.connection import schema_version

    steps = migrations("backstay.store.postgresql")
    try:
        version = await schema_version(connection, database, steps)
    except StoreError as problem:
        return error("schema", str(problem), "install that release of Backstay, or name another schema with ?schema=")
    return files.compared(f"schema {database.schema} of {database.shown}", version, steps[-1].number)


async def _rights(connection: DriverConnection, database: Address) -> CheckResult:
    ((is_standby, is_read_only, user),) = await connection.fetch(
        "select pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', current_user"
    )
    if is_standby or is_read_only:
        why = "this is a standby" if is_standby else f"transactions of {user} are read only"
        fix = (
            "name the primary, or several hosts and target_session_attrs=read-write; see default_transaction_read_only"
        )
        return error("rights", f"nothing can be committed: {why}", fix)
    missing = [
        table
        for (table,) in await connection.fetch(
            # Of a list of privileges one would do, so each is asked for.
            "select distinct tablename from pg_tables, unnest(array['select', 'insert', 'update', 'delete']) as wanted"
            " where schemaname = $1 and not has_table_privilege(format('%I.%I', schemaname, tablename), wanted)"
            " order by tablename",
            database.schema,
        )
    ]
    if missing:
        fix = f"grant select, insert, update, delete on all tables in schema {database.schema} to {user}"
        return error("rights", f"{user} may not write {', '.join(missing)}", fix)
    return ok("rights", f"{user} may read and write all tables")


async def _clock(connection: DriverConnection, where: str) -> CheckResult:
    asked = time.time_ns() // 1000
    ((there,),) = await connection.fetch("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
    answered = time.time_ns() // 1000
    return clocks.compared((asked + answered) // 2, there, answered - asked, where)
