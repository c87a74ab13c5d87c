"""`dw replay`: which open runs the code of a file would block."""

from __future__ import annotations

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


def test_runs_that_new_code_would_block_are_shown_and_nothing_is_done(place: Place) -> None:
    with Backstay(place.directory / "backstay.db", [order, check]) as backstay:
        for id in ("o-1", "o-2"):
            handle = backstay.start(order, id, "book")
            until(lambda handle=handle: handle.describe().wait_kind == "timer")
        place.write("v1.py", V1)
        place.write("v2.py", V2)
        fits = place.dw("replay", "v1.py")  # beside a running engine
    assert (fits.returncode, fits.stdout) == (0, "2 runs replayed; none would be blocked\n")
    before = (place.directory / "backstay.db").read_bytes()
    done = place.dw("replay", "v2.py")
    assert done.returncode == 1
    assert done.stderr == "dw: 2 of 2 runs would be blocked by v2.py\n"
    assert "o-1 (order) would be blocked: replay diverged at step 2" in done.stdout
    assert "2: timer              activity check" in done.stdout
    assert place.dw("replay", "v2.py", "o-2").stderr == "dw: 1 of 1 run would be blocked by v2.py\n"
    assert (place.directory / "backstay.db").read_bytes() == before
    assert "there is no workflow 'o-9'" in mistaken(place.dw("replay", "v1.py", "o-9"), 1)
    shutil.rmtree(place.directory / "__pycache__", ignore_errors=True)
    assert "there is no database none.db" in mistaken(place.dw("replay", "v1.py", "--db", "none.db"), 2)
