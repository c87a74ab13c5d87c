"""Build and check a release: wheel, sdist, SBOM, checksums, notes and the tag. It publishes nothing.

    python -m tools.release --only-build     build and check what is here, into dist/
    python -m tools.release                  the same from a clean checkout, and tag the commit

The version is that of pyproject.toml, and the notes are its section of CHANGELOG.md. Both archives are built twice, with the time
of the commit, and must be the same bytes. `twine upload dist/*.whl dist/*.tar.gz` and `git push --tags` publish it.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PACKAGE = "src/backstay"
SDIST_NEEDS = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "tools/release.py")


class NotReady(Exception):
    """The release cannot be made; the message says why."""


def run(*command: str | Path, **environment: str) -> str:
    parts = [os.fspath(part) for part in command]
    done = subprocess.run(
        parts, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise NotReady(f"{' '.join(parts[:4])} failed:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def notes(text: str, number: str) -> str:
    """The section of the changelog about a version."""
    section = re.search(rf"^## \[{re.escape(number)}\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.M | re.S)
    if section is None or not section[1].strip():
        raise NotReady(f"CHANGELOG.md has no section '## [{number}]' with text")
    return section[1].strip() + "\n"


def tracked() -> set[str]:
    """The files of the package that git knows, by their name in the wheel; in an unpacked sdist, all that are there."""
    if (ROOT / ".git").exists():
        listed = [ROOT / name for name in run("git", "ls-files", PACKAGE).splitlines()]
    else:
        listed = [path for path in (ROOT / PACKAGE).rglob("*") if "__pycache__" not in path.parts]
    return {os.fspath(path.relative_to(ROOT / "src")) for path in listed if path.is_file()}


def build(into: Path) -> None:
    """Both archives, with the time of the commit in them."""
    environment = {}
    if (ROOT / ".git").exists():
        environment["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct").strip()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", into, **environment)


def check_reproducible(first: Path, second: Path) -> None:
    for archive in sorted(first.iterdir()):
        if not filecmp.cmp(archive, second / archive.name, shallow=False):
            raise NotReady(f"two builds of {archive.name} differ")


def check_wheel(wheel: Path, wanted: set[str], number: str) -> None:
    """The wheel has each file of the package, and nothing else but its own description."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        about = f"backstay-{number}.dist-info"
        ours = {name for name in names if not name.startswith(f"{about}/")}
        if ours != wanted:
            missing, extra = sorted(wanted - ours)[:5], sorted(ours - wanted)[:5]
            raise NotReady(f"{wheel.name} is not the package of this checkout: missing {missing}, not tracked {extra}")
        metadata = Parser().parsestr(archive.read(f"{about}/METADATA").decode())
        if metadata["Version"] != number:
            raise NotReady(f"{wheel.name} says that it is version {metadata['Version']}")
        points = archive.read(f"{about}/entry_points.txt").decode()
        for command in ("backstay", "dw"):
            if f"{command} = backstay.cli.main:main" not in points:
                raise NotReady(f"{wheel.name} has no command {command}")
        if f"{about}/licenses/LICENSE" not in names:
            raise NotReady(f"{wheel.name} has no licence")


def check_sdist(sdist: Path, wanted: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = sorted({f"src/{name}" for name in wanted}.union(SDIST_NEEDS) - names)
    if missing:
        raise NotReady(f"{sdist.name} lacks {missing[:5]}")


def bill_of_materials() -> str:
    """The CycloneDX list of what an installation with all extras brings, as it resolves today."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)  # so that no lock file is left in the checkout
        shutil.copy(ROOT / "pyproject.toml", place)
        command = [Path(sys.executable).with_name("uv"), "export", "--quiet", "--format", "cyclonedx1.5"]
        text = run(*command, "--extra", "all", "--no-dev", "--project", place)
    components = json.loads(text).get("components", [])
    if not any(part.get("name") == "msgspec" for part in components):
        raise NotReady("the SBOM does not name what the package depends on")
    return text


def sums(files: list[Path]) -> str:
    """In the form of sha256sum: `sha256sum --check SHA256SUMS`."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def make(number: str) -> list[Path]:
    """Build, check and describe. Replaces what is in dist/ only when all is well."""
    told = notes((ROOT / "CHANGELOG.md").read_text("utf-8"), number)
    wanted = tracked()
    with tempfile.TemporaryDirectory(prefix="backstay-release-") as directory:
        first, second = Path(directory) / "first", Path(directory) / "second"
        build(first)
        build(second)
        check_reproducible(first, second)
        wheel, sdist = first / f"backstay-{number}-py3-none-any.whl", first / f"backstay-{number}.tar.gz"
        check_wheel(wheel, wanted, number)
        check_sdist(sdist, wanted)
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        bill = first / "sbom.cdx.json"
        bill.write_text(bill_of_materials())
        (first / "SHA256SUMS").write_text(sums([wheel, sdist, bill]))
        (first / "NOTES.md").write_text(told)
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(first, DIST)
    return sorted(DIST.iterdir())


def tag(number: str) -> str:
    name = f"v{number}"
    run("git", "tag", "--annotate", name, "--cleanup=verbatim", "--file", DIST / "NOTES.md")
    return name


def check_clean(number: str) -> None:
    if run("git", "status", "--porcelain").strip():
        raise NotReady("there are changes that are not committed; commit them, or use --only-build")
    if run("git", "tag", "--list", f"v{number}").strip():
        raise NotReady(f"the tag v{number} exists; raise the version in pyproject.toml and in CHANGELOG.md")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only-build", action="store_true", help="build and check, also with uncommitted changes; no tag"
    )
    options = parser.parse_args(arguments)
    number = version()
    try:
        if not options.only_build:
            check_clean(number)
        files = make(number)
        for file in files:
            print(f"{file.stat().st_size:>10,}  dist/{file.name}")
        if not options.only_build:
            print(f"tagged {tag(number)}; publish with: twine upload dist/*.whl dist/*.tar.gz && git push --tags")
    except NotReady as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
