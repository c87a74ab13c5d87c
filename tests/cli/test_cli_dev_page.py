"""`dw dev` with Waterline: a server on loopback that stays while the code of its worker is replaced."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from dw_support import NAP, SHOP, Place, mistaken, until

HEADERS = {"X-Durable-Workflow-Control-Plane-Version": "2"}

SLOW = """
import os
import time
from pathlib import Path
from backstay import activity, workflow

def note(text: str) -> None:
    with Path("notes").open("a") as notes:
        notes.write(f"{text}\\n")

@activity(retries=5, backoff="10ms")
def work() -> str:
    note(f"began in {os.getpid()}")
    while not Path("go").exists():
        time.sleep(0.02)
    return "worked"

@workflow
def job() -> str:
    return work()
"""


def answer(page: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(page.removesuffix("/waterline") + path, headers=HEADERS | headers)


def blocked_runs(page: str) -> list[dict[str, Any]]:
    return answer(page, "/api/flows/running?state=blocked").json()["flows"]


def test_the_page_stays_over_reloads_and_over_code_that_cannot_be_imported(place: Place) -> None:
    file = place.write("nap.py", NAP)
    dev = place.dev("nap.py")
    page = dev.page()
    assert page.startswith("http://127.0.0.1:")
    dev.wait("ready")
    with httpx.Client(base_url=page.removesuffix("/waterline"), headers=HEADERS) as browser:
        assert browser.get("/waterline").status_code in (200, 302)
        place.dw("start", "nap.py:nap", "nap-1")
        dev.wait("nap-1  timer set for 1.5 s")
        worker = dev.worker()
        file.write_text("1 / 0\n")
        dev.wait("nap.py:1: ZeroDivisionError")
        dev.wait("waiting for the next save")
        assert not Path(f"/proc/{worker}").exists()
        assert browser.get("/api/workflows/nap-1").json()["workflow_id"] == "nap-1"
        file.write_text(NAP.replace('"done"', '"done by new code"'))
        dev.wait("1 open runs go on")
        dev.wait("ready")
        assert "done by new code" in dev.wait("✓ nap-1  nap completed in")
        assert browser.get("/api/workflows/nap-1").json()["status"] == "completed"
    assert sum("Waterline  at  " in line for line in dev.lines) == 1


def test_a_run_that_new_code_blocks_is_told_in_one_line_with_its_page(place: Place) -> None:
    file = place.write("nap.py", NAP)
    dev = place.dev("nap.py")
    page = dev.page()
    dev.wait("ready")
    place.dw("start", "nap.py:nap", "nap:1")
    dev.wait("nap:1  timer set for")
    file.write_text(NAP.replace("    sleep(", "    say('first')\n    sleep("))
    line = dev.wait("■ nap:1  is blocked: replay diverged at step 1")
    assert line.endswith(f"  {page}/runs/nap%3A1")
    until(lambda: [run["workflow_id"] for run in blocked_runs(page)] == ["nap:1"])
    file.write_text(NAP + "\n# fixed\n")
    dev.wait("✓ nap:1  nap completed")


def test_a_taken_port_is_no_trouble_unless_it_was_asked_for(place: Place) -> None:
    first = place.dev("shop.py")
    taken = urlsplit(first.page()).port
    second = place.dev("shop.py", "--db", "other.db")
    assert urlsplit(second.page()).port != taken
    refused = mistaken(place.dw("dev", "shop.py", "--db", "third.db", "--port", str(taken)))
    assert f"cannot listen at 127.0.0.1:{taken}" in refused
    assert "choose another with --port" in refused
    assert not (place.directory / "third.db").exists()


def test_the_port_can_be_chosen(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    dev = place.dev("shop.py", "--port", str(port))
    assert dev.page() == f"http://127.0.0.1:{port}/waterline"
    dev.wait("ready")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8233", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "127.0.0.1:8233", "Origin": "http://127.0.0.1:8233"}, 200),
        ({"Host": "rebound.example:8233"}, 403),
        ({"Host": "127.0.0.1.rebound.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_pages_of_other_sites_cannot_use_the_server(page: str, headers: dict[str, str], status: int) -> None:
    assert answer(page, "/api/workflows", **headers).status_code == status


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory):
    place = Place(tmp_path_factory.mktemp("dev"))
    place.write("shop.py", SHOP)
    try:
        yield place.dev("shop.py").page()
    finally:
        place.close()


def test_settings_of_other_servers_do_not_count(place: Place) -> None:
    dev = place.dev("shop.py", DW_TOKEN="secret", DW_SERVER="http://127.0.0.1:1", DW_PORT="none")
    page = dev.page()
    dev.wait("ready")
    assert answer(page, "/api/workflows").status_code == 200


def test_a_namespace_of_its_own(place: Place) -> None:
    dev = place.dev("shop.py", "--namespace", "shop")
    dev.wait("ready")
    place.dw("start", "shop.py:nap", "nap-1", "0", "--namespace", "shop")
    dev.wait("✓ nap-1  nap completed")


def test_a_namespace_with_capitals_is_refused_because_no_server_has_it(place: Place) -> None:
    done = place.dw("dev", "shop.py", "--namespace", "Shop")
    assert done.returncode == 2
    assert "a server accepts no namespace with capital letters such as 'Shop'" in done.stderr
    assert "Backstay('backstay.db', namespace='Shop')" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_server_and_worker_and_prints_no_traceback(place: Place, number: signal.Signals) -> None:
    dev = place.dev("shop.py")
    page = dev.page()
    dev.wait("ready")
    worker = dev.worker()
    address = page.removesuffix("/waterline") + "/api/live?topic=runs"
    with httpx.stream("GET", address, headers=HEADERS) as live:  # as a page that is open does
        assert live.status_code == 200
        dev.process.send_signal(number)
        assert dev.process.wait(20) == 0
    assert not Path(f"/proc/{worker}").exists()
    told = dev.lines.index(next(line for line in dev.lines if line.startswith("ready")))
    dev.close()
    assert dev.lines[told + 1 :] == []


def test_a_signal_while_the_file_is_broken_ends_it_too(place: Place) -> None:
    place.write("app.py", "1 / 0\n")
    dev = place.dev("app.py")
    dev.wait("waiting for the next save")
    worker = dev.worker()
    assert dev.interrupt() == 0
    assert not Path(f"/proc/{worker}").exists()


def test_killing_the_server_ends_a_worker_that_is_busy(place: Place) -> None:
    place.write("slow.py", SLOW)
    dev = place.dev("slow.py")
    dev.wait("ready")
    place.dw("start", "slow.py:job", "job-1")
    until((place.directory / "notes").exists)
    worker = dev.worker()
    dev.process.kill()
    dev.process.wait()
    until(lambda: not Path(f"/proc/{worker}").exists())
    (place.directory / "go").touch()
    again = place.dev("slow.py")  # the next one does not wait for the lease of the dead one to run out
    again.wait("✓ job-1  job completed in")


def test_an_activity_whose_worker_is_killed_runs_again_at_once(place: Place) -> None:
    file = place.write("slow.py", SLOW)
    notes = place.directory / "notes"
    dev = place.dev("slow.py")
    dev.wait("ready")
    place.dw("start", "slow.py:job", "job-1")
    until(notes.exists)
    os.kill(dev.worker(), signal.SIGKILL)
    if "at once" in dev.wait("SIGKILL"):
        file.touch()
    dev.wait("ready")
    until(lambda: len(notes.read_text().splitlines()) == 2)
    (place.directory / "go").touch()
    dev.wait("✓ job-1  job completed in")


def test_a_save_in_the_middle_of_an_activity_runs_it_again_with_the_new_code(place: Place) -> None:
    file = place.write("slow.py", SLOW)
    dev = place.dev("slow.py")
    dev.wait("ready")
    place.dw("start", "slow.py:job", "job-1")
    until((place.directory / "notes").exists)
    file.write_text(SLOW.replace('not Path("go").exists()', "False").replace('"worked"', '"worked anew"'))
    dev.wait("slow.py was saved; reloading")
    assert "worked anew" in dev.wait("✓ job-1  job completed in")
