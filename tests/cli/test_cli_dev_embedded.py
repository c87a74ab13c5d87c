"""`dw dev` without the extra `server`: the process of the file is the engine, and there is no page."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from dw_support import SHOP, Dev, Place, until

from backstay import Backstay


def engine_of(place: Place, dev: Dev) -> int:
    engine = int((place.directory / "backstay.db-engine").read_text())
    assert engine == dev.worker()
    return engine


def test_without_the_extra_it_says_how_to_get_the_page_and_works(place: Place) -> None:
    file = place.directory / "shop.py"
    dev = place.dev_without_server("shop.py")
    dev.wait("Waterline, the page of these runs, needs: pip install 'backstay[server]'")
    dev.wait("ready; start one with: dw start shop.py:order")
    place.dw("start", "shop.py:nap", "nap-1", "1.5")
    dev.wait("nap-1  timer set for 1.5 s")
    file.write_text("def (:\n")
    dev.wait("shop.py:1: SyntaxError")
    dev.wait("waiting for the next save")
    file.write_text(SHOP.replace('"awake"', '"awake again"'))
    dev.wait("shop.py was saved; reloading")
    dev.wait("1 open runs go on")
    assert "awake again" in dev.wait("✓ nap-1  nap completed in")
    assert sum("backstay[server]" in line for line in dev.lines) == 1
    assert dev.interrupt() == 0
    dev.close()
    assert not any("Traceback" in line for line in dev.lines)


def test_without_the_extra_a_killed_process_is_started_again(place: Place) -> None:
    dev = place.dev_without_server("shop.py")
    dev.wait("ready")
    os.kill(engine_of(place, dev), signal.SIGKILL)
    dev.wait("SIGKILL")
    if "at once" in dev.lines[-1]:
        (place.directory / "shop.py").touch()
    dev.wait("ready")


def test_without_the_extra_a_second_one_waits_for_the_first_to_end(place: Place) -> None:
    first = place.dev_without_server("shop.py")
    first.wait("ready")
    second = place.dev("shop.py")  # one with a server: either waits for the other
    second.wait("is the engine of this database")
    assert first.interrupt() == 0
    second.wait_for_all("the other engine is gone; this one has taken over", "ready")
    third = place.dev_without_server("shop.py")
    third.wait("is the engine of this database")
    assert second.interrupt() == 0
    third.wait("the other engine is gone; this one has taken over")
    place.dw("start", "shop.py:nap", "nap-1", "0")
    third.wait("✓ nap-1  nap completed")


def test_without_the_extra_it_leaves_no_process_running(place: Place) -> None:
    dev = place.dev_without_server("shop.py")
    dev.wait("ready")
    engine = engine_of(place, dev)
    dev.process.kill()
    dev.process.wait()
    until(lambda: not Path(f"/proc/{engine}").exists())
    with Backstay(place.directory / "backstay.db") as backstay:
        assert backstay.is_engine
