"""The reference is complete: every public name, command, setting, error and event is documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest
from tools import reference
from tools.python_reference import entries, found

import backstay
from backstay import BackstayError
from backstay.cli.server import command as server
from backstay.kernel.machine import Machine
from backstay.server.published.control import webhooks
from backstay.server.settings import Settings

from .pages import DOCS

REFERENCE = DOCS / "reference"


def names_of_the_python_reference() -> list[str]:
    return [name for _, names in reference.marks((REFERENCE / "python.md").read_text("utf-8")) for name in names]


def test_every_public_name_is_in_the_python_reference_once() -> None:
    assert sorted(name for name in names_of_the_python_reference() if "." not in name) == sorted(backstay.__all__)


def test_every_name_in_the_python_reference_can_be_imported() -> None:
    for name in names_of_the_python_reference():
        assert found(name) is not None


def test_an_option_of_a_call_is_in_its_signature_and_explained() -> None:
    entry = entries("activity")
    assert "    heartbeat_timeout: Duration = ...,\n" in entry
    assert "`heartbeat_timeout` is the longest silence of a running attempt." in entry


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.name)
def test_a_page_of_the_reference_says_what_the_code_says(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == reference.filled(text), "the code has changed: run `make reference`"


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
    for path, _ in list(reference.commands())[1:]:
        assert re.search(rf"^##+ {path}$", reference.cli(), re.M), path
    for kind in Machine().kinds:
        assert f"### {kind}\n" in reference.event_list(), kind
    for field in msgspec.structs.fields(backstay.Limits):
        assert re.search(rf"^\| `{field.name}` \| [\d,]+( bytes)? \| \w", reference.limit_table(), re.M), field.name


def test_every_part_stands_on_a_page() -> None:
    parts = [part for page in REFERENCE.glob("*.md") for part, _ in reference.marks(page.read_text("utf-8"))]
    assert set(parts) == set(reference.PARTS)
    assert len([part for part in parts if part != "python"]) == len(reference.PARTS) - 1


def test_what_is_written_by_hand_stays() -> None:
    page = "before\n\n<!-- reference: limits -->\nold\n<!-- end of reference -->\n\nafter\n"
    made = reference.filled(page)
    assert made.startswith("before\n\n<!-- reference: limits -->\n\n| limit |")
    assert made.endswith("|\n\n<!-- end of reference -->\n\nafter\n")


def test_the_page_about_http_has_every_webhook() -> None:
    section = (REFERENCE / "http.md").read_text("utf-8").partition("\n## Webhooks\n")[2].partition("\n## ")[0]
    for route in webhooks.ROUTES:
        path, _, verb = route.path.rpartition("/")
        if "/runs/" not in route.path:
            listed = f"`{route.method} {route.path}`" in section
            assert listed or (f"{path}/cancel`" in section and f"`{verb}`" in section), route.path
        for field in () if route.body is None else msgspec.structs.fields(route.body):
            known = field.encode_name in UNSAID or f"`{field.encode_name}`" in section
            assert known, (route.path, field.encode_name)


# Of the whole protocol: another codec, routing of published workers, another name of `input` and of a build.
UNSAID = {"payload_codec", "connection", "fairness_key", "fairness_weight", "arguments", "wait_policy", "compatibility"}
UNSAID |= {"workflow_type"}  # is in the path
