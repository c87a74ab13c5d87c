"""The reference is complete: every public name, command, setting, error and event is documented."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import msgspec
import pytest
from tools import reference

import backstay
from backstay import BackstayError
from backstay.cli.server import command as server
from backstay.kernel.machine import Machine
from backstay.server.settings import Settings

from .pages import DOCS

REFERENCE = DOCS / "reference"


def test_every_public_name_is_in_the_python_reference_once() -> None:
    named = re.findall(r"^::: backstay\.(\w+)$", (REFERENCE / "python.md").read_text("utf-8"), re.M)
    assert sorted(named) == sorted(backstay.__all__)


def test_every_name_in_the_python_reference_can_be_imported() -> None:
    for path in re.findall(r"^::: ([\w.]+)$", (REFERENCE / "python.md").read_text("utf-8"), re.M):
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name), path


def documented(thing: object) -> bool:
    """Whether a docstring of its own says what it is; an object is said by its class."""
    if inspect.isclass(thing) or not (inspect.isfunction(thing) or inspect.ismodule(thing)):
        cls = thing if inspect.isclass(thing) else type(thing)
        return bool(cls.__dict__.get("__doc__"))
    return bool(thing.__doc__)


@pytest.mark.parametrize("name", backstay.__all__)
def test_a_public_name_has_a_docstring(name: str) -> None:
    thing = getattr(backstay, name)
    assert documented(thing), name
    if inspect.isclass(thing) and thing.__module__.startswith("backstay."):
        for member, found in vars(thing).items():
            function = found.fget if isinstance(found, property) else found
            if not member.startswith("_") and inspect.isfunction(function):
                assert inspect.getdoc(function), f"{name}.{member}"


def test_every_error_says_what_happened_and_what_to_do() -> None:
    public = [getattr(backstay, name) for name in backstay.__all__]
    assert set(reference.errors()) == {
        thing for thing in public if inspect.isclass(thing) and issubclass(thing, BackstayError)
    }
    for error in reference.errors():
        assert all(reference.advice(error)), error.__name__


def test_the_settings_page_has_a_row_for_each_setting() -> None:
    table = reference.settings()
    rows = re.findall(r"^\| `(\w+)` \|", table, re.M)
    assert sorted(rows) == sorted(field.name for field in msgspec.structs.fields(Settings))
    assert "| `port` | `DW_PORT` | 8080 | the port; 0 takes a free one |" in table


def test_the_links_of_the_settings_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", reference.settings()):
        assert (REFERENCE / target).exists(), target


def test_a_flag_of_the_server_says_what_its_setting_means() -> None:
    helps = {parameter.name: getattr(parameter, "help", None) for parameter in server.params}
    assert helps["port"] == "The port; 0 takes a free one. Default: 8080."


def test_the_settings_page_names_the_flags_of_the_server() -> None:
    page = (REFERENCE / "settings.md").read_text("utf-8")
    sentence = page.partition("The flags:")[2].partition(".\n")[0]
    flags = {option for parameter in server.params for option in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)`", sentence)) == flags - {"--config", "--verbose"}


def test_the_reference_has_every_command_and_event_and_limit() -> None:
    text = {name: part() for name, part in reference.PARTS.items()}
    for path, _ in list(reference.commands())[1:]:
        assert re.search(rf"^##+ {path}$", text["dw"], re.M), path
    for kind in Machine().kinds:
        assert f"### {kind}\n" in text["events"], kind
    for field in msgspec.structs.fields(backstay.Limits):
        assert re.search(rf"^\| `{field.name}` \| [\d,]+( bytes)? \| \w", text["limits"], re.M), field.name


def test_every_mark_of_a_page_is_replaced() -> None:
    replaced: list[str] = []
    for page in REFERENCE.glob("*.md"):
        text = page.read_text("utf-8")
        replaced += re.findall(r"<!-- reference: (\w+) -->", text)
        assert "<!-- reference" not in reference.filled(text), page.name
    assert sorted(replaced) == sorted(reference.PARTS)
