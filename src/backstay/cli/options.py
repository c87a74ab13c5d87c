"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from backstay.cli.problems import CliError

F = TypeVar("F", bound=Callable[..., Any])


class ServerAt(NamedTuple):
    """A server, in place of a database file."""

    url: str
    token: str | None


Place = str | ServerAt

DEFAULT_DATABASE = "backstay.db"


def database(command: F) -> F:
    return click.option(
        "--db",
        "path",
        metavar="DATABASE",
        envvar="DW_DB",
        default=DEFAULT_DATABASE,
        help=f"The database: a file, or postgresql://… Default: the environment variable DW_DB, else {DEFAULT_DATABASE}.",
    )(command)


def place(command: F) -> F:
    """A database file, or a server: the command gets either as `path`."""

    @wraps(command)
    def chosen(*args: Any, path: str, server: str | None, token: str | None, **more: Any) -> Any:
        return command(*args, path=_place(path, server, token), **more)

    options = (
        click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="The server's token. Default: DW_TOKEN."),
        click.option(
            "--server",
            metavar="URL",
            envvar="DW_SERVER",
            help="The server to use instead of a database. Default: DW_SERVER.",
        ),
        database,
    )
    decorated: Any = chosen
    for option in options:
        decorated = option(decorated)
    return decorated


def _place(path: str, server: str | None, token: str | None) -> Place:
    context = click.get_current_context()
    named = context.get_parameter_source("path") is ParameterSource.COMMANDLINE
    if server is None:
        return path
    if not named:
        return ServerAt(server, token)
    if context.get_parameter_source("server") is ParameterSource.COMMANDLINE:
        raise CliError("name a database with --db or a server with --server, not both")
    return path  # an option on the command line overrides the environment


def app(command: F) -> F:
    return click.option(
        "--app",
        metavar="FILE",
        required=True,
        type=click.Path(path_type=Path),
        help="The Python file with the workflows, such as shop.py.",
    )(command)


def namespace(command: F) -> F:
    return click.option("--namespace", metavar="NAME", default="default", help="The namespace. Default: default.")(
        command
    )


def existing(path: str) -> str:
    """Refuse a database file that does not exist: reading must not create one. Databases on a server are not checked."""
    from backstay.cli.problems import as_problems
    from backstay.store.address import checked, is_server

    with as_problems():
        checked(path)
    if not is_server(path) and not Path(path.removeprefix("sqlite:")).exists():
        raise CliError(f"there is no database {path}; name one with --db or DW_DB, or create one with `dw dev`")
    return path
