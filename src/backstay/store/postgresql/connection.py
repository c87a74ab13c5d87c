"""Opening a PostgreSQL database safely: the URL, sessions, migrations, and errors with advice.

All tables live in one schema (`backstay`, or that of `?schema=`). A schema of another program or of an unknown version
is left untouched.
"""

from __future__ import annotations

import re
from secrets import randbits
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from backstay.store.address import shown
from backstay.store.errors import IncompatibleStore, StoreError, Unavailable
from backstay.store.postgresql import forks
from backstay.store.postgresql.driver import POOLED, DriverConnection, asyncpg, unavailable
from backstay.store.postgresql.pooled import PooledConnection
from backstay.store.sql import Migration, check_recorded, check_version, migrations, queries

OLDEST_SERVER = 14
SCHEMES = ("postgresql", "postgres")
PATIENCE = 10.0  # seconds for a connection to come about
LONGEST = 60.0  # and for a statement to end

LOCK = 0x486F6C64  # "Hold": the first half of our advisory locks
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_SETTINGS = {
    "application_name": "backstay",
    "jit": "off",  # compiles for longer than our statements run
    "plan_cache_mode": "force_generic_plan",  # every statement of ours has one good plan
    "lock_timeout": "10s",
    # A client that vanished without a word is noticed within half a minute, so that another engine can take over.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}


class Address(NamedTuple):
    """Where a database is: for asyncpg, for people (without the password), and which schema of it is ours."""

    dsn: str
    shown: str
    schema: str
    given: frozenset[str]  # settings that the URL itself makes
    sessions: bool = True  # whether sessions may show which processes are alive
    pooled: bool = False  # a pooler may give each transaction another session


def address(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise StoreError(f"{parts.scheme}: is not a store; use postgresql://user@host:5432/database")
    options = parse_qsl(parts.query, keep_blank_values=True)
    schema = next((value for name, value in options if name == "schema"), "backstay")
    if not _IDENTIFIER.fullmatch(schema):
        raise StoreError(
            f"the schema {schema!r} of the URL is not a plain name; use lower-case letters, digits and underscores"
        )
    sessions = next((value for name, value in options if name == "sessions"), "yes")
    if sessions not in ("yes", "no"):
        raise StoreError(f"sessions={sessions} of the URL is neither yes nor no")
    pooler = next((value for name, value in options if name == "pooler"), None)
    if pooler not in (None, "transaction"):
        raise StoreError(f"pooler={pooler} of the URL is not transaction; leave it out for a pooler in session mode")
    rest = urlencode([(name, value) for name, value in options if name not in ("schema", "sessions", "pooler")])
    dsn = urlunsplit((parts.scheme, parts.netloc, parts.path, rest, ""))
    return Address(
        dsn, shown(url), schema, frozenset(name for name, _ in options), sessions == "yes", pooler is not None
    )


async def connect(database: Address) -> DriverConnection:
    """A session with our settings. Errors have advice."""
    try:
        connection = await asyncpg.connect(
            database.dsn,
            timeout=PATIENCE,
            command_timeout=LONGEST,
            statement_cache_size=0 if database.pooled else 100,
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise unavailable(database.shown, error) from error
    except ValueError as error:  # the URL itself
        raise StoreError(f"{database.shown}: {error}; use postgresql://user@host:5432/database") from error
    forks.opened(connection)
    if database.pooled:
        return PooledConnection(connection, database.schema)
    # As a statement of its own: a pooler refuses, or even ignores, most settings at the start of a session.
    settings = {name: value for name, value in _SETTINGS.items() if name not in database.given}
    try:
        await connection.execute(
            ";".join(f"set {name} = '{value}'" for name, value in {**settings, "search_path": database.schema}.items())
        )
    except BaseException as error:
        connection.terminate()
        if isinstance(error, Exception):
            raise unavailable(database.shown, error) from error
        raise
    return connection


async def check_sessions(database: Address, connection: DriverConnection) -> bool:
    """Refuse a pooler that shares a session of the server between clients: locks and settings of ours belong to a session.

    Returns whether one session sees the locks of another: not every database that speaks like PostgreSQL has real ones.
    """
    if database.pooled:
        return False
    other = await connect(database)
    try:
        first, second = [(await session.fetch("select pg_backend_pid()"))[0][0] for session in (connection, other)]
        shares = first == second
        seen = database.sessions and not shares and await sees_locks(connection, other)
    except (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError):
        shares, seen = True, False
    except asyncpg.PostgresError as error:
        raise unavailable(database.shown, error) from error
    finally:
        other.terminate()
    if shares:
        raise StoreError(f"{database.shown} is a pooler in transaction mode: {POOLED}")
    return seen


async def sees_locks(connection: DriverConnection, other: DriverConnection) -> bool:
    sql = queries("backstay.store.postgresql", numbered=True)
    number = randbits(62)

    async def ask(session: DriverConnection, name: str) -> bool:
        return (await session.fetch(sql[name], number))[0][0]

    try:
        return (
            await ask(other, "lock_probe")
            and await ask(connection, "id_locked")
            and not await ask(connection, "lock_probe")
            and await ask(other, "unlock_probe")
            and not await ask(connection, "id_locked")
        )
    except asyncpg.PostgresError:
        return False


async def writing(database: Address) -> DriverConnection:
    """A session whose commits are on disk when they are answered."""
    connection = await connect(database)
    try:
        if database.pooled:
            await check_commits(database, connection)
            return connection
        # Stricter settings (a synchronous standby) stay as they are.
        await connection.execute(
            "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
        )
        # Rows to write are found by their keys. A plan made while a table was small must not read all of it later.
        await connection.execute("set enable_seqscan = off")
        await connection.execute("set enable_mergejoin = off")
    except BaseException:
        connection.terminate()
        raise
    return connection


async def check_commits(database: Address, connection: DriverConnection) -> None:
    """Refuse a user whose commits may be lost: in a session that is not ours, nothing can be set for longer than a statement."""
    ((commit, user),) = await connection.fetch("select current_setting('synchronous_commit'), current_user")
    if commit == "off":
        raise StoreError(
            f"{database.shown} answers commits that are not on disk; through a pooler in transaction mode this cannot be changed"
            f" for one session: alter role {user} set synchronous_commit = on"
        )


def check_server(where: str, version: tuple[int, ...]) -> None:
    if version[0] < OLDEST_SERVER:
        raise StoreError(
            f"{where} is PostgreSQL {version[0]}; Backstay needs {OLDEST_SERVER} or newer: upgrade the server"
        )


async def prepare(connection: DriverConnection, database: Address, create: bool) -> None:
    """Make the schema ours if it is new, refuse it untouched if it is not ours. Nothing is written if it is up to date."""
    check_server(database.shown, connection.get_server_version())
    steps = migrations("backstay.store.postgresql")
    try:
        version = await schema_version(connection, database, steps)
        if version == 0 and not create:
            raise StoreError(
                f"{database.shown} has no schema {database.schema} of Backstay; name another one with ?schema= in the URL, or"
                " start a server or a program on it, which makes one"
            )
        if version < steps[-1].number:
            await migrate(connection, database, steps)
    except asyncpg.PostgresError as error:
        raise unavailable(database.shown, error) from error


async def migrate(connection: DriverConnection, database: Address, steps: list[Migration]) -> None:
    """Bring the schema to our version, all of it or nothing. Forward only; another process may be faster."""
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1, hashtext($2))", LOCK, database.schema)
        if not await connection.fetch("select 1 from pg_namespace where nspname = $1", database.schema):
            await connection.execute(f'create schema "{database.schema}"')
        if database.pooled:
            await connection.execute(f'set local search_path = "{database.schema}"')
        version = await schema_version(connection, database, steps)
        await connection.execute(
            "create table if not exists migration (number integer primary key, name text not null, checksum text not null)"
        )
        for step in steps:
            if step.number > version:
                await connection.execute(step.script)
                await connection.execute(
                    "insert into migration values ($1, $2, $3)", step.number, step.name, step.checksum
                )


async def schema_version(connection: DriverConnection, database: Address, steps: list[Migration]) -> int:
    """The newest migration of the schema, 0 if it is empty."""
    tables = {
        name
        for (name,) in await connection.fetch("select tablename from pg_tables where schemaname = $1", database.schema)
    }
    if not tables:
        return 0
    where = f"schema {database.schema} of {database.shown}"
    try:
        recorded: Any = await connection.fetch("select number, checksum from migration order by number")
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        if not (await connection.fetch("select has_schema_privilege($1, 'usage')", database.schema))[0][0]:
            raise unavailable(
                database.shown, asyncpg.InsufficientPrivilegeError(f"permission denied for schema {database.schema}")
            ) from error
        raise IncompatibleStore(
            f"{where} belongs to another program; name one of Backstay's own with ?schema= in the URL"
        ) from error
    version = recorded[-1][0] if recorded else 0
    check_version(where, version, steps)
    check_recorded(where, [(number, checksum) for number, checksum in recorded], steps)
    return version


def closed(database: Address) -> Unavailable:
    return Unavailable(f"{database.shown}: the database is closed")
