"""The `curl` commands of the reference work as they stand there, on a server with a worker."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from backstay import Signal, Worker, update, wait, workflow

from . import server
from .pages import DOCS, blocks, sections

SECTIONS = sections(DOCS / "reference" / "http.md")
IN_ORDER = ("Webhooks", "Dry runs")  # the first one starts the workflow that the other one names
STRICT = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }'


@workflow(type="order")
class Order:
    approve = Signal[str]()

    @update
    def amend(self, cents: int) -> int:
        return cents

    def handle(self, title: str, count: int) -> str:
        return wait(Order.approve)


def commands(section: str) -> list[str]:
    shown = "".join(text for language, text in blocks(SECTIONS[section]) if language == "console")
    lines = shown.replace("\\\n", "").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ curl")]


def test_no_section_is_left_out() -> None:
    assert {name for name in SECTIONS if commands(name)} == set(IN_ORDER)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_a_command_with_curl_does_what_the_page_says() -> None:
    place = server.shared()
    environment = {**os.environ, "DW_SERVER": place["DOCS_SERVER"], "DW_TOKEN": place["DOCS_TOKEN"]}
    with Worker(place["DOCS_SERVER"], [Order], token=place["DOCS_TOKEN"]):
        for command in (command for section in IN_ORDER for command in commands(section)):
            done = subprocess.run(
                f"{STRICT}; {command}", shell=True, env=environment, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
