"""`dw replay`: which exported runs the code of a file does not fit."""

from __future__ import annotations

import json

from dw_support import Place, mistaken, until

from backstay import Backstay, activity, sleep, workflow

V1 = """
from backstay import activity, sleep, workflow

@activity
def check(item: str) -> str:
    return item

@workflow(type="order")
def order(item: str) -> str:
    check(item)
    sleep("30d")
    return check(item)
"""
V2 = V1.replace('    sleep("30d")\n', '    check("more")\n    sleep("30d")\n')


@activity(type="check")
def check(item: str) -> str:
    return item


@workflow(type="order")
def order(item: str) -> str:
    check(item)
    sleep("30d")
    return check(item)


def test_exported_runs_are_replayed_without_a_database(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [order, check]) as backstay:
        for id in ("o-1", "o-2"):
            handle = backstay.start(order, id, "book")
            until(lambda handle=handle: handle.describe().wait_kind == "timer")
    (place.directory / "histories").mkdir()
    for id in ("o-1", "o-2"):
        assert place.ask("export", id, "-o", f"histories/{id}.json").returncode == 0
    (place.directory / "backstay.db").unlink()
    place.write("v1.py", V1)
    place.write("v2.py", V2)
    fits = place.dw("replay", "histories", "--app", "v1.py")
    assert (fits.returncode, fits.stdout) == (0, "2 runs replayed; none would be blocked\n")
    done = place.dw("replay", "histories/o-1.json", "histories/o-2.json", "--app", "v2.py")
    assert done.returncode == 1
    assert done.stderr == "dw: 2 of 2 runs would be blocked by v2.py\n"
    told = done.stdout.splitlines()
    assert told[0].startswith("histories/o-1.json: o-1 (order) would be blocked: replay diverged at step 2")
    assert told[1] == '  v2.py:11: check("more")'
    assert told[4].split() == ["2:", "timer", "activity", "check"]
    shown = json.loads(place.dw("replay", "histories", "--app", "v2.py", "--json").stdout)
    assert (shown["runs"], shown["blocked"][0]["step"], shown["blocked"][0]["place"]["line"]) == (2, 2, 11)
    assert not list(place.directory.glob("*.db")), "no database was made"
    # Many exports are imported into one database.
    assert place.ask("import", "histories/o-1.json", "histories/o-2.json", "--db", "new.db").returncode == 0
    assert "2 would be blocked (1 difference)" in mistaken(place.dw("verdict", "--app", "v2.py", "--db", "new.db"), 1)


def test_a_file_that_is_no_history_is_named(place: Place) -> None:
    place.write("v1.py", V1)
    place.write("bad.json", '{"schema": 1}')
    assert mistaken(place.dw("replay", "bad.json", "--app", "v1.py")).startswith("dw: bad.json cannot be replayed: ")
    assert "none.json cannot be read" in mistaken(place.dw("replay", "none.json", "--app", "v1.py"))
    (place.directory / "empty").mkdir()
    assert "empty has no histories" in mistaken(place.dw("replay", "empty", "--app", "v1.py"))
