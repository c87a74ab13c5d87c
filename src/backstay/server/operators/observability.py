"""The observability boundary: all reads of operators go through one object, which a setting can replace.

    observability = "shop.operators:boundary"     # called with the standard object; its return value replaces it

A replacement answers by itself, or calls the standard object and changes its answers. Totals, lists, details, exports
and metrics have this one source, so they agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.operators.dashboard import Dashboard, MetricsOf
from backstay.server.settings import WrongSetting

Answer = Mapping[str, Any] | HttpResponse
Read = Callable[[], Awaitable[Answer]]
"""The answer of the server itself to the request."""


class Observability(Protocol):
    """Everything that operators read. `read` gives the answer of the server itself."""

    async def dashboard_summary(self, namespace: str) -> dict[str, Any]: ...
    async def metrics(self, namespace: str) -> dict[str, Any]: ...
    async def health(self, request: HttpRequest, read: Read) -> Answer: ...
    async def overview(self, request: HttpRequest, read: Read) -> Answer: ...
    async def runs(self, request: HttpRequest, read: Read) -> Answer: ...
    async def detail(self, request: HttpRequest, read: Read) -> Answer: ...
    async def export(self, request: HttpRequest, read: Read) -> Answer: ...


METHODS = tuple(name for name in vars(Observability) if not name.startswith("_"))

Factory = Callable[["StandardObservability"], Observability]


class StandardObservability:
    """The observability of a server without that setting."""

    def __init__(self, metrics: MetricsOf, dashboard: Dashboard) -> None:
        self._metrics = metrics
        self._dashboard = dashboard

    async def dashboard_summary(self, namespace: str) -> dict[str, Any]:
        return await self._dashboard.read(namespace, await self.metrics(namespace))

    async def metrics(self, namespace: str) -> dict[str, Any]:
        return await self._metrics(namespace)

    async def health(self, request: HttpRequest, read: Read) -> Answer:
        return await read()

    async def overview(self, request: HttpRequest, read: Read) -> Answer:
        return await read()

    async def runs(self, request: HttpRequest, read: Read) -> Answer:
        return await read()

    async def detail(self, request: HttpRequest, read: Read) -> Answer:
        return await read()

    async def export(self, request: HttpRequest, read: Read) -> Answer:
        return await read()


def observability(name: str | None) -> Factory:
    """The factory that the setting names."""
    if name is None:
        return lambda standard: standard
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise WrongSetting(f"observability is {name!r}: {error}; name it as package.module:function") from None
    if not callable(found):
        raise WrongSetting(f"observability is {name!r}, which is not a function of the standard observability")
    factory = cast(Factory, found)

    def checked(standard: StandardObservability) -> Observability:
        made = factory(standard)
        missing = [method for method in METHODS if not callable(getattr(made, method, None))]
        if missing:
            raise WrongSetting(
                f"observability is {name!r}, which returned a {type(made).__name__} without {', '.join(missing)}:"
                " define them, or hand them on to the object that it was given"
            )
        return made

    return checked
