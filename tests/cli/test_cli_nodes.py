"""`dw nodes` and `dw node drain` on a database."""

from __future__ import annotations

import json

from dw_support import Place, mistaken

from backstay import Backstay, workflow


@workflow
def nothing() -> int:
    return 1


def test_nodes_of_a_database_are_shown_and_drained(place: Place, postgresql_url: str) -> None:
    db = ("--db", postgresql_url)
    with Backstay(postgresql_url, [nothing]) as one:
        (node,) = json.loads(place.ask("nodes", "--json", *db).stdout)["nodes"]
        assert (node["shards"], node["status"], node["weight"]) == (256, "active", 1)
        host, _, pid = node["name"].rpartition(":")
        assert host
        assert pid.isdigit()
        alone = place.ask("node", "drain", node["id"], "--wait", *db)
        assert (alone.returncode, "no other process can take its shards" in alone.stderr) == (1, True)
        assert "no other process can take its shards" in place.ask("nodes", *db).stdout
        with Backstay(postgresql_url, [nothing]), Backstay(postgresql_url, client_only=True):
            drained = place.ask("node", "drain", node["id"], "--wait", *db)
            assert drained.returncode == 0, drained.stderr
            assert drained.stdout.splitlines()[-1].endswith("no longer owns shards")
            listed = {
                row["status"]: row["shards"] for row in json.loads(place.ask("nodes", "--json", *db).stdout)["nodes"]
            }
            assert listed == {"active": 256, "drained": 0, "guest": 0}
            assert one.execute(nothing, "w-1") == 1, "it serves on"
            assert "name one by its id" in mistaken(place.ask("node", "drain", node["name"], *db)), (
                "all are this process"
            )
            assert place.ask("node", "drain", node["id"], "--undo", *db).returncode == 0
    assert place.ask("node", "drain", "nobody", *db).returncode == 1


def test_a_file_has_one_node(place: Place) -> None:
    place.ask("start", "shop.py:order", "o-1", '{"sku": "b"}')
    assert json.loads(place.ask("nodes", "--json").stdout)["nodes"] == []
    assert "256 of 256 shards have no owner" in " ".join(place.ask("nodes").stdout.split())
    assert "one process at a time" in mistaken(place.ask("node", "drain", "x"))
