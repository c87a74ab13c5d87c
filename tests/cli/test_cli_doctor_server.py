"""`dw doctor --server`: faults of real servers, each found from outside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from dw_support import DW, PATIENCE, Place

from backstay import Client
from backstay.cli.doctor import server as checked
from backstay.release import VERSION

Found = dict[str, dict[str, Any]]
Start = Callable[..., str]

SHIFTED = """
import time
for name, shift in (("time", 300), ("time_ns", 300 * 10**9)):
    real = getattr(time, name)
    setattr(time, name, lambda real=real, shift=shift: real() + shift)
"""


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    """Starts a server of this place, and returns its address."""
    running: list[subprocess.Popen[str]] = []

    def started(*arguments: str, **environment: str) -> str:
        process = subprocess.Popen(
            [*DW, "server", "--port", "0", *arguments],
            cwd=place.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | environment,
        )
        running.append(process)
        assert process.stdout is not None
        return process.stdout.readline().split()[-1]

    yield started
    for process in running:
        process.terminate()
    for process in running:
        process.communicate(timeout=PATIENCE)


@pytest.fixture
def doctor(place: Place) -> Callable[..., Found]:
    def examined(url: str, *arguments: str, token: str | None = "t", **environment: str) -> Found:
        shown = ["--token", token] if token else []
        told = place.ask("doctor", "--server", url, *shown, "--json", *arguments, **environment).stdout
        return {one["check"]: one for one in json.loads(told)["checks"]}

    return examined


def broken(found: Found) -> list[str]:
    return [name for name, one in found.items() if one["status"] in ("warning", "error")]


def test_a_server_in_order_and_what_is_wrong_with_its_callers(
    start: Start, doctor: Callable[..., Found], place: Place
) -> None:
    url = start(DW_TOKEN="t", DW_WORKER_TOKEN="w")
    found = doctor(url)
    assert (broken(found), list(found)) == ([], [*checked.NAMES, "causes"])
    assert place.ask("doctor", "--server", url, "--token", "t").returncode == 0

    found = doctor(url, token="guess")
    assert (broken(found), found["ready"]["status"]) == (["token"], "skipped")
    assert "refuses this token" in found["token"]["message"]
    assert "none was given" in doctor(url, token=None)["token"]["message"]
    found = doctor(url, token="w")
    assert broken(found) == ["role"]
    assert "--role viewer" in found["role"]["fix"]
    found = doctor(url, "--namespace", "nope")
    assert broken(found) == ["namespace"]
    assert "there is no namespace 'nope'" in found["namespace"]["message"]
    found = doctor(url.replace("http:", "https:"))
    assert broken(found) == ["tls"]
    assert "plain HTTP" in found["tls"]["fix"]


def test_work_that_no_worker_takes(start: Start, doctor: Callable[..., Found]) -> None:
    url = start(DW_TOKEN="t")
    with Client(url, token="t") as client:
        client.start("order", "o-1")
        found = doctor(url)
    assert (found["no_worker"]["status"], found["no_worker"]["message"]) == ("error", found["no_worker"]["message"])
    assert "order" in found["no_worker"]["message"]
    assert found["no_worker"]["fix"]


def test_another_clock_and_another_release(start: Start, doctor: Callable[..., Found], place: Place) -> None:
    other = place.directory / "other"
    (other / "backstay-9.9.9.dist-info").mkdir(parents=True)
    (other / "backstay-9.9.9.dist-info" / "METADATA").write_text("Name: backstay\nVersion: 9.9.9\n")
    (other / "sitecustomize.py").write_text(SHIFTED)
    found = doctor(start(DW_TOKEN="t", PYTHONPATH=str(other)))
    assert broken(found) == ["clock", "versions"]
    assert found["clock"]["message"] == "the clock of this machine is 5 min behind that of the server"
    assert found["versions"]["message"] == f"the server has release 9.9.9, this machine {VERSION}"
    assert "backstay==9.9.9" in found["versions"]["fix"]


def test_a_server_that_everybody_may_use_and_one_that_another_process_keeps_from_work(
    start: Start, doctor: Callable[..., Found]
) -> None:
    found = doctor(start("--auth", "none"), token=None)
    assert broken(found) == ["token"]
    assert "everybody who reaches it may do everything" in found["token"]["message"]
    found = doctor(start(DW_TOKEN="t"))
    assert broken(found) == ["ready"]
    assert "PostgreSQL" in found["ready"]["fix"]


def test_nothing_or_something_else_listens_there(doctor: Callable[..., Found]) -> None:
    assert broken(doctor("ftp://here")) == ["address"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = doctor(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert broken(found) == ["address"]
    assert "nothing listens there" in found["address"]["message"]

    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        try:
            found = doctor(f"http://127.0.0.1:{other.server_port}")
        finally:
            other.shutdown()
            thread.join()
    assert broken(found) == ["server"]
    assert "no server of Backstay" in found["server"]["message"]


def test_tokens_go_over_the_network_in_clear(start: Start, doctor: Callable[..., Found]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent
        except OSError:
            pytest.skip("this machine has no network")
        address = probe.getsockname()[0]
    port = start("--host", "0.0.0.0", DW_TOKEN="t").rpartition(":")[2]
    found = doctor(f"http://{address}:{port}")
    assert broken(found) == ["tls"]
    assert found["tls"]["status"] == "warning"


AUTHORITY = """
[ca]
default_ca = self
[self]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = named
unique_subject = no
copy_extensions = copy
[named]
commonName = supplied
"""


def certificate(directory: Path, days: int) -> list[str]:
    """A certificate for the name localhost, signed by itself, that ends in some days."""
    place = directory / f"certificate{days}"
    place.mkdir()
    for name, text in (("ca.cnf", AUTHORITY), ("index.txt", ""), ("serial", "01")):
        (place / name).write_text(text)
    end = (datetime.now(UTC) + timedelta(days=days)).strftime("%Y%m%d%H%M%SZ")
    san = "subjectAltName=DNS:localhost"
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem"
    for command in (
        f"req {key} -subj /CN=localhost -addext {san} -out asked.pem",
        f"ca -batch -selfsign -keyfile key.pem -in asked.pem -out cert.pem -config ca.cnf -startdate 20200101000000Z -enddate {end}",
    ):
        subprocess.run(["openssl", *command.split()], cwd=place, check=True, capture_output=True)
    return ["--tls-certificate", str(place / "cert.pem"), "--tls-key", str(place / "key.pem")]


def test_certificates(start: Start, doctor: Callable[..., Found], place: Place) -> None:
    files = certificate(place.directory, 90)
    url = start("--host", "localhost", *files, DW_TOKEN="t").replace("127.0.0.1", "localhost")
    assert broken(doctor(url, SSL_CERT_FILE=files[1])) == []
    found = doctor(url)
    assert broken(found) == ["tls"]
    assert "SSL_CERT_FILE" in found["tls"]["fix"]
    found = doctor(url.replace("localhost", "127.0.0.1"), SSL_CERT_FILE=files[1])
    assert "use a name that is in the certificate" in found["tls"]["fix"]
    assert broken(doctor(url.replace("https:", "http:"))) == ["server"]

    for days, status, said in ((5, "warning", "the certificate ends at"), (-1, "error", "certificate has expired")):
        files = certificate(place.directory, days)
        url = start("--host", "localhost", *files, "--store", f"sqlite:{days}.db", DW_TOKEN="t")
        found = doctor(url.replace("127.0.0.1", "localhost"), SSL_CERT_FILE=files[1])
        assert (found["tls"]["status"], broken(found)) == (status, ["tls"])
        assert said in found["tls"]["message"]
        assert "renew" in found["tls"]["fix"]
