"""The change ids written in a definition: the literal first arguments of its version markers.

An id that is computed is not found; the run then goes by the definition's fingerprint.
"""
# ruff: noqa: N802  # a visitor's methods are named after the nodes

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

from backstay.sdk.replay.source.locate import Source, function_source, methods, plain_function
from backstay.sdk.replay.source.names import KnownValue, ScopeVisitor

_NAMES = frozenset({"version", "patched", "deprecate_patch"})


def literal_ids(obj: object, markers: Collection[object]) -> set[str]:
    found: set[str] = set()
    for source in _sources(obj):
        ids = _Ids(source, markers)
        ids.read()
        found |= ids.found
    return found


class _Ids(ScopeVisitor):
    def __init__(self, source: Source, markers: Collection[object]) -> None:
        super().__init__(source)
        self.found: set[str] = set()
        self._markers = markers

    def visit_Call(self, node: ast.Call) -> None:
        match node.args:
            case [ast.Constant(value=str(change_id)), *_] if self._marks(node.func):
                self.found.add(change_id)
            case _:
                pass
        self.generic_visit(node)

    def _marks(self, func: ast.expr) -> bool:
        ref = self.scope.resolve(func)
        if self._markers and isinstance(ref, KnownValue):
            return any(ref.value is marker for marker in self._markers)
        match func:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name in _NAMES
            case _:
                return False


def literal_waits(obj: object, waits: Collection[object], channel: type[Any]) -> list[Any]:
    """Return the signals that a definition waits for by a literal name or by a channel, in the order of the source."""
    found: dict[Any, None] = {}
    for source in _sources(obj):
        reader = _Waits(source, waits, channel)
        reader.read()
        found.update(dict.fromkeys(reader.found))
    return list(found)


class _Waits(ScopeVisitor):
    def __init__(self, source: Source, waits: Collection[object], channel: type[Any]) -> None:
        super().__init__(source)
        self.found: list[Any] = []
        self._waits = waits
        self._channel = channel

    def visit_Call(self, node: ast.Call) -> None:
        if node.args and self._is_wait(node.func):
            match node.args[0]:
                case ast.Constant(value=str(name)):
                    self.found.append(name)
                case argument:
                    ref = self.scope.resolve(argument)
                    if isinstance(ref, KnownValue) and isinstance(ref.value, self._channel):
                        self.found.append(ref.value)
        self.generic_visit(node)

    def _is_wait(self, func: ast.expr) -> bool:
        ref = self.scope.resolve(func)
        if isinstance(ref, KnownValue):
            return any(ref.value == wait for wait in self._waits)
        match func:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name == "wait"
            case _:
                return False


def _sources(obj: object) -> list[Source]:
    if isinstance(obj, type):
        return [source for _, source in methods(obj)]
    function = plain_function(obj)
    source = function_source(function) if function else None
    return [source] if source else []
