"""The nodes of a database: who is there, who owns how much, and how one of them hands its work to the others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from backstay.store import IncompatibleStore

from .kit import TOKEN, Api, serving, until

EVERYTHING = 256


async def nodes(api: Api) -> dict[str, Any]:
    answer = await api.control("GET", "/nodes")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def shares(api: Api) -> dict[str, int]:
    return {node["name"]: node["shards"] for node in (await nodes(api))["nodes"]}


async def balanced(*apis: Api) -> None:
    """Wait until all of them own about the same."""
    fair = EVERYTHING // len(apis)
    await until(lambda: all(fair - 1 <= sum(api.server.engine.owned) <= fair + 2 for api in apis))


async def ready(api: Api) -> tuple[int, list[str]]:
    answer = await api.http.get("/api/ready")
    return answer.status_code, [reason["code"] for reason in answer.json()["reasons"]]


async def test_a_file_has_one_node_that_owns_everything() -> None:
    async with serving(node_name="till") as api:
        found = await nodes(api)
        assert (found["shards"], found["unowned_shards"], found["one_owner"]) == (EVERYTHING, 0, True)
        (node,) = found["nodes"]
        assert (node["name"], node["shards"], node["status"], node["this"]) == ("till", EVERYTHING, "active", True)
        refused = await api.control("POST", "/nodes/till/drain", {})
        assert (refused.status_code, refused.json()["reason"]) == (409, "one_owner")
        assert await ready(api) == (200, [])


async def test_every_node_tells_of_all(postgresql_url: str) -> None:
    async with (
        serving(store=postgresql_url, still=False, node_name="one", weight=3) as one,
        serving(store=postgresql_url, still=False, node_name="two") as two,
        serving(store=postgresql_url, still=False, node_name="front", weight=0) as front,
    ):
        await until(lambda: sum(one.server.engine.owned) <= 193 and sum(two.server.engine.owned) >= 63)
        for api, name in ((one, "one"), (two, "two"), (front, "front")):
            found = await nodes(api)
            assert (found["unowned_shards"], found["one_owner"]) == (0, False)
            told = {node["name"]: node for node in found["nodes"]}
            assert {node["name"] for node in found["nodes"] if node["this"]} == {name}
            assert (told["one"]["weight"], told["one"]["address"]) == (3, str(one.http.base_url).rstrip("/"))
            assert 191 <= told["one"]["shards"] <= 193
            assert told["one"]["shards"] + told["two"]["shards"] == EVERYTHING
            assert (told["front"]["shards"], told["front"]["status"]) == (0, "guest")
            assert all((node["level"], node["speaks"]) == (1, [1, 1]) and node["version"] for node in told.values())
            assert all(node["silent_seconds"] < 15 and node["id"].isdigit() for node in told.values())
        assert await ready(front) == (200, [])


async def test_a_node_is_drained_through_any_other_and_serves_on(postgresql_url: str) -> None:
    async with (
        serving(store=postgresql_url, still=False, node_name="one") as one,
        serving(store=postgresql_url, still=False, node_name="two") as two,
    ):
        await balanced(one, two)
        rehearsed = await two.control("POST", "/nodes/one/drain?dry_run=1", {})
        assert (rehearsed.json()["accepted"], rehearsed.json()["answer"]["draining"]) == (True, True)
        asked = await two.control("POST", "/nodes/one/drain", {})
        assert (asked.status_code, asked.json()["name"], asked.json()["draining"]) == (202, "one", True)
        await until(lambda: not any(one.server.engine.owned) and sum(two.server.engine.owned) == EVERYTHING)
        assert await shares(one) == {"one": 0, "two": EVERYTHING}
        assert [node["status"] for node in (await nodes(two))["nodes"]] == ["active", "drained"]
        assert (await ready(one), await ready(two)) == ((503, ["draining"]), (200, []))
        await one.start("o-1")
        assert (await one.describe())["status"] == "pending", "callers that still come are served"
        actions = (await two.control("GET", "/audit")).json()
        assert "node.drain" in str(actions)
        undone = await one.control("POST", "/nodes/one/resume", {})
        assert (undone.status_code, undone.json()["draining"]) == (202, False)
        await balanced(one, two)
        assert await ready(one) == (200, [])


async def test_a_node_whose_shards_nobody_can_take_keeps_them_and_says_so(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False, node_name="one") as one:
        await one.control("POST", "/nodes/one/drain", {})
        await until(lambda: one.server.node.shards.nodes[one.server.node.shards.me].facts.draining)
        (node,) = (await nodes(one))["nodes"]
        assert (node["shards"], node["status"]) == (EVERYTHING, "draining")
        assert "no other process can take its shards" in node["note"]
        assert await ready(one) == (503, ["draining"])
        async with serving(store=postgresql_url, still=False, node_name="two") as two:
            await until(lambda: sum(two.server.engine.owned) == EVERYTHING)
            told = {node["name"]: node["note"] for node in (await nodes(one))["nodes"]}
            assert told == {"one": None, "two": None}


async def test_two_nodes_with_one_name_are_told_apart_by_their_ids(postgresql_url: str) -> None:
    async with (
        serving(store=postgresql_url, still=False, node_name="box") as one,
        serving(store=postgresql_url, still=False, node_name="box") as two,
    ):
        await until(lambda: len(two.server.node.shards.nodes) == 2)
        refused = await one.control("POST", "/nodes/box/drain", {})
        assert (refused.status_code, refused.json()["reason"], len(refused.json()["ids"])) == (409, "ambiguous_node", 2)
        id = str(two.server.node.shards.me)
        assert (await one.control("POST", f"/nodes/{id}/drain", {})).json()["id"] == id
        missing = await one.control("POST", "/nodes/nobody/drain", {})
        assert (missing.status_code, missing.json()["reason"]) == (404, "node_not_found")
        assert "box" in missing.json()["message"]


async def test_who_may_look_may_not_drain() -> None:
    async with serving(token=None, admin_token="a", viewer_token="v", operator_token="o") as api:
        for token in ("v", "o"):
            assert (await api.control("GET", "/nodes", token=token)).status_code == 200
            assert (await api.control("POST", "/nodes/x/drain", {}, token=token)).status_code == 403


async def test_a_node_that_cannot_read_what_all_others_write_is_refused(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False) as old, serving(store=postgresql_url, still=False) as new:
        old.server.node.facts = replace(old.server.node.facts, level=2)
        await until(lambda: levels(new) == [1, 2])
        async with serving(store=postgresql_url, still=False):
            pass  # while one of the others is as old, all write what it can read
        new.server.node.facts = replace(new.server.node.facts, level=2)
        await until(lambda: levels(old) == [2, 2])
        with pytest.raises(IncompatibleStore, match=r"later releases.*level 2.*run their release"):
            async with serving(store=postgresql_url, still=False):
                pass
        await until(lambda: sum(old.server.engine.owned) + sum(new.server.engine.owned) == EVERYTHING)


def levels(api: Api) -> list[int]:
    return sorted(node.facts.level for node in api.server.node.shards.nodes.values())


async def dw(*arguments: str) -> tuple[int, str]:
    """What `dw` says, and its exit code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DW_")}
    command = [sys.executable, "-P", "-m", "backstay.cli.main", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, env=kept)
    return done.returncode, done.stdout + done.stderr


async def test_the_command_line_shows_and_drains_nodes_of_a_server(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False, node_name="box") as api:
        server = ("--server", str(api.http.base_url), "--token", TOKEN)
        code, shown = await dw("nodes", *server)
        assert (code, "box" in shown, "active, asked here" in shown) == (0, True, True)
        assert (await dw("node", "drain", "box", *server))[0] == 0
        await until(lambda: api.server.drains.asked)
        code, said = await dw("node", "drain", "box", "--undo", *server)
        assert (code, "takes work again" in said) == (0, True)
        await until(lambda: not api.server.drains.asked)
        code, said = await dw("node", "drain", "nobody", *server)
        assert (code, "there is no living node 'nobody'; there are: box (" in said) == (1, True)
