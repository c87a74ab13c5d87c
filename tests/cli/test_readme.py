"""The README's program and its command lines fit together: they are run in order, in an empty directory."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from dw_support import Place

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_commands_of_the_readme_work_on_its_first_program(place: Place) -> None:
    for file in place.directory.iterdir():
        file.unlink()
    program = re.search(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    section = README.partition("## The command line")[2].partition("\n## ")[0]
    block = re.search(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert program is not None
    assert block is not None
    place.write("shop.py", program[1])
    environment = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    said: dict[str, str] = {}
    for line in block[1].splitlines():
        command, _, comment = line.removeprefix("$ ").partition("#")
        words = command.split()
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            environment[name] = value
        elif words[:2] == ["dw", "dev"]:
            dev = place.dev(*words[2:], "--db", environment["DW_DB"])
            dev.wait("ready")
        else:
            done = place.shell(command, **environment)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            if "->" in comment:
                assert done.stdout.strip() == comment.partition("->")[2].strip()
            said[" ".join(words[:2])] = done.stdout
    assert "order-1" in said["dw list"]
    assert "order-2" in said["dw list"]
    assert "receipt for o-2 over 42.00" in said["dw history"]
    assert "completed" in said["dw describe"]
    assert sorted(path.name for path in place.directory.glob("*.db")) == ["shop.db"]
    again = place.shell("python shop.py", **environment)  # it has ended: the same receipt, and nothing is done
    assert (again.returncode, again.stdout) == (0, "receipt for o-1 over 42.00\n")
