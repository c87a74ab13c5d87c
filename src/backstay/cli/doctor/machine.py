"""Checks of this machine: settings in the environment, packages, limits of the system."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from importlib import import_module

from backstay.cli.doctor.results import CheckResult, error, ok, warning
from backstay.store.address import is_server

NAMES = ("settings", "packages", "descriptors")

_EXTRAS = {"server": ("httptools", "uvloop"), "postgresql": ("asyncpg",)}


def checks(database: str) -> Iterator[CheckResult]:
    from backstay.server.settings import Settings, WrongSetting, load

    settings = Settings()
    try:
        settings = load({})
    except WrongSetting as wrong:
        yield error(
            "settings", str(wrong), "correct the variable or the file of DW_CONFIG: `dw server` refuses to start"
        )
    else:
        yield ok("settings", "the DW_* variables can be used")
    yield _packages(database)
    yield _descriptors(settings.max_connections)


def _packages(database: str) -> CheckResult:
    missing = {extra: [name for name in names if not _can_import(name)] for extra, names in _EXTRAS.items()}
    if is_server(database) and missing["postgresql"]:
        message = f"a PostgreSQL database needs {', '.join(missing['postgresql'])}"
        return error("packages", message, "pip install 'backstay[postgresql]'")
    if missing["server"]:
        message = f"`dw server` and the page of `dw dev` need {', '.join(missing['server'])}"
        return warning("packages", message, "pip install 'backstay[server]'")
    return ok("packages", "the extras that this database and `dw server` need are installed")


def _can_import(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def _descriptors(connections: int) -> CheckResult:
    from backstay.server.http.connections import RESERVED

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return ok(
            "descriptors", f"a process may open {'any number of' if hard < 0 else f'{hard:,}'} files and connections"
        )
    message = (
        f"a process may open {hard:,} files and connections; max_connections is {connections:,} and needs {wanted:,}"
    )
    fix = f"raise the limit (`LimitNOFILE={wanted}` in systemd, `ulimit -Hn`), or set DW_MAX_CONNECTIONS lower"
    return warning("descriptors", message, fix)
