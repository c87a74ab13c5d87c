"""A release: what is in its archives, what refuses one, and that the wheel works where there is nothing but it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools import compat, release

NUMBER = release.version()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    release.build(place)
    return place


@pytest.fixture
def wheel(dist: Path) -> Path:
    return dist / f"backstay-{NUMBER}-py3-none-any.whl"


def rewritten(wheel: Path, into: Path, without: str | None = None, extra: str | None = None) -> Path:
    """A copy of a wheel with one file less or more."""
    copy = into / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(copy, "w") as target:
        for name in source.namelist():
            if name != without:
                target.writestr(name, source.read(name))
        if extra is not None:
            target.writestr(extra, "")
    return copy


def test_the_archives_have_the_package_of_this_checkout_and_nothing_else(dist: Path, wheel: Path) -> None:
    wanted = release.tracked()
    assert "backstay/py.typed" in wanted
    assert any(name.startswith("backstay/waterline/static/") for name in wanted)
    release.check_wheel(wheel, wanted, NUMBER)
    release.check_sdist(dist / f"backstay-{NUMBER}.tar.gz", wanted)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"without": "backstay/py.typed"}, "missing ['backstay/py.typed']"),
        ({"extra": "backstay/notes.txt"}, "not tracked ['backstay/notes.txt']"),
        ({"extra": "tests/conftest.py"}, "not tracked ['tests/conftest.py']"),
        ({"without": f"backstay-{NUMBER}.dist-info/licenses/LICENSE"}, "has no licence"),
    ],
)
def test_a_wheel_with_a_file_too_many_or_too_few_is_refused(
    wheel: Path, tmp_path: Path, change: dict[str, str], says: str
) -> None:
    with pytest.raises(release.NotReady) as caught:
        release.check_wheel(rewritten(wheel, tmp_path, **change), release.tracked(), NUMBER)
    assert says in str(caught.value)


def test_an_sdist_without_its_tests_is_refused(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "SDIST_NEEDS", ("tests/of_another_day.py",))
    with pytest.raises(release.NotReady, match=r"lacks \['tests/of_another_day.py'\]"):
        release.check_sdist(dist / f"backstay-{NUMBER}.tar.gz", release.tracked())


def test_two_builds_that_differ_are_refused(tmp_path: Path) -> None:
    for name, text in (("first", "1"), ("second", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backstay.whl").write_text(text)
    with pytest.raises(release.NotReady, match=r"two builds of backstay\.whl differ"):
        release.check_reproducible(tmp_path / "first", tmp_path / "second")


def test_the_notes_are_the_section_of_the_changelog() -> None:
    text = "# Changelog\n\n## [0.2.0] - 2026-12-01\n\n- More.\n\n## [0.1.0]\n\n- All.\n"
    assert release.notes(text, "0.2.0") == "- More.\n"
    assert release.notes(text, "0.1.0") == "- All.\n"
    for missing in ("0.3.0", "0.1", "."):
        with pytest.raises(release.NotReady, match=r"no section '## \["):
            release.notes(text, missing)
    with pytest.raises(release.NotReady, match="no section"):
        release.notes("## [0.3.0]\n\n## [0.2.0]\n\n- More.\n", "0.3.0")


def test_this_version_has_notes() -> None:
    assert release.notes((release.ROOT / "CHANGELOG.md").read_text("utf-8"), NUMBER)


def test_the_wheel_works_outside_of_a_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked beside the dependencies of this environment; `tools.compat` installs it in an empty one."""
    place, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    (empty / "shop.py").write_text("from backstay import workflow\n\n\n@workflow\ndef order() -> int:\n    return 1\n")

    def backstay(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=empty,
            env=os.environ | {"PYTHONPATH": os.fspath(place)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert backstay("backstay", "--version") == f"dw, Backstay {NUMBER}\n"
    assert backstay("backstay", "start", "shop.py:order", "o-1", "--db", "shop.db").startswith("started o-1")
    where = "import backstay, backstay.waterline; print(backstay.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", where],
        cwd=empty,
        env=os.environ | {"PYTHONPATH": os.fspath(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(place)


def test_a_bound_that_has_no_name_in_the_package_is_no_dependency() -> None:
    names = compat.direct()
    assert {"msgspec", "uvloop", "asyncpg", "pydantic", "opentelemetry-api"} <= names
    assert not any(set(name) & set("<>=; []") for name in names)


def test_each_python_that_is_tried_is_one_that_the_package_says_it_supports() -> None:
    text = (release.ROOT / "pyproject.toml").read_text("utf-8")
    said = {line.rpartition(":: ")[2].strip('",') for line in text.splitlines() if "Python :: 3." in line}
    assert said <= set(compat.PYTHONS)
