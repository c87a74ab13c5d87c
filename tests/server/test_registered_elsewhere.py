"""What was registered at one node a moment ago is known to whoever reads at another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .kit import Api, serving


@asynccontextmanager
async def two(store: str) -> AsyncIterator[tuple[Api, Api]]:
    """Two nodes, of which the second looks for changes only when it has to."""
    async with (
        serving(store=store, still=False, query_timeout_seconds=0.1) as one,
        serving(store=store, still=False, query_timeout_seconds=0.1) as other,
    ):
        other.server.registries.stop()
        yield one, other


async def test_a_search_attribute(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        made = await one.control("POST", "/search-attributes", {"name": "stage", "type": "keyword"})
        assert made.status_code == 201, made.text
        found = await other.control("GET", "/workflows?query=stage%20%3D%20%27waiting%27")
        assert (found.status_code, found.json().get("workflows")) == (200, []), found.text
        unknown = await other.control("GET", "/workflows?query=nobody%20%3D%20%27waiting%27")
        assert unknown.status_code == 422


async def test_a_worker_that_can_be_asked(postgresql_url: str) -> None:
    async with two(postgresql_url) as (one, other):
        await one.start("o-1")
        nobody = await other.control("POST", "/workflows/o-1/query/total", {})
        assert (nobody.status_code, nobody.json()["reason"]) == (409, "query_worker_unavailable")
        await one.register()
        asked = await other.control("POST", "/workflows/o-1/query/total", {})
        assert asked.json()["reason"] == "query_worker_timeout", "it does not poll, but there is one"
