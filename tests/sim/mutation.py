"""A mutant: a deliberate bug, as a change inside one function of the sources."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """The function that changes, what changes in it, and what that becomes.

    `function` is a dotted module and a name within it, `backstay.engine.core.engine:Engine.submit`; the name may also be one
    that the module assigns, such as the table of a feature. `old` is an expression, one or more statements in a row, or
    a keyword argument (`limit=3`). It is compared as syntax, so neither formatting nor a comment hides it, and must be in
    the function exactly once. Where `new` is empty, `old` is left out.
    """

    name: str
    function: str
    old: str
    new: str
    far: bool = False  # hunted with a database that is far away
    link: bool = False  # hunted between workers and servers
    published: bool = False  # and with workers of the published package
    links: bool = False  # hunted with links between nodes
    also: tuple[str, str, str] | None = None  # function, old, new: where two places guard against the same thing
    often: tuple[str, ...] = ()  # faults that it is hunted with, among others
    only: tuple[str, ...] = ()  # the only faults that it is hunted with


class CannotMutate(Exception):
    """The sources are no longer what the mutant says of them."""


def mutate(mutant: Mutant, root: Path) -> dict[Path, str]:
    """The files that have the bug in them, and their new text. `root` is the folder that has the package in it."""
    trees: dict[Path, ast.Module] = {}
    for function, old, new in ((mutant.function, mutant.old, mutant.new), *((mutant.also,) if mutant.also else ())):
        module, _, name = function.partition(":")
        file = _file(root, module)
        if file is None:
            raise CannotMutate(f"module {module} of mutant {mutant.name!r} does not exist; did it move?")
        tree = trees[file] if file in trees else ast.parse(file.read_text())
        trees[file] = tree
        found = _find(tree, name)
        if found is None:
            raise CannotMutate(f"function {function} of mutant {mutant.name!r} does not exist; did it move?")
        times = _change(found, old, new)
        if times != 1:
            raise CannotMutate(f"mutant {mutant.name!r} changes what is {times} times in {function}: {old}")
    return {file: ast.unparse(tree) for file, tree in trees.items()}


def _file(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.exists()), None)


def _find(tree: ast.AST, name: str) -> ast.AST | None:
    """The function, or the assignment, of this qualified name."""
    found: ast.AST | None = tree
    for part in name.split("."):
        body: list[ast.stmt] = getattr(found, "body", [])
        found = next((statement for statement in reversed(body) if part in _names(statement)), None)
    return found


def _names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def _change(place: ast.AST, old: str, new: str) -> int:
    """How often `old` is there; if it is there once, it has become `new`."""
    found = [replace for before, after in _readings(old, new) for replace in _occurrences(place, before, after)]
    if len(found) == 1:
        found[0]()
    return len(found)


def _readings(old: str, new: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """What `old` and `new` may be as syntax: statements, or one expression, or one keyword argument."""
    before, after = ast.parse(old).body, ast.parse(new).body
    match before, after:
        case [ast.Expr(value=one)], [ast.Expr(value=other)]:
            yield [one], [other]
            return
        case [ast.Assign(targets=[ast.Name(id=name)], value=one)], [] | [ast.Assign(targets=[ast.Name(id=_)])]:
            kept = [other.value for other in after if isinstance(other, ast.Assign)]
            yield [ast.keyword(name, one)], [ast.keyword(name, value) for value in kept]
        case _:
            pass
    yield before, after or [ast.Pass()]


def _occurrences(place: ast.AST, before: list[Any], after: list[Any]) -> Iterator[Callable[[], None]]:
    """For each place where `before` is: what puts `after` there."""
    wanted = [ast.dump(node) for node in before]
    for node in ast.walk(place):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                for at in range(len(value) - len(before) + 1):
                    part = slice(at, at + len(before))
                    if _same(value[part], wanted):
                        yield partial(value.__setitem__, part, after)
            elif len(after) == 1 and len(before) == 1 and _same([value], wanted):
                yield partial(setattr, node, field, after[0])


def _same(nodes: list[Any], wanted: list[str]) -> bool:
    return all(isinstance(node, ast.AST) and ast.dump(node) == dump for node, dump in zip(nodes, wanted, strict=True))
