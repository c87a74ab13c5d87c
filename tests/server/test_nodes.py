"""The nodes of a database: who is there, who owns how much, and how one of them hands its work to the others."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from backstay.server.http.serve import say_if_nobody_can_call
from backstay.store.errors import IncompatibleStore
from backstay.store.postgresql.connection import LOCK, address
from backstay.store.sql import queries

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
            assert all((node["level"], node["speaks"]) == (1, [2, 2]) and node["version"] for node in told.values())
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


async def test_a_node_whose_shards_no_other_node_can_take_keeps_them_and_says_so(postgresql_url: str) -> None:
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


async def test_each_node_tells_its_own_shape_roles_and_shards(postgresql_url: str) -> None:
    """A node says of itself what it is and does, and of all what all are."""
    async with serving(store=postgresql_url, still=False, node_name="one") as one:
        alone = await topology(one)
        assert (alone["current_shape"], alone["node"]["shards"], alone["nodes"]) == ("standalone_server", EVERYTHING, 1)
        assert alone["current_roles"] == ["api", "matching", "timers", "repair"]
        wake: dict[str, Any] = {"v2_matching_role_queue_wake": False}
        async with (
            serving(store=postgresql_url, still=False, node_name="front", weight=0) as front,
            serving(store=postgresql_url, still=False, node_name="quiet", **wake) as quiet,
        ):
            await balanced(one, quiet)
            await until(lambda: len(one.server.node.shards.nodes) == 3)
            told = {api: await topology(api) for api in (one, front, quiet)}
            assert [told[api]["current_shape"] for api in told] == ["server_cluster"] * 2 + ["dedicated_matching"]
            assert [told[api]["current_process_class"] for api in told] == ["server", "front_end", "server"]
            assert told[front]["current_roles"] == ["api", "matching"]
            assert told[one]["current_roles"] == ["api", "matching", "timers", "repair"]
            assert sum(told[api]["node"]["shards"] for api in told) == EVERYTHING
            assert {told[api]["nodes"] for api in told} == {3}
            assert {told[api]["unowned_shards"] for api in told} == {0}
            quiet.server.sweep_policy.swept("matcher-1")
            assert (await topology(quiet))["current_roles"] == ["api", "matching", "timers"], (
                "another one looks for lost work"
            )


async def topology(api: Api) -> dict[str, Any]:
    return (await api.control("GET", "/cluster/info")).json()["topology"]


async def metrics(api: Api) -> dict[str, float]:
    answer = await api.http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_what_passes_between_nodes_is_counted(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False) as one:
        async with serving(store=postgresql_url, still=False, weight=0) as front:
            await until(lambda: front.server.node.shards.owner_of(0) is not None)
            await front.start("o-1")
            there = await metrics(front)
            assert (there["backstay_shards_owned"], there["backstay_nodes"]) == (0, 2)
            assert there['backstay_node_calls_total{outcome="forwarded"}'] == 1
            assert there['backstay_node_calls_total{outcome="failed"}'] == there["backstay_guest_decisions_total"] == 0
            one.server.node.facts = replace(one.server.node.facts, address=None)
            await until(lambda: addresses(front) == [None])
            await front.start("o-2")
            assert (await metrics(front))["backstay_guest_decisions_total"] == 1
        async with serving(store=postgresql_url, still=False) as two:
            await balanced(one, two)
            assert (await metrics(one))['backstay_shard_moves_total{kind="handed_over"}'] >= 127
            assert (await metrics(two))['backstay_shard_moves_total{kind="received"}'] >= 127
        here = await metrics(one)
        assert here["backstay_nodes_deposed_total"] == here["backstay_tasks_stolen_total"] == 0


async def findings(api: Api) -> dict[str, str]:
    answer = (await api.control("GET", "/system/health")).json()
    return {one["name"]: one["sentence"] + str(one["action"]) for one in answer["causes"]}


async def test_health_tells_of_nodes_that_cannot_be_called_and_of_shards_without_an_owner(postgresql_url: str) -> None:
    async with serving(store=postgresql_url, still=False, weight=0) as front:
        assert "start one with a weight above 0" in (await findings(front))["shards_unowned"]
        async with serving(store=postgresql_url, still=False) as one:
            one.server.node.facts = replace(one.server.node.facts, address="http://127.0.0.1:9")
            await until(lambda: addresses(front) == ["http://127.0.0.1:9"])
            for number in range(3):
                await front.start(f"o-{number}")  # through the database
            found = await findings(front)
            assert "at http://127.0.0.1:9" in found["nodes_unreachable"]
            assert "shards_unowned" not in found
            await front.control("POST", f"/nodes/{one.server.node.shards.me}/drain", {})
            await until(lambda: one.server.cluster.drains.asked)
            assert "--undo" in (await findings(one))["draining"]


def addresses(api: Api) -> list[str | None]:
    shards = api.server.node.shards
    owners = {row.owner for row in shards.rows}
    return [node.facts.address for id, node in shards.nodes.items() if id in owners]


async def test_a_release_that_works_alone_is_let_alone(postgresql_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(store=postgresql_url, still=False):
        pass  # the schema
    place = address(postgresql_url)
    old = await asyncpg.connect(place.dsn)
    await old.execute(f"set search_path to {place.schema}")
    assert await old.fetchval(queries("backstay.store.postgresql", numbered=True)["lock"], LOCK)
    async with serving(store=postgresql_url, still=False) as api:
        assert "earlier release" in caplog.text
        assert (await nodes(api))["unowned_shards"] == EVERYTHING
        await api.start("o-1")  # through the database
        await old.close()
        await until(lambda: sum(api.server.engine.owned) == EVERYTHING)


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
        await until(lambda: api.server.cluster.drains.asked)
        code, said = await dw("node", "drain", "box", "--undo", *server)
        assert (code, "takes work again" in said) == (0, True)
        await until(lambda: not api.server.cluster.drains.asked)
        code, said = await dw("node", "drain", "nobody", *server)
        assert (code, "there is no living node 'nobody'; there are: box (" in said) == (1, True)


async def test_a_node_without_an_address_is_warned_of_if_others_are_there(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [record.levelname for record in caplog.records if "name its address with --advertise" in record.message]

    with caplog.at_level(logging.INFO, "backstay"):
        async with serving() as alone:
            say_if_nobody_can_call(alone.server)
            assert said() == [], "nobody else can be at a file"
        async with serving(store=postgresql_url, still=False) as first:
            first.server.node.facts = replace(first.server.node.facts, address=None)
            say_if_nobody_can_call(first.server)
            assert said() == ["INFO"]
            async with serving(store=postgresql_url, still=False) as second:
                second.server.node.facts = replace(second.server.node.facts, address=None)
                await until(lambda: bool(second.server.node.shards.others))
                say_if_nobody_can_call(second.server)
                assert said() == ["INFO", "WARNING"]


async def test_two_older_nodes_that_begin_together_are_both_refused(postgresql_url: str) -> None:
    """Neither is proof for the other that something may still be read."""
    async with serving(store=postgresql_url, still=False) as new:
        new.server.node.facts = replace(new.server.node.facts, level=2)
        await until(lambda: levels(new) == [2])

        async def begins() -> None:
            async with serving(store=postgresql_url, still=False):
                pass

        found = await asyncio.gather(begins(), begins(), return_exceptions=True)
        assert [type(one) for one in found] == [IncompatibleStore] * 2
        await until(lambda: new.server.engine.owns_all)
