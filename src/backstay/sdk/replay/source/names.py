"""Resolves names in source to the objects that they will mean at run time, without running anything.

Locals and parameters mean nothing known, so a parameter called `datetime` is never taken for the module. Attributes are
looked up statically: no property, descriptor or `__getattr__` of the author's classes runs.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import resolve_name
from types import ModuleType

from msgspec import Struct

from backstay.sdk.replay.source.locate import FunctionNode, Source


class KnownValue(Struct, frozen=True):
    """This very object."""

    value: object


class InstanceOf(Struct, frozen=True):
    """Some object made by calling this class."""

    cls: type


class Unloaded(Struct, frozen=True):
    """A name from a module that a local import names and that is not loaded yet."""

    path: str


Ref = KnownValue | InstanceOf | Unloaded
Frame = dict[str, Ref | None]

_ABSENT = object()


class Scope:
    """The names visible at one place of a function; inner frames hide outer ones."""

    def __init__(self, source: Source) -> None:
        self._globals = source.globals
        self._frames: list[Frame] = [{name: KnownValue(value) for name, value in source.closure.items()}]

    @contextmanager
    def inside(self, frame: Frame) -> Generator[None]:
        self._frames.append(frame)
        yield
        self._frames.pop()

    def frame(self, node: FunctionNode | ast.ClassDef) -> Frame:
        package = self._globals.get("__package__")
        return _bindings(node, package if isinstance(package, str) else "")

    def resolve(self, node: ast.AST) -> Ref | None:
        match node:
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute(value=value, attr=attr):
                base = self.resolve(value)
                return member(base, attr) if base else None
            case ast.Call(func=func):
                match self.resolve(func):
                    case KnownValue(value=type() as cls):
                        return InstanceOf(cls)
                    case _:
                        return None
            case _:
                return None

    def _name(self, name: str) -> Ref | None:
        for frame in reversed(self._frames):
            if name in frame:
                return frame[name]
        value = self._globals.get(name, _ABSENT)
        if value is _ABSENT:
            value = vars(builtins).get(name, _ABSENT)
        return None if value is _ABSENT else KnownValue(value)


def member(base: Ref, attr: str) -> Ref | None:
    match base:
        case Unloaded(path=path):
            return Unloaded(f"{path}.{attr}")
        case KnownValue(value=ModuleType() as module):
            try:
                return KnownValue(getattr(module, attr))  # not static: packages load their names on first use
            except Exception:
                return None
        case KnownValue(value=type() as cls) | InstanceOf(cls=cls):
            return _static(cls, attr)
        case KnownValue(value=value):
            return _static(type(value), attr)


def module(path: str) -> Ref:
    loaded = sys.modules.get(path)
    return KnownValue(loaded) if loaded else Unloaded(path)


class ScopeVisitor(ast.NodeVisitor):
    """Visits one function and knows the meaning of names at each place. Annotations are not read, because they do not run."""

    def __init__(self, source: Source) -> None:
        self.scope = Scope(source)
        self.source = source

    def read(self) -> None:
        self._body(self.source.node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        self._body(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._each(node.decorator_list)
        self.visit(node.args)
        if not node.decorator_list:  # decorated, it is no longer a plain function of this run
            self._body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._each([*node.decorator_list, *node.bases, *node.keywords])
        with self.scope.inside(self.scope.frame(node)):
            self._each(node.body)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._each([node.target, *([node.value] if node.value else [])])

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node.generators, [node.elt])

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node.generators, [node.elt])

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node.generators, [node.elt])

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, [node.key, node.value])

    def _comprehension(self, generators: list[ast.comprehension], elements: list[ast.expr]) -> None:
        self.visit(generators[0].iter)
        with self.scope.inside(dict.fromkeys(targets(generators))):
            for position, generator in enumerate(generators):
                self._each([*([generator.iter] if position else []), *generator.ifs])
            self._each(elements)

    def _body(self, node: FunctionNode) -> None:
        with self.scope.inside(self.scope.frame(node)):
            self._each([node.body] if isinstance(node, ast.Lambda) else node.body)

    def _each(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


def targets(generators: Iterable[ast.comprehension]) -> set[str]:
    return {n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}


def _static(cls: type, attr: str) -> Ref | None:
    for owner in cls.__mro__:
        found: object = vars(owner).get(attr, _ABSENT)
        if found is not _ABSENT:
            bare = type(found) in (staticmethod, classmethod)
            return KnownValue(getattr(found, "__func__", None) if bare else found)
    return None


def _bindings(node: FunctionNode | ast.ClassDef, package: str) -> Frame:
    """Return the names that a scope binds. An import keeps its meaning unless the name is also bound in another way."""
    bound: Frame = {}
    elsewhere: set[str] = set()
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    pending = body[::-1]
    if not isinstance(node, ast.ClassDef):
        pending.extend(_parameters(node.args))
    while pending:
        item = pending.pop()
        match item:
            case ast.Import() | ast.ImportFrom():
                for name, ref in _imported(item, package):
                    bound.setdefault(name, ref)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                elsewhere.update(names)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound[name] = None
            case ast.Lambda():
                pass
            case ast.comprehension(iter=iterable, ifs=ifs):  # its targets live in its own scope
                pending.extend((iterable, *ifs))
            case _:
                bound.update(dict.fromkeys(_stored(item)))
                pending.extend(ast.iter_child_nodes(item))
    return {name: ref for name, ref in bound.items() if name not in elsewhere}


def _parameters(args: ast.arguments) -> Iterator[ast.AST]:
    for arg in (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg):
        if arg:
            yield ast.Name(arg.arg, ast.Store())


def _stored(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case _:
            return


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Ref | None]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield (alias.asname, module(alias.name)) if alias.asname else (top, module(top))
        return
    try:
        origin = resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:  # relative, in a module that has no package
        origin = None
    for alias in node.names:
        yield alias.asname or alias.name, _of_module(origin, alias.name) if origin else None


def _of_module(origin: str, name: str) -> Ref | None:
    return member(module(origin), name) or module(f"{origin}.{name}")
