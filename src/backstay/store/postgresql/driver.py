"""The used part of asyncpg, and the meaning of its errors for a store."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from backstay.store.errors import StoreError, Unavailable

try:
    asyncpg: Any = import_module("asyncpg")
except ImportError:
    raise StoreError("PostgreSQL needs asyncpg; install it with: pip install 'backstay[postgresql]'") from None


class DriverConnection(Protocol):
    async def fetch(self, query: str, *parameters: Any) -> list[Sequence[Any]]: ...
    async def execute(self, query: str, *parameters: Any) -> str: ...
    async def executemany(self, query: str, parameters: Sequence[Sequence[Any]]) -> None: ...
    def transaction(self) -> Any: ...
    def get_server_version(self) -> tuple[int, ...]: ...
    async def close(self, *, timeout: float) -> None: ...
    def terminate(self) -> None: ...
    def is_closed(self) -> bool: ...


_BROKEN = (OSError, TimeoutError, EOFError, asyncpg.InterfaceError, asyncpg.InternalClientError)

# The first two characters of an SQLSTATE for errors in the rows of one decision only.
_CULPRIT = {"21", "22", "23", "54"}

# The server ended the session, so the outcome of its statement is unknown.
_LOST = {"57P01", "57P02", "57P05"}

POOLED = (
    "locks, settings and prepared statements belong to a session, which it shares between clients;"
    " add ?pooler=transaction to the URL, set the pooler to session mode, or connect to the server itself"
)

_ADVICE = {
    "08": "the connection failed; it goes on by itself when the server can be reached",
    "08P01": "the server or its pooler rejected the message; see its log",
    "26000": f"a pooler in transaction mode? {POOLED}",
    "42P05": f"a pooler in transaction mode? {POOLED}",
    "28P01": "check the user and password in the URL, PGPASSWORD or ~/.pgpass",
    "28": "the server rejects this user; check the URL, the role and pg_hba.conf",
    "3D": "create it first, for example with `createdb`",
    "3F": "create the schema first, or name another one with ?schema= in the URL",
    "25006": "this is a read-only standby, or the database is set to read only; name the primary,"
    " or several hosts and target_session_attrs=read-write",
    "42501": "grant this user the right to use and to create in the schema, or to create schemas in the database;"
    " docs/how-to/postgresql.md lists the rights that are needed",
    "42P01": "a table of Backstay is missing; restore the database from a backup",
    "53100": "the disk of the server is full; free some space and it goes on by itself",
    "53300": "the server has no connection left; raise max_connections or close other clients",
    "53": "the server is short of resources; it resumes by itself when there are some",
    "55P03": "another session holds a lock on the tables; find it in pg_stat_activity and let it finish",
    "57014": "the statement was cancelled; it goes on by itself",
    "57P": "the server is starting or stopping; it goes on by itself",
    "58": "the server reports a system error; see its log",
    "XX": "the server reports damage; see its log and restore the database from a backup",
}


def state(error: BaseException) -> str:
    """The SQLSTATE of an exception ('' if it has none)."""
    return getattr(error, "sqlstate", None) or ""


def is_lost(error: BaseException) -> bool:
    """Whether the connection was lost, so that the last statement may or may not be committed."""
    if isinstance(error, asyncpg.PostgresError):
        return state(error) in _LOST or state(error).startswith("08")
    return isinstance(error, _BROKEN) and not _is_ours(error)


def _is_ours(error: BaseException) -> bool:
    """Whether asyncpg refused a value, or a call, before it sent anything to the server."""
    return isinstance(error, asyncpg.DataError) or is_misuse(error)


def is_misuse(error: BaseException) -> bool:
    """Whether a statement has got too few or too many values; a closed session raises the same kind of error."""
    return isinstance(error, asyncpg.InterfaceError) and "argument" in str(error)


def is_culprit(error: BaseException) -> bool:
    """Whether one decision of the batch cannot be written, rather than the database not working."""
    if isinstance(error, asyncpg.PostgresError):
        return state(error)[:2] in _CULPRIT
    return _is_ours(error) or not isinstance(error, _BROKEN)


def is_taken_key(error: BaseException) -> bool:
    """Whether the key of a row is another row's: two engines may mint the same one."""
    return getattr(error, "constraint_name", None) in ("run_pkey", "send_pkey")


def is_conflict(error: BaseException) -> bool:
    """Whether two transactions conflict (deadlock, serialization), so that a retry succeeds."""
    return state(error)[:2] == "40"


def unavailable(where: str, error: BaseException) -> Unavailable:
    code = state(error)
    advice = _ADVICE.get(code) or _ADVICE.get(code[:3]) or _ADVICE.get(code[:2])
    message = str(error) or type(error).__name__
    if advice is None and isinstance(error, OSError | TimeoutError):
        advice = "the server cannot be reached; check that it runs and that host and port are right"
    return Unavailable(f"{where}: {message}" + (f": {advice}" if advice else ""))
