"""Calls that workflow code makes, seen by the interpreter itself. Python 3.12 and newer; before, this does nothing.

It finds what a name no longer shows: `clock = datetime; clock.now()`. A call site that is clean is switched off after its first
call, so steady code pays nothing; one that is clean first and not later escapes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from backstay.sdk.replay.guard import shims
from backstay.sdk.replay.guard.verdict import accuse, guarded

if TYPE_CHECKING:
    from backstay.sdk.replay.source.rules import Table

_TOOLS = (4, 3)  # tool ids without a predefined use; debuggers, coverage and profilers have others
_NOT_TRIED = -1

_tool: int | None = _NOT_TRIED
_seen: dict[int, CodeType] = {}  # by identity: equal code of two definitions is looked at twice
_dirty: set[tuple[int, int]] = set()  # call sites that workflow code must not reach
_tables: dict[int, Table] = {}  # the rules, for so many loaded modules


def watch(target: Any) -> None:
    """Watch every call in this function or class, and in the plain functions of its package that it names."""
    if sys.version_info >= (3, 12):
        tool = _claim()
        if tool is None:
            return
        for code in _codes(target):
            sys.monitoring.set_local_events(tool, code, sys.monitoring.events.CALL)


def _claim() -> int | None:
    """Register once. Without a free place there is no monitor; the other guards remain."""
    global _tool
    if sys.version_info >= (3, 12) and _tool == _NOT_TRIED:
        monitoring = sys.monitoring
        _tool = next((id for id in _TOOLS if monitoring.get_tool(id) is None), None)
        if _tool is not None:
            monitoring.use_tool_id(_tool, "backstay")
            monitoring.register_callback(_tool, monitoring.events.CALL, _called)
    return _tool


def _called(code: CodeType, offset: int, target: object, first: object) -> Any:
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        live_run = guarded()
        if live_run is None and (id(code), offset) in _dirty:
            return None  # the same code may be called by a workflow later
        broken = _judge(target, first is monitoring.MISSING)
        if broken is None:
            return monitoring.DISABLE
        _dirty.add((id(code), offset))
        if live_run is None:
            return None
        accuse(live_run, sys._getframe(1), *broken)  # pyright: ignore[reportPrivateUsage]
        return monitoring.DISABLE
    return None


def _judge(target: object, bare: bool) -> tuple[str, str] | None:
    """Return (what was called, what to write instead) if workflow code must not call this; `bare`: without arguments."""
    from backstay.sdk.replay.source.names import KnownValue, member
    from backstay.sdk.replay.source.rules import Table

    if shims.answers(target):
        return None
    loaded = len(sys.modules)
    table = _tables.get(loaded)
    if table is None:
        _tables.clear()
        table = _tables[loaded] = Table()
    ref = KnownValue(target)
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type):  # `datetime.now` is a new object each time; the rules know the one in its class
        ref = member(KnownValue(owner), str(getattr(target, "__name__", ""))) or ref
    rule = table.calling(ref, 0 if bare else sys.maxsize)
    if rule is None:
        return None
    return f"{table.path(ref) or _name(target, owner)}()", rule.advice


def _name(target: object, owner: object) -> str:
    """Return the name of what was called, as its author would write it."""
    name = str(getattr(target, "__name__", ""))
    if vars(random).get(name) == target:
        return f"random.{name}"
    home = getattr(target, "__module__", None) or type(owner).__module__  # a bound method of a C type has none
    return f"{home}.{getattr(target, '__qualname__', target)}"


def _codes(target: Any) -> Iterator[CodeType]:
    functions = [target] if not isinstance(target, type) else [f for f in vars(target).values() if callable(f)]
    pending = [found for function in functions if (found := _plain(function))]
    home = str(getattr(target, "__module__", "")).partition(".")[0]
    while pending:
        function = pending.pop()
        inner = [function.__code__]
        while inner:
            code = inner.pop()
            if id(code) in _seen:
                continue
            _seen[id(code)] = code
            yield code
            inner += [const for const in code.co_consts if isinstance(const, CodeType)]
            for name in code.co_names:
                named = function.__globals__.get(name)
                if isinstance(named, FunctionType) and named.__module__.partition(".")[0] == home != "backstay":
                    pending.append(named)


def _plain(thing: Any) -> FunctionType | None:
    """Return the function of a method or a decorated handler."""
    while not isinstance(thing, FunctionType):
        thing = getattr(thing, "__func__", None) or getattr(thing, "__wrapped__", None) or getattr(thing, "fn", None)
        if thing is None:
            return None
    return thing
