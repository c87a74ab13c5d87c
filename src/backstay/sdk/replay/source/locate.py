"""From a live function or class to the syntax tree it was compiled from.

A file is parsed once and kept as first seen: code that is loaded must not be judged by a file edited since. Only when a
definition is not where its code says (a reloaded module) is the file read again. No source is an answer, not an error.
"""

from __future__ import annotations

import ast
import linecache
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

from msgspec import Struct

T = TypeVar("T")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Source(Struct, frozen=True):
    """One function as written, with the meaning of its free names."""

    node: FunctionNode
    file: str
    globals: Mapping[str, object]
    closure: Mapping[str, object]


def plain_function(obj: object) -> FunctionType | None:
    """Return the function inside decorators, bound methods, partials and callable objects."""
    for _ in range(100):  # a `__wrapped__` that leads back to itself must not hang a registration
        inner = _wrapped(obj)
        if inner is None:
            break
        obj = inner
    if isinstance(obj, FunctionType):
        return obj
    call = vars(type(obj)).get("__call__")
    return call if isinstance(call, FunctionType) else None


def function_source(function: FunctionType) -> Source | None:
    code = function.__code__
    node = _find(code.co_filename, function.__globals__, lambda index: index.function(code))
    if node is None:
        return None
    return Source(node, code.co_filename, function.__globals__, _cells(function))


def class_node(cls: type) -> ast.ClassDef | None:
    codes = [f.__code__ for f in vars(cls).values() if isinstance(f, FunctionType)]
    for file in _files(cls, codes):
        lines = {code.co_firstlineno for code in codes if code.co_filename == file}
        node = _find(
            file, _module_globals(cls.__module__), lambda index, at=lines: index.class_at(cls.__qualname__, at)
        )
        if node is not None:
            return node
    return None


def methods(cls: type) -> list[tuple[object, Source]]:
    """Return every function in the bodies of a class and of its base classes of the same package, with its member.

    Read from the tree, so that a member is seen whatever its decorator made of it.
    """
    found: list[tuple[object, Source]] = []
    for owner in own_classes(cls):
        node = class_node(owner)
        for function in _functions_in(node) if node else ():
            member = vars(owner).get(function.name)
            plain = plain_function(member)
            file = plain.__code__.co_filename if plain else _files(owner, [])[0]
            names = plain.__globals__ if plain else _module_globals(owner.__module__)
            found.append((member, Source(function, file, names, _cells(plain) if plain else {})))
    return found


def own_classes(cls: type) -> list[type]:
    """Return a class and its base classes of the same package; those of a library change with the library's release."""
    at = home(cls.__module__)
    return [c for c in cls.__mro__ if home(c.__module__) == at]


def home(module: str) -> str:
    """Return the top package of a module; a script stands for itself, by its file."""
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = main.__spec__
        if spec is None:
            return f"file {getattr(main, '__file__', None)}"
        module = spec.name
    return module.partition(".")[0]


def first_line(node: FunctionNode | ast.ClassDef) -> int:
    """Return the line where a definition starts for the compiler: that of its first decorator."""
    if isinstance(node, ast.Lambda) or not node.decorator_list:
        return node.lineno
    return min(d.lineno for d in node.decorator_list)


def _parsed(text: str) -> ast.Module:
    """The syntax tree of a file. CPython 3.11 counts the depth of all threads in one place: when another thread builds a tree at
    the same moment, it raises SystemError, and the next try succeeds."""
    for _ in range(9):
        try:
            return ast.parse(text)
        except SystemError:
            continue
    return ast.parse(text)


class _Index:
    """The definitions of one parsed file."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = _parsed(text)
        self._functions: dict[tuple[str, int], FunctionNode] = {}
        self._classes: dict[str, list[ast.ClassDef]] = {}
        self._lambdas: list[ast.Lambda] | None = None
        self._enter(self._tree.body, "")

    def function(self, code: CodeType) -> FunctionNode | None:
        if code.co_name == "<lambda>":
            return self._lambda(code)
        return self._functions.get((code.co_name, code.co_firstlineno))

    def class_at(self, qualname: str, lines: Iterable[int]) -> ast.ClassDef | None:
        candidates = self._classes.get(qualname, [])
        for node in candidates:
            end = node.end_lineno or node.lineno
            if any(node.lineno <= line <= end for line in lines):
                return node
        return candidates[-1] if candidates else None

    def _lambda(self, code: CodeType) -> ast.Lambda | None:
        if self._lambdas is None:
            self._lambdas = [node for node in ast.walk(self._tree) if isinstance(node, ast.Lambda)]
        candidates = [node for node in self._lambdas if node.lineno == code.co_firstlineno]
        spans = list(_spans(code))
        if not spans:  # compiled without columns, as 3.12 does where the body is a constant
            told = candidates if len(candidates) == 1 else [n for n in candidates if _returns(code, n.body)]
            return told[0] if told else None
        around = [n for n in candidates if all(_start(n.body) <= s and e <= _end(n.body) for s, e in spans)]
        return max(around, key=lambda n: _start(n.body), default=None)

    def _enter(self, body: Iterable[ast.AST], prefix: str) -> None:
        for node in statements(body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions[node.name, first_line(node)] = node
                self._enter(node.body, f"{prefix}{node.name}.<locals>.")
            elif isinstance(node, ast.ClassDef):
                self._classes.setdefault(prefix + node.name, []).append(node)
                self._enter(node.body, f"{prefix}{node.name}.")


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of a body and of the blocks inside it, but not of inner definitions."""
    for node in body:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from statements(getattr(node, field, ()))


_indexes: dict[str, _Index] = {}


def _find(file: str, names: dict[str, Any], look: Callable[[_Index], T | None]) -> T | None:
    known = _indexes.get(file) or _parse(file, names)
    found = look(known) if known else None
    if known and found is None:
        linecache.checkcache(file)
        fresh = _parse(file, names, known)
        found = look(fresh) if fresh else None
    return found


def _parse(file: str, names: dict[str, Any], known: _Index | None = None) -> _Index | None:
    """Return the index of a file, or None if it cannot be read or has not changed."""
    text = "".join(linecache.getlines(file, names))
    if not text or (known and known.text == text):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import has already warned about this file
            index = _Index(text)
    except (SyntaxError, ValueError):  # edited since it was loaded, into something that does not parse
        return None
    _indexes[file] = index
    return index


def _wrapped(obj: object) -> object | None:
    if isinstance(obj, partial):
        return cast("partial[object]", obj).func  # the arguments of a partial are unknown to the checker
    if isinstance(obj, property):
        return obj.fget
    return getattr(obj, "__wrapped__", None) or getattr(obj, "__func__", None)


def _cells(function: FunctionType) -> dict[str, object]:
    held: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # not assigned yet: a name defined further down
            continue
    return held


def _files(cls: type, codes: list[CodeType]) -> list[str]:
    """Return the files that may define a class, that of its module first: generated methods name files that do not exist."""
    file = _module_globals(cls.__module__).get("__file__")
    return [*([file] if isinstance(file, str) else []), *dict.fromkeys(code.co_filename for code in codes)]


def _module_globals(name: str) -> dict[str, Any]:
    module = sys.modules.get(name)
    return vars(module) if module else {}


def _functions_in(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (s for s in statements(node.body) if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef))


def _spans(code: CodeType) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for line, end_line, column, end_column in code.co_positions():
        if line is None or end_line is None or column is None or end_column is None:
            continue
        if (line, column) != (end_line, end_column):  # the prologue stands nowhere
            yield (line, column), (end_line, end_column)


def _returns(code: CodeType, body: ast.expr) -> bool:
    if not isinstance(body, ast.Constant):
        return False
    return any(type(c) is type(body.value) and c == body.value for c in code.co_consts)


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
