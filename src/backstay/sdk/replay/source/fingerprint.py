"""Fingerprints of definitions and predicates, and the change ids they mention.

Equal fingerprints mean the same code: the same on every supported Python, after any formatter, with any comments,
docstrings and annotations. Without source there is none, and none compares equal to anything.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType

# A wait names its predicate each time it is reached, so the answer is kept. Code objects compare without their file.
_by_code: dict[tuple[str, CodeType], str] = {}


def definition_fingerprint(obj: object) -> str | None:
    """`sha256:...` over a function, or over a class with its ancestors of the same top package."""
    return _class_fingerprint(obj) if isinstance(obj, type) else predicate_fingerprint(obj)


def predicate_fingerprint(fn: object) -> str | None:
    """`sha256:...` over a function, or over this one lambda whatever else stands on its line."""
    from backstay.sdk.replay.source.locate import function_source, plain_function

    function = plain_function(fn)
    if function is None:
        return None
    key = (function.__code__.co_filename, function.__code__)
    if key not in _by_code:
        source = function_source(function)
        if source is None:
            return None
        from backstay.sdk.replay.source.canonical import canonical

        _by_code[key] = _digest(canonical(source.node))
    return _by_code[key]


def change_ids(obj: object, markers: Collection[object] = ()) -> list[str]:
    """The literal ids given to `version`, `patched` and `deprecate_patch` in the definition, sorted.

    `markers` are those functions themselves, so that an alias counts and a namesake does not. A callee that cannot be
    traced to an object, or any callee when no markers are given, goes by its name.
    """
    from backstay.sdk.replay.source.changes import literal_ids

    return sorted(literal_ids(obj, markers))


def waited_signals(obj: object, waits: Collection[object], channel: type[Any]) -> list[Any]:
    """Return the signals that a definition waits for, as far as its source names them: text, or `channel` objects."""
    from backstay.sdk.replay.source.changes import literal_waits

    return literal_waits(obj, waits, channel)


def _class_fingerprint(cls: type) -> str | None:
    from backstay.sdk.replay.source.canonical import canonical
    from backstay.sdk.replay.source.locate import class_node, own_classes

    # By qualified name without the module: a script and the same file imported are one definition.
    bodies = {(c.__qualname__, canonical(node)) for c in own_classes(cls) if (node := class_node(c))}
    written = any(name == cls.__qualname__ for name, _ in bodies)
    return _digest("\n".join(f"{name} {body}" for name, body in sorted(bodies))) if written else None


def _digest(text: str) -> str:
    from hashlib import sha256

    return f"sha256:{sha256(text.encode()).hexdigest()}"
