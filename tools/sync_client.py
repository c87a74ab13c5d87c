"""Makes the client without `await` from the async one: `python -m tools.sync_client`, or `make reference`.

Every public method of an async class becomes one that runs its coroutine over the bridge, with the same signature, overloads and
docstring: type checkers, editors and the reference read them from the source. What opens and closes a client, and the bridge
itself, is written by hand in `bridge.py`. `tests/sdk/test_surface.py` compares the files with what is made here.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import backstay

CLIENT = Path(backstay.__file__).parent / "sdk" / "client"

INSIDE = {"outcome", "restored", "request_id", "update_seconds", "reader", "exceptions"}
"""Public methods that only handles and workers use."""

BY_HAND = {"close"}
"""Methods of which `bridge.py` has what they do."""

WRAPPED = {
    "AsyncHandle": "Handle(self._bridge, {})",
    "AsyncUpdateHandle": "UpdateHandle(self._bridge, {})",
    "AsyncScheduleHandle": "ScheduleHandle(self._bridge, {})",
    "AsyncSchedules": "Schedules(self._bridge, {})",
    "AsyncClient": "Client({}, self._bridge)",
}
"""What a method returns in place of an object of an async class."""


class SyncModule(NamedTuple):
    name: str
    docstring: str
    sources: tuple[str, ...]
    classes: tuple[tuple[str, str], ...]
    """The async classes, each with the name of the field that holds its object."""


MODULES = (
    SyncModule(
        "sync.py",
        "The client without `await`: each method runs the coroutine of the async client on its event loop, through a bridge.",
        ("client.py", "handle.py"),
        (("AsyncUpdateHandle", "handle"), ("AsyncHandle", "handle"), ("AsyncClient", "client")),
    ),
    SyncModule(
        "sync_schedules.py",
        "Schedules without `await`, over the same bridge as the client.",
        ("schedules.py",),
        (("AsyncSchedules", "schedules"), ("AsyncScheduleHandle", "handle")),
    ),
)


def main() -> None:
    for module in MODULES:
        file = CLIENT / module.name
        text = made(module)
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")
            print(f"changed: src/backstay/sdk/client/{module.name}")


def made(module: SyncModule) -> str:
    """The source of a module without `await`."""
    texts = [(CLIENT / source).read_text("utf-8") for source in module.sources]
    trees = [ast.parse(text) for text in texts]
    found = {
        node.name: (node, text)
        for tree, text in zip(trees, texts, strict=True)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    classes = "\n\n".join(_class(*found[name], field) for name, field in module.classes)
    return _formatted(f"{_head(module, trees, classes)}\n\n{classes}")


def _head(module: SyncModule, trees: list[ast.Module], body: str) -> str:
    """The docstring, the imports that the classes need, and the type variables."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    lines: list[str] = []
    aliases: list[str] = []
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                lines += [
                    f"from {node.module} import {ast.unparse(name)}"
                    for name in node.names
                    if (name.asname or name.name) in used and not name.name.startswith("Async")
                ]
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in used:
                aliases.append(ast.unparse(node))
                needed = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
                lines += [
                    f"from {other.module} import {name.name}"
                    for other in tree.body
                    if isinstance(other, ast.ImportFrom)
                    for name in other.names
                    if name.name in needed
                ]
                used |= needed
    for source, tree in zip(module.sources, trees, strict=True):
        lines += [
            f"from backstay.sdk.client.{source.removesuffix('.py')} import {node.name}"
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name in used
        ]
    if "Iterator" in used:
        lines.append("from collections.abc import Iterator")
    if "Schedules" in used and module.name != "sync_schedules.py":
        lines.append("from backstay.sdk.client.sync_schedules import Schedules")
    lines.append("from backstay.sdk.client.bridge import Bridge")
    if "BridgedClient" in used:
        lines.append("from backstay.sdk.client.bridge import BridgedClient")
    imports = "\n".join(dict.fromkeys(lines))
    return (
        f'"""{module.docstring}\n\nMade by `tools/sync_client.py` from the async classes: change those, then run it.\n"""\n\n'
        f"from __future__ import annotations\n\n{imports}\n\n" + "\n".join(dict.fromkeys(aliases))
    )


def _class(node: ast.ClassDef, text: str, field: str) -> str:
    name = node.name.removeprefix("Async")
    client = name == "Client"
    bases = "BridgedClient" if client else ", ".join(ast.unparse(base) for base in node.bases)
    parts = [f"class {name}{f'({bases})' if bases else ''}:"]
    if client:
        parts.append(
            '    """A client of a server, for code without `await`: starts workflows, waits for them, lists and describes them."""\n'
        )
    else:
        held = f"{node.name}[R]" if bases else node.name
        parts.append(
            f"{_docstring(node, text)}\n    def __init__(self, bridge: Bridge, {field}: {held}) -> None:\n"
            f"        self._bridge = bridge\n        self._{field} = {field}\n"
        )
    parts += _members(node, text, field)
    if not client and any(isinstance(each, ast.FunctionDef) and each.name == "__repr__" for each in node.body):
        parts.append(f"    def __repr__(self) -> str:\n        return repr(self._{field})\n")
    return "\n".join(parts)


def _members(node: ast.ClassDef, text: str, field: str) -> Iterator[str]:
    for number, each in enumerate(node.body):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id not in INSIDE:
            words = indent(_lines(node.body[number + 1], text), "    ")
            yield (
                f"    @property\n    def {each.target.id}(self) -> {ast.unparse(each.annotation)}:\n{words}\n"
                f"        return self._{field}.{each.target.id}\n"
            )
        elif (
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and not each.name.startswith("_")
            and each.name not in INSIDE
        ):
            yield _method(each, text, field)


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str, field: str) -> str:
    returns = "None" if node.returns is None else ast.unparse(node.returns)
    decorators = [ast.unparse(each) for each in node.decorator_list]
    head = "".join(f"    @{each}\n" for each in decorators)
    head += f"    def {node.name}({ast.unparse(node.args)}) -> {returns.replace('Async', '')}:"
    if "overload" in decorators:
        return f"{head} ..."
    body = _docstring(node, text)
    if returns.startswith("AsyncIterator"):
        arguments = ", ".join(each.arg for each in node.args.args[1:])
        return f"""{head}
{body}
        reader = self._{field}.reader({arguments})
        while not reader.over:
            yield from self._bridge.run(reader.page())
        reader.end()
"""
    call = f"self._{field}.{node.name}" + ("" if "property" in decorators else f"({_passed_on(node.args)})")
    if node.name in BY_HAND:
        call = f"super().{node.name}({_passed_on(node.args)})"
    elif isinstance(node, ast.AsyncFunctionDef):
        call = f"self._bridge.run({call})"
    wrapper = WRAPPED.get(returns.partition("[")[0])
    if wrapper is not None:
        call = wrapper.format(call)
    return f"{head}\n{body}\n        {'' if returns == 'None' else 'return '}{call}\n"


def _passed_on(arguments: ast.arguments) -> str:
    """The arguments of a method as they are handed to the method of the same name."""
    passed = [each.arg for each in (*arguments.posonlyargs, *arguments.args) if each.arg != "self"]
    passed += [f"*{arguments.vararg.arg}"] if arguments.vararg is not None else []
    passed += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    passed += [f"**{arguments.kwarg.arg}"] if arguments.kwarg is not None else []
    return ", ".join(passed)


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> str:
    assert ast.get_docstring(node) is not None, f"{node.name} needs a docstring: it is public"
    words = _lines(node.body[0], text)
    return words + "\n" if isinstance(node, ast.ClassDef) else words


def _lines(node: ast.AST, text: str) -> str:
    """The lines of a docstring as they are written."""
    assert isinstance(node, ast.Expr), "a docstring follows here"
    assert node.end_lineno is not None
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines)


def _formatted(text: str) -> str:
    """As the linter wants it: imports sorted and joined, lines broken."""
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    for arguments in (["check", "--fix-only", "--select", "I,F401", "-q"], ["format", "-q"]):
        text = subprocess.run(
            [*ruff, *arguments, "--stdin-filename", str(CLIENT / "sync.py"), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=CLIENT,
        ).stdout
    return text


if __name__ == "__main__":
    main()
