"""A failure as history keeps it: language-neutral, with the class of the raising runtime as a diagnostic only.

The stable surface is `exception_type`, `message`, `code`, `non_retryable` and `details`; everything that names
classes, files or lines is for people and never decides behaviour.
"""

from __future__ import annotations

from msgspec import Struct


class Property(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attribute of an exception, kept so that the same class can be rebuilt."""

    declaring_class: str
    name: str
    value: bytes  # codec blob


class Diagnostics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where it happened, for people."""

    file: str | None = None
    line: int | None = None
    trace: list[str] = []
    traceback: str | None = None  # as Python prints it, with the exceptions it came from


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of an exception on its way from an activity or workflow to history and back."""

    message: str
    exception_type: str | None = None  # the durable alias
    exception_class: str | None = None  # `module:QualName` of the runtime that raised
    code: int | str | None = None
    non_retryable: bool = False
    details: bytes | None = None  # codec blob, kept verbatim
    details_payload_codec: str | None = None
    properties: list[Property] = []
    diagnostics: Diagnostics | None = None


class HandledFailure(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A failure that code has caught, the class that it was raised as, and how the worker found that class:
    exception_type | class_alias | recorded_class."""

    failure_id: str
    resolved_class: str | None = None
    resolution_source: str | None = None


Handled = str | HandledFailure
"""A failure that code has caught. The id alone: its class was found as its record implies."""


def implied_resolution(exception_type: str | None, exception_class: str | None) -> tuple[str | None, str | None]:
    """The class of a recorded exception, and how a worker finds it, as far as the record tells: by its alias, if it has one
    that is more than the name of its class; else by its class."""
    if exception_class is None:
        return None, None if exception_type is None else "exception_type"
    module, _, name = exception_class.rpartition(":")
    own = exception_type in (None, name, f"{module}.{name}", exception_class)
    return exception_class, "recorded_class" if own else "exception_type"
