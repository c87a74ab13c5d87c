"""What `run.py` compares: this tree, another commit of it, and other systems. Each is a way to start a workload in a new process."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HARNESS = Path(os.environ.get("BENCH_HARNESS", ROOT.parent / "shared" / "bench"))
HOME = Path(os.environ.get("BENCH_HOME", Path.home() / ".cache" / "backstay-bench"))
PATIENCE = 900  # seconds for one workload

Figures = Mapping[str, float]
"""By their names; a dot is between the names of a figure that has several parts."""


class Side:
    """One of those that are compared."""

    name = ""

    def measure(self, script: str, arguments: list[str], turn: int) -> Figures:
        raise NotImplementedError


class Tree(Side):
    """A source tree of Backstay. The workloads are those of this checkout, whatever the tree is."""

    def __init__(self, name: str, source: Path) -> None:
        self.name = name
        self.source = source
        if not compileall.compile_dir(source, quiet=2):
            raise SystemExit(f"{source} cannot be compiled")

    def measure(self, script: str, arguments: list[str], turn: int) -> Figures:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.source),
            "PYTHONHASHSEED": str(turn + 1),  # what it changes is the same at both sides
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process would compile the workloads
        return results([sys.executable, str(HERE / script), *arguments], environment)


class System(Side):
    """Another system, in a virtual environment of its own. `needs`: a program that it has to have as well. `postgresql`: it is
    compared with Backstay on PostgreSQL, and otherwise with Backstay on SQLite. `without`: workloads that take it too long."""

    def __init__(
        self,
        name: str,
        environment: str,
        script: str,
        *options: str,
        needs: Path | None = None,
        postgresql: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.postgresql = postgresql
        self.without = without
        self._python = HOME / "venvs" / environment / "bin" / "python"
        self._script = HARNESS / script
        self._options = options
        self._needs = needs

    @property
    def missing(self) -> Path | None:
        """The first file that must be there and is not."""
        files = [self._python, self._script, *([] if self._needs is None else [self._needs])]
        return next((file for file in files if not file.exists()), None)

    def measure(self, script: str, arguments: list[str], turn: int) -> Figures:
        environment = {**os.environ, "BENCH_HOME": str(HOME), "BENCH_HARNESS": str(HARNESS)}
        return results([str(self._python), str(self._script), *arguments, *self._options], environment)


RESTATE = HOME / "npm/node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"


def systems(server: str) -> list[System]:
    """Those that Backstay is compared with, at sizes that end in reasonable time. `server`: the URL of a PostgreSQL."""
    database = f"{server}/{{}}".format
    small_w1 = ("--w1-n", "1500")
    return [
        System("Restate", "restate", "peer_restate.py", "--server", str(RESTATE), needs=RESTATE),
        System(
            "Temporal",
            "temporal",
            "peer_temporal.py",
            *("--w1-n", "600", "--w2-parallel", "10", "--w4-n", "150"),
            without=("memory",),
        ),
        System("DBOS", "core", "peer_dbos.py", "--db", database("dbos"), *small_w1, postgresql=True),
        System(
            "Absurd", "absurd", "peer_absurd.py", "--db", database("absurd"), *small_w1, "--w4-n", "60", postgresql=True
        ),
    ]


def results(command: list[str], environment: Mapping[str, str]) -> Figures:
    """What a script has told with `--json`, of all its workloads."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "results.json"
        ended = subprocess.run(
            [*command, "--json", str(out)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)}: {ended.stderr[-2000:]}")
        told = [json.loads(line)["results"] for line in out.read_text().splitlines()]
    found = dict(_flat("", {name: value for one in told for name, value in one.items()}))
    if memory := [value for name, value in found.items() if name.startswith("w7.rss_open_mib.")]:
        found["w7.rss_mib"] = sum(memory)
    return found


def _flat(prefix: str, told: Mapping[str, Any]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in told.items():
        if isinstance(value, int | float):
            found.append((prefix + name, value))
        elif isinstance(value, dict):
            found += _flat(f"{prefix}{name}.", cast("dict[str, Any]", value))
    return found


def this_tree(scratch: Path) -> Tree:
    """A copy of this checkout's source as it is now, because somebody may edit it meanwhile."""
    shutil.copytree(ROOT / "src", scratch / "src")
    return Tree("Backstay", scratch / "src")


def commit(name: str) -> Tree:
    """The source of a commit, kept in the cache."""
    asked = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    sha = asked.stdout.strip()
    if not sha:
        raise SystemExit(f"{name} is no commit of this checkout")
    kept = HOME / sha
    if not kept.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", sha, "src"], cwd=ROOT, capture_output=True, check=True).stdout
        with tempfile.TemporaryDirectory(dir=HOME) as half:
            with tarfile.open(fileobj=BytesIO(archive)) as opened:
                opened.extractall(half, filter="data")
            shutil.copytree(half, kept)
    return Tree(sha[:8], kept / "src")
