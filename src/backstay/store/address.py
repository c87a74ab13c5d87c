"""The address of a database: a path of a SQLite file, or the URL of a PostgreSQL server."""

from __future__ import annotations

from urllib.parse import urlsplit

from backstay.store.errors import UnknownDatabase

_SERVERS = ("postgresql://", "postgres://")


def is_server(database: str) -> bool:
    """Whether this names a database on a server, rather than a file."""
    return database.startswith(_SERVERS)


def shown(database: str) -> str:
    """A path, or a URL without its password and options. Whatever is wrong with it, no secret is shown."""
    scheme, separator, rest = database.partition("://")
    if not separator:
        return database
    location = rest.partition("?")[0].partition("#")[0]
    user, at, where = location.rpartition("@")
    return f"{'postgresql' if is_server(database) else scheme}://{user.partition(':')[0]}{at}{where}"


def checked(database: str) -> str:
    """The same, if it can name a database."""
    if database.startswith(("sqlite://", "//")):
        path = database.removeprefix("sqlite:").lstrip("/")
        raise UnknownDatabase(
            f"{database!r} is not an address that Backstay supports; write {path!r} for a file in this directory, or '/{path}'"
        )
    if is_server(database):
        try:
            for host in urlsplit(database).netloc.rpartition("@")[2].split(","):
                _ = urlsplit(f"//{host}").port
        except ValueError as error:
            # Python's message may quote the part with the password.
            why = "its port is no number" if "port" in str(error).lower() else "its host is not complete"
            raise UnknownDatabase(
                f"{shown(database)!r} is not the address of a PostgreSQL server: {why}; write postgresql://user@host:port/name"
            ) from None
    elif "://" in database:
        raise UnknownDatabase(
            f"{shown(database)!r} is not a database that Backstay supports; use a path, sqlite:PATH or postgresql://…"
        )
    return database
