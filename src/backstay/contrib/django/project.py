"""Backstay in a Django project: the setting `BACKSTAY`, and the modules `flows` of its apps."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

KEYS = ("DATABASE", "SERVER", "TOKEN", "NAMESPACE", "MODULES")
EXAMPLE = 'BACKSTAY = {"DATABASE": BASE_DIR / "flows.db"}'


class Place(NamedTuple):
    """Where the workflows are: a database, or a server."""

    database: str | None
    server: str | None
    token: str | None
    namespace: str


def place() -> Place:
    """Return the setting. Raises `ImproperlyConfigured` if it does not say one place."""
    given: dict[str, Any] = getattr(settings, "BACKSTAY", None) or {}
    unknown = sorted(set(given) - set(KEYS))
    if unknown:
        raise ImproperlyConfigured(f"BACKSTAY has no key {unknown[0]!r}; it has: {', '.join(KEYS)}")
    database, server = given.get("DATABASE"), given.get("SERVER")
    if (database is None) == (server is None):
        raise ImproperlyConfigured(f"the setting BACKSTAY names a DATABASE or a SERVER, one of them: {EXAMPLE}")
    return Place(
        None if database is None else str(database), server, given.get("TOKEN"), given.get("NAMESPACE", "default")
    )


class Flows(NamedTuple):
    """What the project defines: `things` to register, and the queues that they name."""

    things: list[Any]
    queues: list[str]


def flows() -> Flows:
    """Import the module `flows` of each app, or the modules that the setting names, and return what they define."""
    from backstay.cli.loading import collect

    things: dict[int, Any] = {}
    queues: set[str] = set()
    for name in _modules():
        module = import_module(name)
        found = collect(Path(str(module.__file__)), module)
        things.update((id(thing), thing) for thing in found.things)  # a module may import from another one
        queues |= found.queues
    if not things:
        raise ImproperlyConfigured(
            "no app of INSTALLED_APPS has a module `flows` with workflows or activities; write one, or name modules in"
            ' BACKSTAY["MODULES"]'
        )
    return Flows(list(things.values()), sorted(queues))


def _modules() -> list[str]:
    named: list[str] | None = (getattr(settings, "BACKSTAY", None) or {}).get("MODULES")
    if named is not None:
        return named
    return [f"{app.name}.flows" for app in apps.get_app_configs() if module_has_submodule(app.module, "flows")]
