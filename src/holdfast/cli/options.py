"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.problems import Problem

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATABASE = "holdfast.db"


def database(command: F) -> F:
    return click.option(
        "--db",
        "path",
        metavar="DATABASE",
        envvar="DW_DB",
        default=DEFAULT_DATABASE,
        help=f"The database: a file, or postgresql://… Default: the environment variable DW_DB, else {DEFAULT_DATABASE}.",
    )(command)


def namespace(command: F) -> F:
    return click.option("--namespace", metavar="NAME", default="default", help="Which namespace of the database.")(
        command
    )


def existing(path: str) -> str:
    """Refuse a database that is not there: reading must not create one. What a server has, the server says."""
    from holdfast.store.opening import is_server

    if not is_server(path) and not Path(path).exists():
        raise Problem(f"there is no database {path}; name one with --db or DW_DB, or make one with `dw dev`")
    return path
