"""`dw verdict`: which open runs the code of a file would block."""

from __future__ import annotations

import json
import re
import shutil

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


FITS = "2 open runs: 2 fit, 0 would be blocked, 0 could not be judged"


def test_runs_that_new_code_would_block_are_shown_and_nothing_is_done(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [order, check]) as backstay:
        for id in ("o-1", "o-2"):
            handle = backstay.start(order, id, "book")
            until(lambda handle=handle: handle.describe().wait_kind == "timer")
        place.write("v1.py", V1)
        place.write("v2.py", V2)
        fits = place.dw("verdict", "--app", "v1.py")  # beside a running engine
    assert (fits.returncode, fits.stdout) == (0, f"{FITS}\n")
    before = (place.directory / "backstay.db").read_bytes()
    done = place.dw("verdict", "--app", "v2.py")
    assert done.returncode == 1
    assert (
        done.stderr
        == "dw: v2.py does not fit every open run: 2 open runs: 0 fit, 2 would be blocked (1 difference), 0 could not be judged\n"
    )
    assert "2 runs of order would be blocked, for example o-2: replay diverged at step 2" in done.stdout
    assert "2: timer              activity check" in done.stdout
    assert (
        """
  This keeps o-2, as a trial showed:
    if patched("order-check"):  # v2.py:11
        check("more")
"""
        in done.stdout
    )
    assert "1 run: 0 fit, 1 would be blocked" in mistaken(place.dw("verdict", "o-2", "--app", "v2.py"), 1)
    assert (place.directory / "backstay.db").read_bytes() == before
    assert "there is no workflow 'o-9'" in mistaken(place.dw("verdict", "o-9", "--app", "v1.py"), 1)
    shutil.rmtree(place.directory / "__pycache__", ignore_errors=True)
    assert "there is no database none.db" in mistaken(place.dw("verdict", "--app", "v1.py", "--db", "none.db"), 2)


def test_a_verdict_is_printed_as_json_with_that_of_a_rollback(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [order, check]) as backstay:
        handle = backstay.start(order, "o-1", "book")
        until(lambda: handle.describe().wait_kind == "timer")
    place.write("v2.py", V2)
    (place.directory / "before").mkdir()
    place.write("before/v2.py", V1)
    done = place.dw("verdict", "--app", "v2.py", "--rollback", "before/v2.py", "--json")
    assert done.returncode == 1
    shown = json.loads(done.stdout)
    assert (shown["app"]["blocked"], shown["app"]["fits"]) == (1, False)
    assert shown["app"]["differences"][0]["hint"]["tried"]
    assert (shown["rollback"]["runs"], shown["rollback"]["fits"]) == (1, True)
    done = place.dw("verdict", "--app", "before/v2.py", "--rollback", "v2.py")
    assert "fits every open run; a rollback to v2.py would not: 1 open run: 0 fit" in mistaken(done, 1)
    assert "After a rollback to v2.py:" in done.stdout


def test_a_verdict_that_was_interrupted_goes_on(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [order, check]) as backstay:
        for id in ("o-1", "o-2"):
            handle = backstay.start(order, id, "book")
            until(lambda handle=handle: handle.describe().wait_kind == "timer")
        newest = backstay.list()[0].key
    place.write("v1.py", V1)
    place.write("v2.py", V2)
    first = place.dw("verdict", "--app", "v1.py", "--state", "state.json")
    assert first.stdout == f"{FITS}\n"
    state = json.loads((place.directory / "state.json").read_text())
    assert state["finished"]
    place.write("state.json", json.dumps(state | {"finished": False, "runs": 1, "position": newest}))
    again = place.dw("verdict", "--app", "v1.py", "--state", "state.json")
    assert (again.stdout, again.stderr) == (f"{FITS}\n", "going on after 1 open runs, as state.json says\n")
    place.write("state.json", json.dumps(state | {"finished": False, "runs": 1, "position": newest}))
    other = place.dw("verdict", "--app", "v2.py", "--state", "state.json")
    assert "2 open runs: 0 fit" in mistaken(other, 1), "other code begins anew"
    place.write("state.json", "nothing")
    assert "state.json is no state of a verdict" in mistaken(
        place.dw("verdict", "--app", "v1.py", "--state", "state.json")
    )


def test_the_open_runs_of_a_server_are_judged_while_it_works(place: Place) -> None:
    place.write("v1.py", V1)
    place.write("v2.py", V2)
    dev = place.dev("v1.py")
    url = re.match(r"http://[^/]+", dev.page()).group()  # type: ignore[union-attr]
    for id in ("o-1", "o-2"):
        assert place.dw("start", "v1.py:order", id, '"book"', "--server", url).returncode == 0
        until(lambda name=id: "sleeps" in place.dw("why", name, "--server", url).stdout.lower())
    fits = place.dw("verdict", "--app", "v1.py", DW_SERVER=url)
    assert fits.stdout == f"{FITS}\n"
    assert "2 open runs: 0 fit, 2 would be blocked" in mistaken(
        place.dw("verdict", "--app", "v2.py", "--server", url), 1
    )
