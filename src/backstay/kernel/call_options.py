"""Options of durable calls that are carried whole: from the code that calls, through command, history, views and wire, to
people.

An option that the kernel only carries is a field here and nowhere else. A struct that lists one of these structs as a
further base has its fields as its own, flat, so they are flat in stored and sent bytes as well. `options_of` reads them.
Queue and connection become the routing of the work, and timeouts belong to its retry policy; so they are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from msgspec import NODEFAULT, UNSET, Struct, StructMeta, UnsetType, field, to_builtins
from msgspec.structs import fields

from backstay.kernel.message import Refused
from backstay.kernel.session import WorkerSession

SUMMARY_LENGTH = 200  # characters


class CarriedFields(StructMeta):
    """Metaclass of the options. It copies the fields of a further base into the new struct, before those of the struct itself.

    Python cannot make a class of two bases with slots. A field that the first base has is kept as it is there. The new
    struct is no subclass of its options at run time.
    """

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        first, *carried = bases
        if not carried:
            return super().__new__(mcls, name, bases, namespace, **config)
        known: tuple[str, ...] = getattr(first, "__struct_fields__", ())
        own: dict[str, Any] = namespace.get("__annotations__", {})
        types: dict[str, Any] = {}
        for options in carried:
            for option in fields(options):
                if option.name in known or option.name in own:
                    continue
                types[option.name] = option.type
                if option.default_factory is not NODEFAULT:
                    namespace[option.name] = field(default_factory=option.default_factory)
                elif option.default is not NODEFAULT:
                    namespace[option.name] = option.default
        return StructMeta(name, (first,), {**namespace, "__annotations__": types | own}, **config)


class CallOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=CarriedFields):
    """Options of every durable call that other code serves. `summary` is a short text about this call, for people."""

    summary: str | None = None


class ActivityCallOptions(CallOptions, frozen=True, kw_only=True, omit_defaults=True):
    worker_session: WorkerSession | None = None


class ChildCallOptions(CallOptions, frozen=True, kw_only=True, omit_defaults=True):
    parent_close_policy: str = "abandon"


def _reader(kind: type[CallOptions]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns the values of these options, in C if there are several."""
    names = kind.__struct_fields__
    return attrgetter(*names) if len(names) > 1 else lambda source: tuple(getattr(source, name) for name in names)


activity_option_names = ActivityCallOptions.__struct_fields__
activity_option_values = _reader(ActivityCallOptions)
NO_ACTIVITY_OPTIONS = activity_option_values(ActivityCallOptions())


def options_of(kind: type[CallOptions], source: Any) -> dict[str, Any]:
    """The options of a command, an event or a request that has them as fields."""
    return {name: getattr(source, name) for name in kind.__struct_fields__}


def shown_options(kind: type[CallOptions], source: Any, *beside: str) -> dict[str, Any] | UnsetType:
    """The options that were given, as plain values. `beside`: those that the view has as fields of its own."""
    given: dict[str, Any] = to_builtins(kind(**options_of(kind, source)))
    for name in beside:
        given.pop(name, None)
    return given or UNSET


def check_options(options: CallOptions) -> None:
    """Refuse options that cannot be carried."""
    summary = options.summary
    if summary is not None and len(summary) > SUMMARY_LENGTH:
        raise Refused(
            "invalid_commands",
            f"summary has {len(summary)} characters, at most {SUMMARY_LENGTH} are accepted",
            field="summary",
        )
