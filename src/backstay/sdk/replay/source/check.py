"""The source check at registration: it finds what would make a replay of a workflow differ, and says what to write instead.

It reads the definition, the plain functions of the same top package it mentions, and theirs. It reports only what it
can trace to an object, so silence is no proof; a definition without source has no findings.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from types import FunctionType

    from backstay.sdk.replay.source.locate import Source
    from backstay.sdk.replay.source.visit import Offence

Severity = Literal["error", "warning"]

# Always wrong; any other finding may be harmless where it is.
_ALWAYS_WRONG = frozenset({"generator", "awaited-blocking"})
_CO_GENERATOR = 0x20 | 0x200  # a generator, an async generator: the bits `inspect` names, without importing it


class Finding(Struct, frozen=True):
    rule: str
    message: str
    file: str
    line: int
    severity: Severity

    def __str__(self) -> str:
        near = os.path.relpath(self.file)
        return f"{self.file if near.startswith('..') else near}:{self.line}: {self.message}"


def check(
    obj: object,
    *,
    name: str | None = None,
    blocking: Collection[object] = (),
    recording: Collection[object] = (),
    deferring: Collection[object] = (),
    entry: str = "handle",
) -> list[Finding]:
    """Check a workflow function or class.

    `blocking` are the primitives that return a plain value and must not be awaited (sleep, wait, gather), `recording`
    those whose closure runs once, outside the rules (side_effect), `deferring` those that run a closure later (spawn).
    `entry` is the method of a class that runs as the workflow; `name` is how messages call it.
    """
    from backstay.sdk.replay.source.rules import Table
    from backstay.sdk.replay.source.visit import Primitives, Visit

    workflow = f"workflow '{name or getattr(obj, '__name__', type(obj).__name__)}'"
    table = Table()
    primitives = Primitives(_identities(blocking), _identities(recording), _identities(deferring))
    pending, at = _beginning(obj)
    findings = _generator(obj, entry, workflow)
    seen: set[object] = set()
    own = {source.node for source in pending}
    while pending:
        source = pending.pop(0)
        if source.node in seen:
            continue
        seen.add(source.node)
        visit = Visit(source, table, primitives)
        visit.read()
        where = workflow if source.node in own else f"'{_name_of(source)}', called by {workflow}"
        findings += [_finding(offence, source.file, where) for offence in visit.offences]
        pending += [s for function in visit.mentioned if (s := _followed(function, at))]
    return list(dict.fromkeys(findings))


def _beginning(obj: object) -> tuple[list[Source], str]:
    """Return the functions to read first, and the package whose functions are read after them."""
    from backstay.sdk.replay.source.locate import function_source, home, methods, plain_function
    from backstay.sdk.replay.source.visit import is_activity

    if isinstance(obj, type):
        return [source for member, source in methods(obj) if not is_activity(member)], home(obj.__module__)
    function = plain_function(obj)
    source = function_source(function) if function else None
    return ([source], home(str(source.globals.get("__name__")))) if source else ([], "")


def _followed(function: FunctionType, at: str) -> Source | None:
    from backstay.sdk.replay.source.locate import function_source, home
    from backstay.sdk.replay.source.visit import is_activity

    # By its globals, since functools.wraps gives a wrapper the module of what it wraps.
    if is_activity(function) or home(str(function.__globals__.get("__name__"))) != at:
        return None
    return function_source(function)


def _generator(obj: object, entry: str, workflow: str) -> list[Finding]:
    from backstay.sdk.replay.source.locate import plain_function

    function = plain_function(getattr(obj, entry, None) if isinstance(obj, type) else obj)
    if function is None or not function.__code__.co_flags & _CO_GENERATOR:
        return []
    code = function.__code__
    message = f"yield inside {workflow}; a workflow is called and returns: call steps directly and return the result"
    return [Finding("generator", message, code.co_filename, code.co_firstlineno, "error")]


def _finding(offence: Offence, file: str, where: str) -> Finding:
    rule = offence.rule
    severity: Severity = "error" if rule.name in _ALWAYS_WRONG else "warning"
    return Finding(rule.name, f"{offence.what} inside {where}; {rule.advice}", file, offence.line, severity)


def _name_of(source: Source) -> str:
    return getattr(source.node, "name", "<lambda>")


def _identities(objects: Collection[object]) -> frozenset[int]:
    return frozenset(id(o) for o in objects)
