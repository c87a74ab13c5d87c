"""The source check on a book of cases: each marked line is found, by its rule, and no other."""

import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from casebook import allowed, classes, forbidden, helpers, orders, primitives

from backstay.sdk.replay.source import Finding, check

PRIMITIVES: dict[str, Any] = {
    "blocking": [primitives.sleep, primitives.wait, primitives.gather],
    "recording": [primitives.side_effect],
    "deferring": [primitives.spawn],
}


def found(workflow: object) -> set[tuple[int, str]]:
    return {(f.line, f.rule) for f in check(workflow, **PRIMITIVES)}


def marked(file: str, first: int, last: int) -> set[tuple[int, str]]:
    lines = enumerate(Path(file).read_text().splitlines(), 1)
    marks = ((n, re.search(r"#: ([\w-]+)", line)) for n, line in lines if first <= n <= last)
    return {(n, mark[1]) for n, mark in marks if mark}


def extent(function: FunctionType) -> tuple[str, int, int]:
    code = function.__code__
    last = max(line for c in (code, *code.co_consts) if hasattr(c, "co_lines") for *_, line in c.co_lines() if line)
    return code.co_filename, code.co_firstlineno, last


def workflows(module: ModuleType) -> list[FunctionType]:
    own = [f for f in vars(module).values() if isinstance(f, FunctionType)]
    return [f for f in own if f.__code__.co_filename == module.__file__]


@pytest.mark.parametrize("workflow", workflows(forbidden), ids=lambda f: f.__name__)
def test_each_marked_line_is_found_and_no_other(workflow: FunctionType) -> None:
    expected = marked(*extent(workflow))
    assert expected
    assert found(workflow) == expected


@pytest.mark.parametrize("workflow", workflows(allowed), ids=lambda f: f.__name__)
def test_code_that_only_looks_wrong_has_no_findings(workflow: FunctionType) -> None:
    assert check(workflow, **PRIMITIVES) == []


def test_every_method_of_a_class_is_read_and_a_librarys_ancestor_is_not() -> None:
    first = extent(classes.Ancestor.inherited)[1]
    last = extent(classes.Approval.handle)[2]
    assert found(classes.Approval) == marked(classes.__file__, first, last)


def test_a_generator_as_entry_of_a_class_is_an_error() -> None:
    [finding] = check(classes.Streaming)
    assert (finding.rule, finding.severity) == ("generator", "error")


def test_helpers_of_the_same_package_are_followed_through_a_cycle() -> None:
    [finding] = check(orders.order)
    assert (finding.line, finding.rule) in marked(helpers.__file__, 1, 100)
    assert finding.file == helpers.__file__
    assert finding.message == "datetime.now() inside 'rate', called by workflow 'order'; use backstay.now()"


def test_a_helper_that_is_only_mentioned_is_followed_under_its_decorator() -> None:
    assert [f.rule for f in check(orders.fulfil, **PRIMITIVES)] == ["sleep"]


def test_a_finding_reads_like_a_line_of_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(forbidden.__file__).parent)
    first, second, *_ = check(forbidden.clocks, name="order")
    line = extent(forbidden.clocks)[1]
    assert str(first) == f"forbidden.py:{line + 1}: time.time() inside workflow 'order'; use backstay.now()"
    assert str(second) == f"forbidden.py:{line + 2}: t() (time.time) inside workflow 'order'; use backstay.now()"


def test_a_file_outside_the_working_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(Finding("clock", "m", "/elsewhere/a.py", 3, "warning")) == "/elsewhere/a.py:3: m"


def test_only_what_is_wrong_whatever_was_meant_is_an_error() -> None:
    findings = [f for w in workflows(forbidden) for f in check(w, **PRIMITIVES)]
    assert {f.rule for f in findings if f.severity == "error"} == {"generator", "awaited-blocking"}


def test_a_wrapped_definition_is_read_as_its_function() -> None:
    assert [f.rule for f in check(primitives.Activity(forbidden.sleeps))] == ["sleep"]


def test_a_definition_without_source_has_no_findings() -> None:
    namespace: dict[str, object] = {}
    exec("import time\ndef order(): time.sleep(1)", namespace)
    assert check(namespace["order"]) == []
    assert check(print) == []


def test_a_script_follows_its_own_file_only(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import time\ndef far(): time.sleep(1)\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import time\nfrom other import far\nfrom backstay.sdk.replay.source import check\n"
        "def near(): time.sleep(1)\n"
        "def order(): return near(), far()\n"
        "print([f.line for f in check(order)])\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert ran.stdout == "[4]\n"


def test_the_parser_is_loaded_by_the_first_use_and_not_by_the_import() -> None:
    program = (
        "import sys, msgspec; before = set(sys.modules)\n"
        "import backstay.sdk.replay.source\n"
        "print({'ast', 'inspect', 'linecache', 'tokenize'} & (set(sys.modules) - before))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
