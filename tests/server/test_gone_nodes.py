"""A node that was killed is named, with who has its work, until it is forgotten, is back, or a day has passed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from backstay.engine.cluster import gone_nodes
from backstay.engine.core.local_kinds import GONE_NODE

from ..sdk.kit import PATIENCE
from .kit import TOKEN, Api, serving, until
from .test_nodes import dw, findings, metrics, nodes


@contextmanager
def another(store: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "backstay.cli.main",
        "server",
        "--port",
        "0",
        "--store",
        store,
        "--node-name",
        name,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | {"DW_TOKEN": TOKEN}
    ) as process:
        try:
            assert process.stdout is not None
            assert "serves" in process.stdout.readline()
            yield process
        finally:
            process.kill()


async def gone(api: Api) -> list[dict[str, Any]]:
    return (await nodes(api))["gone"]


async def killed(api: Api, store: str, name: str) -> None:
    """A node works beside this one, and is killed."""
    owned = api.server.engine.owned
    with another(store, name) as process:
        await until(lambda: sum(owned) < 200)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
    await until(lambda: sum(owned) == 256)
    async with asyncio.timeout(PATIENCE):
        while not await api.server.store.kept(GONE_NODE):  # it is written beside
            await asyncio.sleep(0.01)


async def test_a_node_that_was_killed_is_named_until_it_is_forgotten(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False, node_name="stays") as api:
        assert await gone(api) == []
        await killed(api, postgresql_url, "box-7")
        (one,) = await gone(api)
        (taker,) = one["taken_over_by"]
        assert (one["name"], taker["name"], taker["id"]) == ("box-7", "stays", str(api.server.node_id()))
        assert taker["shards"] == one["shards"] > 50
        assert one["gone_since"] <= (await nodes(api))["generated_at"]
        message = (await findings(api))["nodes_gone"]
        assert f"box-7 is gone since {one['gone_since']}; its {one['shards']} shards are with stays" in message
        assert any(name.startswith("backstay_nodes_gone{") and "box-7" in name for name in await metrics(api))
        url = str(api.http.base_url).rstrip("/")
        status, shown = await dw("nodes", "--server", url, "--token", TOKEN)
        assert (status, "box-7 is gone since" in shown, "with stays" in " ".join(shown.split())) == (0, True, True), (
            shown
        )
        status, shown = await dw("nodes", "--db", postgresql_url)
        assert (status, "box-7 is gone since" in shown) == (0, True), shown
        assert (await api.control("POST", "/nodes/box-8/forget", {})).status_code == 404
        status, said = await dw("node", "forget", "box-7", "--server", url, "--token", TOKEN)
        assert (status, "box-7" in said, "is forgotten" in said) == (0, True, True), said
        assert await gone(api) == []
        assert "nodes_gone" not in await findings(api)
        assert not any(name.startswith("backstay_nodes_gone{") for name in await metrics(api))
        status, said = await dw("node", "forget", "box-7", "--db", postgresql_url)
        assert (status != 0, "gone are: none" in said) == (True, True), said


async def test_a_node_that_is_back_or_was_gone_for_a_day_is_not_named(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store=postgresql_url, still=False, node_name="stays") as api:
        await killed(api, postgresql_url, "box-7")
        assert len(await gone(api)) == 1
        monkeypatch.setattr(gone_nodes, "KEPT", 0)
        assert await gone(api) == [], "a day has passed"
        monkeypatch.undo()
        assert len(await gone(api)) == 1
        with another(postgresql_url, "box-7") as process:
            await until(lambda: len(api.server.node.shards.nodes) == 2)
            assert await gone(api) == [], "it is back"
            await gone_nodes.forget_past(api.server.engine.world, api.server.store, api.server.node.shards.nodes)
            process.terminate()
            await asyncio.to_thread(process.wait)
        await until(lambda: len(api.server.node.shards.nodes) == 1)
        assert await gone(api) == [], "it was back, and has ended by itself"


async def test_entries_are_removed_after_a_day(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(store=postgresql_url, still=False, node_name="stays") as api:
        await killed(api, postgresql_url, "box-7")
        monkeypatch.setattr(gone_nodes, "KEPT", 0)
        await gone_nodes.forget_past(api.server.engine.world, api.server.store, api.server.node.shards.nodes)
        monkeypatch.undo()
        assert await gone(api) == [], "it is forgotten"


async def test_a_node_that_ends_by_itself_is_not_named(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False, node_name="stays") as api:
        with another(postgresql_url, "box-7") as process:
            await until(lambda: sum(api.server.engine.owned) < 200)
            process.terminate()
            await asyncio.to_thread(process.wait)
        await until(lambda: sum(api.server.engine.owned) == 256)
        assert await gone(api) == []
