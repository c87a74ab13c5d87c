"""Checks of this machine: settings in the environment, packages, limits of the system."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from backstay.cli.doctor.results import CheckResult, error, ok, warning
from backstay.store.address import is_server

NAMES = ("settings", "packages", "descriptors")


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
    if is_server(database) and not _has_asyncpg():
        return error("packages", "a PostgreSQL database needs asyncpg", "pip install 'backstay[postgresql]'")
    return ok("packages", "the packages that this database needs are installed")


def _has_asyncpg() -> bool:
    try:
        import asyncpg  # noqa: F401  # pyright: ignore[reportUnusedImport, reportMissingTypeStubs]
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
