"""`dw debug` as a real process: at a pipe, on a terminal, on files and on databases."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from backstay import Backstay
from backstay.testing import TestBackstay

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "debug.md"
DW = [sys.executable, "-m", "backstay.cli.main"]

ASYNC = """
import asyncio
from pathlib import Path
from backstay import activity, workflow

@activity
def look(number: int) -> int:
    with Path("looked").open("a") as file:
        file.write("x")
    return number

async def twice(number: int) -> int:
    got = await look.step(number)
    await asyncio.sleep(0.01)
    return 2 * got

@workflow
async def counting(number: int) -> int:
    first = await twice(number)
    return first + await twice(first)
"""


def program(path: Path, code: str) -> dict[str, Any]:
    path.write_text(code, encoding="utf-8")
    found: dict[str, Any] = {"__name__": path.stem}
    exec(compile(code, str(path), "exec"), found)
    return found


def debug(directory: Path, *arguments: str, typed: list[str]) -> list[str]:
    """What is shown after each prompt: first before anything is typed."""
    done = subprocess.run(
        [*DW, "debug", *arguments],
        input="".join(f"{line}\n" for line in typed),
        cwd=directory,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.replace(f"{directory.resolve()}{os.sep}", "").split("(dw) ")


def test_the_session_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    code, session = re.findall(r"```\w+\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    shop = program(tmp_path / "shop.py", code)
    with TestBackstay(register=[shop["order"], shop["charge"], shop["ship"]]) as app:
        app.execute(shop["order"], "order-1", "a map")
        (tmp_path / "order-1.json").write_text(json.dumps(app.export("order-1")), encoding="utf-8")
    command, *_ = session.splitlines()
    typed = re.findall(r"^\(dw\) (.*)$", session, re.MULTILINE)
    shown = debug(tmp_path, *command.split()[3:], typed=typed)
    told = "".join(f"{text}(dw) {line}\n" for text, line in zip(shown, typed, strict=False))
    assert f"{command}\n{told}" == session


def test_an_async_workflow_of_a_database_is_debugged_without_a_trace(tmp_path: Path) -> None:
    code = program(tmp_path / "counts.py", ASYNC)
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        with Backstay("counts.db", [code["counting"], code["look"]]) as app:
            assert app.execute(code["counting"], "c-1", 3) == 18
            before = app.history("c-1")
    finally:
        os.chdir(here)
    events = [entry.type for entry in before]
    second = len(events) - 1 - events[::-1].index("ActivityScheduled")
    place = ["--db", "counts.db", "--app", "counts.py"]
    typed = ["where", "p number", "up", "p first", "look(3)", "step", "goto 99", "next", "back"]
    shown = debug(tmp_path, "c-1", *place, "--at", str(second + 1), typed=typed)
    assert "twice()" in shown[1]
    assert "counting()" in shown[1]
    assert shown[2].strip() == "6"
    assert "counting()" in shown[3]
    assert shown[4].strip() == "6"
    assert "cannot make durable calls" in shown[5]
    assert "this code stands still" in shown[6]
    assert f"stands at events 2 to {len(events)}" in shown[7]
    assert f"event {second + 2} of" in shown[8]
    assert f"event {second + 1} of" in shown[9]
    assert (tmp_path / "looked").read_text() == "xx"
    with Backstay(tmp_path / "counts.db", [code["counting"], code["look"]]) as app:
        assert app.history("c-1") == before
    ended = debug(tmp_path, "c-1", *place, "--at", str(len(events)), typed=["p 1", "quit"])
    assert "the code has ended" in ended[0]
    assert ended[1].strip() == "1"


def test_code_that_does_not_fit_says_so_where_it_parts(tmp_path: Path) -> None:
    code = program(tmp_path / "counts.py", ASYNC)
    with TestBackstay(register=[code["counting"], code["look"]]) as app:
        app.fake(code["look"], calls=lambda number: number)
        app.execute(code["counting"], "c-1", 3)
        (tmp_path / "c-1.json").write_text(json.dumps(app.export("c-1")), encoding="utf-8")
    (tmp_path / "counts.py").write_text(ASYNC.replace("    await asyncio.sleep(0.01)\n", ""), encoding="utf-8")
    shown = debug(tmp_path, "c-1.json", "--app", "counts.py", "--at", "6", typed=["p got", "quit"])
    assert "the code does not fit" in shown[0]
    assert "(dw)" not in shown[-1]


def test_it_works_on_a_terminal(tmp_path: Path) -> None:
    code = program(tmp_path / "counts.py", ASYNC)
    with TestBackstay(register=[code["counting"], code["look"]]) as app:
        app.fake(code["look"], calls=lambda number: number)
        app.execute(code["counting"], "c-1", 3)
        (tmp_path / "c-1.json").write_text(json.dumps(app.export("c-1")), encoding="utf-8")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*DW, "debug", "c-1.json", "--app", "counts.py"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(theirs)
    try:
        seen = ""
        for typed in ("next", "back", "quit"):
            while seen.count("(dw) ") == 0:
                seen += os.read(ours, 4096).decode()
            assert "event " in seen, seen
            seen = ""
            os.write(ours, f"{typed}\n".encode())
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
