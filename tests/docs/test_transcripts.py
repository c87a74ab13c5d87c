"""The commands of the README and of the tutorial print what the page shows, run in order in one empty directory.

A line that begins with `$` is a command; the lines below it are its output. Times and run ids may differ, `…` stands for any
text, and a line with nothing else for any lines. A Python block is saved under the page's file name when it is reached.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cli.dw_support import Dev
from .pages import DOCS, ROOT, blocks, sections

BIN = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SET_UP = ("make ", ". .venv", "pip install ", "backstay demo")

_VARIES = [
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "RUN"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\d+(\.\d+)? (us|µs|ms|s)\b"), "DURATION"),
    (re.compile(r"\s+"), " "),
]


def plain(line: str) -> str:
    for pattern, word in _VARIES:
        line = pattern.sub(word, line)
    return line.strip()


def pattern_of(shown: list[str]) -> re.Pattern[str]:
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, plain(line).split("…"))) + r"\n"
        for line in shown
    ]
    return re.compile("".join(lines))


def commands(block: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


class Reader:
    """Somebody who does what a page says."""

    def __init__(self, directory: Path, file: str) -> None:
        self.directory = directory
        self.file = directory / file
        self.environment = {"PATH": BIN, "COLUMNS": "200"}
        self.dev: Dev | None = None
        self.done: dict[str, str] = {}

    def read(self, text: str) -> None:
        for language, content in blocks(text):
            if language == "python":
                self.file.write_text(content, encoding="utf-8")
            elif language == "console":
                for command, shown in commands(content):
                    self.do(command, shown)
        self.stop()

    def stop(self) -> None:
        if self.dev is not None:
            self.dev.close()
            self.dev = None

    def do(self, command: str, shown: list[str]) -> None:
        words = command.partition("  #")[0].split()
        if command.startswith(SET_UP):
            return
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self.environment[name] = value
            return
        if words[:2] == ["dw", "dev"]:
            database = [] if "--db" in words else ["--db", self.environment["DW_DB"]]
            self.dev = Dev(self.directory, *words[2:], *database)
            self.dev.wait("ready")
            return
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            command, shell=True, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=60
        )
        output = "".join(plain(line) + "\n" for line in (done.stdout + done.stderr).splitlines())
        self.done[command] = output
        if shown:
            assert pattern_of(shown).fullmatch(output), f"$ {command}\n{done.stdout}{done.stderr}"
        else:
            assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"


@pytest.fixture
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    reader = Reader(tmp_path, request.param)
    yield reader
    reader.stop()


@pytest.mark.parametrize("reader", ["shop.py"], indirect=True)
def test_the_commands_of_the_readme_work_on_its_first_program(reader: Reader) -> None:
    readme = sections(ROOT / "README.md")
    reader.read(readme["Quickstart"])
    reader.read(readme["The command line"])
    assert "order-1" in reader.done[next(command for command in reader.done if command.startswith("dw list"))]
    assert [path.name for path in reader.directory.glob("*.db")] == ["shop.db"]
    again = subprocess.run(
        [sys.executable, "shop.py"], cwd=reader.directory, capture_output=True, text=True, check=False
    )
    assert "WorkflowAlreadyStarted" in again.stderr  # as the page says


@pytest.mark.parametrize("reader", ["desk.py"], indirect=True)
def test_every_step_of_the_tutorial_prints_what_it_shows(reader: Reader) -> None:
    steps = [text for name, text in sections(DOCS / "tutorial" / "order-desk.md").items() if name.startswith("Step")]
    assert len(steps) == 8
    for step in steps:
        reader.read(step)
