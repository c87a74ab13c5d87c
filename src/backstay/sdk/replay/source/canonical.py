"""One spelling for every way of writing the same definition.

Node names and fields, without what a formatter, an annotation, a docstring or another Python version may change. Every
literal, name and statement that runs is in it, in order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, cast

# `kind` is the u of u"..."; the last three are annotations.
_SILENT = frozenset({"ctx", "kind", "type_comment", "type_params", "annotation", "returns"})


def canonical(node: ast.AST) -> str:
    return "".join(_spell(node))


def _spell(node: ast.AST) -> Iterator[str]:
    yield type(node).__name__ if not isinstance(node, ast.AnnAssign) else "Assign"
    yield "("
    match node:
        case ast.Constant(value=value) | ast.MatchSingleton(value=value):
            yield _literal(value)
        case ast.AnnAssign(target=target, value=value):
            yield from _field("targets", [target])
            yield from _field("value", value)
        case ast.Delete(targets=targets):  # `del (a, b)` and `del a, b` are one statement
            yield from _field("targets", list(_flat(targets)))
        case ast.JoinedStr(values=values):
            yield from _field("values", list(_joined(values)))
        case _:
            for name, value in ast.iter_fields(node):
                if name not in _SILENT:
                    yield from _field(name, value)
    yield ")"


def _field(name: str, value: Any) -> Iterator[str]:
    many = isinstance(value, list)
    values = list(_significant(cast("list[object]", value))) if many else [value]  # ast types its fields as Any
    # Absent, empty and zero are one: versions add fields with such defaults.
    if not (values if many else value):
        return
    yield f"{name}=["
    for item in values:
        if isinstance(item, ast.AST):
            yield from _spell(item)
        else:
            yield _literal(item)
        yield ","
    yield "]"


def _literal(value: object) -> str:
    # ascii and hex, because repr follows the Unicode tables of the interpreter and refuses very long integers.
    text = hex(value) if isinstance(value, int) else ascii(value)
    return f"{type(value).__name__} {text}"


def _significant(items: Iterable[object]) -> Iterator[object]:
    """Without statements that do nothing: docstrings, `pass`, `...`, bare annotations."""
    for item in items:
        match item:
            case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
                continue
            case _:
                yield item


def _flat(targets: Iterable[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _flat(target.elts)
        else:
            yield target


def _joined(values: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """The parts of an f-string with neighbouring text put together: where it is split depends on the parser."""
    text = ""
    for value in values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
            continue
        if text:
            yield ast.Constant(text)
            text = ""
        yield value
    if text:
        yield ast.Constant(text)
