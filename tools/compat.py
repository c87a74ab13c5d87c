"""Try the package with each Python that it supports, and with its oldest and its newest dependencies.

    python -m tools.compat                    every supported Python that is at hand or that uv can get
    python -m tools.compat --python 3.12      one of them
    python -m tools.compat --tests            and the tests of codec, kernel and store with each combination

The wheel goes into an empty environment, from wheels alone: a dependency that would have to be compiled is a bound that is too
low. There the demo runs, and a server with a worker of its own process. A Python that cannot be had is named, not skipped in
silence; the exit code is 1 if a combination fails, and 2 if there was no Python to try.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
DEPENDENCIES = {"oldest": "lowest-direct", "newest": "highest"}
TESTS = ("tests/codec", "tests/kernel", "tests/store")
PROGRAM = ROOT / "tools" / "compat_program.py"
PATIENCE = 900


class Refused(Exception):
    """A step failed; the message is the end of its output."""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        [os.fspath(part) for part in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode != 0:
        raise Refused("\n".join((done.stdout + done.stderr).strip().splitlines()[-15:]))
    return done.stdout


def uv() -> str:
    """The uv of this environment: `make` installs it."""
    return os.fspath(Path(sys.executable).with_name("uv"))


def build(into: Path) -> Path:
    """The wheel of this checkout."""
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", into)
    return next(into.glob("*.whl"))


def interpreter(version: str) -> str | None:
    """A Python of this version: at hand, or fetched by uv; None if there is none."""
    known = Path.home() / ".pyenv" / "versions"
    for place in sorted(known.glob(f"{version}.*/bin/python")):
        return os.fspath(place)
    for step in (["python", "find", "--no-project", version], ["python", "install", "--quiet", version]):
        try:
            run(uv(), *step, UV_HTTP_TIMEOUT="20")
            return run(uv(), "python", "find", "--no-project", version).strip()
        except Refused:
            continue
    return None


def direct() -> set[str]:
    """The names of the dependencies that the package asks for itself, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for name in ("otel", "postgresql", "pydantic") for one in extras[name])]
    return {one.partition(">=")[0].strip() for one in wanted}


def pinned(python: str, resolution: str, into: Path) -> dict[str, str]:
    """The versions of all dependencies, and a file of constraints with the direct ones."""
    command = [uv(), "pip", "compile", "--quiet", "--only-binary", ":all:", "--no-header", "--no-annotate"]
    listed = run(*command, "--extra", "all", "--resolution", resolution, "--python", python, "pyproject.toml")
    versions = dict(line.split("==") for line in listed.split())
    ours = direct()
    into.write_text("".join(f"{name}=={version}\n" for name, version in versions.items() if name in ours))
    return {name: version for name, version in versions.items() if name in ours}


def attempt(python: str, resolution: str, wheel: Path, place: Path, *, tests: bool) -> dict[str, str]:
    """Install and use the package. Returns the versions it ran with."""
    constraints = place / "constraints.txt"
    versions = pinned(python, resolution, constraints)
    environment = place / "environment"
    run(uv(), "venv", "--quiet", "--python", python, environment)
    install = [uv(), "pip", "install", "--quiet", "--only-binary", ":all:", "--python", environment / "bin" / "python"]
    run(*install, "--constraints", constraints, f"backstay[all] @ {wheel.as_uri()}")
    empty = place / "empty"
    empty.mkdir()
    binaries = environment / "bin"
    run(binaries / "python", "-W", "error", "-c", "import backstay", cwd=empty)
    run(binaries / "backstay", "demo", cwd=empty)
    run(binaries / "python", PROGRAM, cwd=empty, PATH=f"{binaries}{os.pathsep}{os.environ['PATH']}")
    if tests:
        # With the tools of the tests, which bring newer versions of whatever is not pinned.
        run(
            uv(),
            "pip",
            "install",
            "--quiet",
            "--python",
            binaries / "python",
            "-c",
            constraints,
            "-e",
            f"{ROOT}[all,dev]",
        )
        run(binaries / "python", "-m", "pytest", "-q", "-n", "2", "-m", "not full", *TESTS)
    return versions


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.compat", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", action="append", metavar="VERSION", help="one version, such as 3.12; may be repeated"
    )
    parser.add_argument("--tests", action="store_true", help="also run the tests of codec, kernel and store")
    options = parser.parse_args(arguments)
    tried = failed = 0
    with tempfile.TemporaryDirectory(prefix="backstay-compat-") as directory:
        wheel = build(Path(directory) / "dist")
        for version in options.python or PYTHONS:
            python = interpreter(version)
            if python is None:
                print(f"Python {version}  not tried: it is not here, and uv cannot get it", flush=True)
                continue
            for age, resolution in DEPENDENCIES.items():
                place = Path(directory) / f"{version}-{age}"
                place.mkdir()
                tried += 1
                try:
                    versions = attempt(python, resolution, wheel, place, tests=options.tests)
                    shown = " ".join(f"{name} {number}" for name, number in versions.items())
                    print(f"Python {version}  {age} dependencies  works   {shown}", flush=True)
                except (Refused, subprocess.TimeoutExpired) as problem:
                    failed += 1
                    print(f"Python {version}  {age} dependencies  FAILS\n{problem}", flush=True)
    print(f"{tried - failed} of {tried} combinations work")
    return 2 if tried == 0 else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
