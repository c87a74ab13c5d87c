"""Exceptions as failures that history keeps, and back to the same exception after a restart.

A failure is found again by its registered alias, else by the map of moved classes, else by the recorded class, which must
be known here (`class_names.py`): nothing is imported because a failure names it. An exception that could not be rebuilt even
while it is raised, for example because its class is not known, is recorded as the nearest class of Python's above it, else
as one of another runtime. So what later blocks replay is always a change of code: a class or an alias that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backstay.codec import avro
from backstay.codec.class_names import ExceptionClasses, Namespace, configured, name_of
from backstay.codec.errors import PayloadError
from backstay.codec.exception_state import Unrestorable, details_of, properties_of, readable, rebuild
from backstay.codec.tracebacks import diagnose
from backstay.codec.values import dumps
from backstay.kernel.failure import Diagnostics, Failure, Property

Source = Literal["exception_type", "class_alias", "recorded_class", "external"]
Blocked = Literal["unresolved", "misconfigured", "unrestorable"]

DEEPEST: Final = 8  # groups in groups; what is further in is kept as its text


class Restored(Struct, frozen=True):
    """An exception as it was raised, and by what its class was found (`external`: it is a `RemoteFailure`)."""

    exception: Exception
    source: Source


class RemoteFailure(Exception):
    """A failure of a runtime whose classes we do not have, with the parts that are stable across languages."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.message = failure.message
        self.exception_type = failure.exception_type
        self.code = failure.code
        self.non_retryable = failure.non_retryable

    @property
    def details(self) -> Any:
        """The decoded details; `PayloadError` if they came in another codec."""
        if self.failure.details is None:
            return None
        avro.expect_codec(self.failure.details_payload_codec)
        return avro.decode(self.failure.details)


class RemoteTraceback(Exception):
    """The traceback of an exception from where it was raised. It is the `__cause__` of the exception that was restored."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


def traced(exc: Exception, failure: Failure) -> Exception:
    """The exception with the traceback that was recorded with it."""
    found = failure.diagnostics
    if found is not None and (found.traceback or found.trace):
        cause = RemoteTraceback(found.traceback or "\n".join(found.trace))
        BaseException.__setattr__(exc, "__cause__", cause)  # an exception may be a frozen dataclass
    return exc


class UnresolvedFailure(BaseException):
    """Replay cannot go on: a recorded exception has no class here. Not for `except Exception` of workflow code."""

    def __init__(self, failure: Failure, resolution_source: Blocked, resolution_error: str) -> None:
        super().__init__(
            f"Cannot restore {failure.exception_type or failure.exception_class} ({resolution_source}): "
            f"{resolution_error}. Bring the class back, or register it or its alias."
        )
        self.failure = failure
        self.resolution_source: Blocked = resolution_source
        self.resolution_error = resolution_error
        self.exception_class = failure.exception_class
        self.exception_type = failure.exception_type


class Exceptions:
    """The classes that failures are restored to: `types` by durable alias, `class_aliases` by recorded class.

    Beyond these it knows the exceptions of Python and what is registered, added or included.
    """

    def __init__(
        self,
        types: Mapping[str, type | str] | None = None,
        class_aliases: Mapping[str, type | str] | None = None,
        modules: Iterable[Namespace] = (),
        diagnostics: bool = True,
    ) -> None:
        self._diagnostics = diagnostics
        self._classes = ExceptionClasses()
        for module in modules:
            self.include(module)
        self._types: dict[str, type | str] = dict(types or {})
        self._moved: dict[str, type | str] = dict(class_aliases or {})
        self._aliases = {name_of(target): alias for alias, target in self._types.items()}

    def register(self, cls: type[Exception], alias: str | None = None) -> None:
        """Record `cls` under `alias` from now on, and restore that alias to it."""
        durable = alias or _own_alias(cls)
        self._types[durable] = cls
        self._aliases[name_of(cls)] = durable
        self._classes.add(cls)

    def add(self, cls: type[Exception]) -> None:
        """Know `cls` by its own name."""
        self._classes.add(cls)

    def include(self, module: Namespace) -> None:
        """Know the exceptions that a module can name; `module` is its globals."""
        self._classes.include(module)

    def failure(self, exc: BaseException, depth: int = 0) -> Failure:
        """The failure that history keeps of `exc`: its stable parts, the state it is restored from, and where it was raised."""
        if isinstance(exc, RemoteFailure):
            return exc.failure
        details = details_of(exc)
        stable = Failure(
            message=readable(exc),
            exception_type=self._aliases.get(name_of(type(exc))) or _own_alias(exc),
            code=_code(exc),
            non_retryable=_attribute(exc, "non_retryable") is True,
            details=details,
            details_payload_codec=None if details is None else avro.CODEC,
        )
        located = replace(stable, diagnostics=diagnose(exc)) if self._diagnostics else stable
        if depth > DEEPEST:
            return located
        try:
            properties = properties_of(exc, partial(self.failure, depth=depth + 1))
            whole = replace(located, exception_class=name_of(type(exc)), properties=properties)
            return whole if self._comes_back(whole, type(exc)) else self._as_python(located, exc) or located
        except Exception:  # the attributes of anyone
            return located

    def restore_or_wrap(self, failure: Failure) -> Exception:
        """The exception of a failure for display only: a `RemoteFailure` if it cannot be restored."""
        try:
            return self.restore(failure).exception
        except UnresolvedFailure as unresolved:
            remote = traced(RemoteFailure(failure), failure)
            remote.add_note(f"its exception could not be restored here: {unresolved}")
            return remote

    def restore(self, failure: Failure) -> Restored:
        """The exception of a failure, or `UnresolvedFailure`. Of another runtime it is a `RemoteFailure`."""
        if failure.exception_type in self._types:
            return self._restored(failure, self._types[failure.exception_type], "exception_type")
        if failure.exception_class is None:
            return Restored(traced(RemoteFailure(failure), failure), "external")
        if failure.exception_class in self._moved:
            return self._restored(failure, self._moved[failure.exception_class], "class_alias")
        return self._restored(failure, failure.exception_class, "recorded_class")

    def _restored(self, failure: Failure, target: type | str, source: Source) -> Restored:
        try:
            cls = self._known(name_of(target)) if source == "recorded_class" else configured(target)
        except LookupError as error:
            why: Blocked = "unresolved" if source == "recorded_class" else "misconfigured"
            raise UnresolvedFailure(failure, why, str(error)) from None
        try:
            return Restored(traced(rebuild(cls, failure, self._member), failure), source)
        except (Unrestorable, PayloadError) as error:
            raise UnresolvedFailure(failure, "unrestorable", str(error)) from None

    def _known(self, name: str) -> type[Exception]:
        found = self._classes.find(name)
        if found is None:
            raise LookupError(f"no registered module has an exception class {name!r}")
        return found

    def _member(self, failure: Failure) -> Exception:
        return self.restore(failure).exception

    def _comes_back(self, failure: Failure, cls: type[BaseException]) -> bool:
        """Whether this very process could restore it; an alias is trusted, for it is a promise of the author."""
        if failure.exception_type in self._types:
            return True
        try:
            return self._restored(failure, name_of(cls), "recorded_class").exception.__class__ is cls
        except UnresolvedFailure:
            return False

    def _as_python(self, failure: Failure, exc: BaseException) -> Failure | None:
        """The failure as the nearest class of Python's, which every process has: `except OSError` still catches it."""
        for kind in type(exc).__mro__:
            if kind.__module__ == "builtins" and issubclass(kind, Exception) and kind is not Exception:
                # The name it was raised by stays with it, also when it is recorded once more.
                name = Property(
                    declaring_class=name_of(kind), name="exception_type", value=dumps(failure.exception_type)
                )
                plain = replace(
                    failure,
                    exception_class=name_of(kind),
                    details=dumps([failure.message]),
                    details_payload_codec=avro.CODEC,
                    properties=[name],
                )
                return plain if self._comes_back(plain, kind) else None
        return None


def exception_payload(error: BaseException, *, diagnostics: bool = False) -> dict[str, Any]:
    """The parts of an error that are stable across languages and releases, to log or send on.

    Class, file, line and traceback are of one runtime and one release: they come along, in an envelope of their own, only if
    they are asked for.
    """
    recorded = _attribute(error, "failure")
    failure = recorded if isinstance(recorded, Failure) else Exceptions().failure(error)
    details, codec = failure.details, failure.details_payload_codec
    payload: dict[str, Any] = {
        "exception_type": failure.exception_type,
        "message": failure.message,
        "code": failure.code,
        "non_retryable": failure.non_retryable,
        "details": None if details is None else {"codec": codec, "blob": avro.to_text(details)},
    }
    if diagnostics:
        found = failure.diagnostics or Diagnostics()
        payload["diagnostics"] = {"class": failure.exception_class, **msgspec.to_builtins(found)}
    return payload


def _own_alias(exc: BaseException | type[BaseException]) -> str:
    """The alias that a class gives itself, else its name."""
    declared = _attribute(exc, "exception_type")
    if isinstance(declared, str):
        return declared
    cls = exc if isinstance(exc, type) else type(exc)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _code(exc: BaseException) -> int | str | None:
    code = _attribute(exc, "code")
    if isinstance(code, str):
        return str.__str__(code)
    return int(code) if isinstance(code, int) and not isinstance(code, bool) else None


def _attribute(exc: object, name: str) -> object:
    try:
        return getattr(exc, name, None)
    except Exception:  # a property of anyone
        return None
