"""Handlers of a workflow class: methods with `@signal`, `@query` or `@update`, and typed `Signal` channels.

On the class a handler is a reference for clients (`handle.signal(Approval.approve, "ann")`); on `self` it is the method.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from typing import Any, Concatenate, Generic, Never, ParamSpec, Protocol, TypeVar, cast, get_args, overload

from backstay.codec.arguments import Signature
from backstay.codec.typenames import allows_null, type_name
from backstay.codec.values import dumps
from backstay.sdk.author.options import expect
from backstay.sdk.errors import DefinitionError

P = ParamSpec("P")
P2 = ParamSpec("P2")
R = TypeVar("R")
R2 = TypeVar("R2")
T = TypeVar("T")
Coro = Coroutine[Any, Any, R]


class HandlerMethod(Generic[P, R]):
    """A method of a workflow class that clients call by its public name."""

    kind = "member"

    def __init__(self, fn: Callable[P, Any], name: str | None) -> None:
        if not hasattr(fn, "__code__"):
            raise DefinitionError(f"@{self.kind} needs a method, not {fn!r}")
        if fn.__code__.co_flags & 0x220:
            raise DefinitionError(f"{self.kind} {fn.__qualname__} uses `yield`; a handler runs to its end")
        expect("name", name, DefinitionError)
        self.fn = fn
        self.name: str = name or fn.__name__
        self.owner: type[Any] | None = None
        self.__doc__ = fn.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.owner = owner

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.fn, drop_self=True)

    def unpack(self, arguments: bytes | None) -> tuple[list[Any], dict[str, Any]]:
        return ([], {}) if arguments is None else self.signature.unpack(arguments)

    def contract(self) -> dict[str, Any]:
        """Its parameters as the start of a run records them."""
        return {"name": self.name, "parameters": self.signature.contract()}

    def bind(self, instance: object) -> Callable[..., Any]:
        return self.fn.__get__(instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self.fn.__qualname__} is a {self.kind}: call it on self, or send it through a handle"
            f" (a method named {self.kind!r} hides the decorator in its class; use @backstay.{self.kind} there)"
        )

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


class SignalMethod(HandlerMethod[P, R]):
    kind = "signal"

    def contract(self) -> dict[str, Any]:
        """Its parameters as the start of a run records them."""
        return {**super().contract(), "mode": "handler"}

    @overload
    def __get__(
        self: SignalMethod[Concatenate[Any, P2], R2], instance: None, owner: type, /
    ) -> SignalMethod[P2, R2]: ...
    @overload
    def __get__(self: SignalMethod[Concatenate[Any, P2], R2], instance: object, owner: type, /) -> Callable[P2, R2]: ...
    def __get__(self, instance: object | None, owner: type, /) -> Any:
        return self if instance is None else self.bind(instance)


class QueryMethod(HandlerMethod[P, R]):
    kind = "query"

    @overload
    def __get__(self: QueryMethod[Concatenate[Any, P2], R2], instance: None, owner: type, /) -> QueryMethod[P2, R2]: ...
    @overload
    def __get__(self: QueryMethod[Concatenate[Any, P2], R2], instance: object, owner: type, /) -> Callable[P2, R2]: ...
    def __get__(self, instance: object | None, owner: type, /) -> Any:
        return self if instance is None else self.bind(instance)


class UpdateMethod(HandlerMethod[P, R]):
    kind = "update"

    def __init__(self, fn: Callable[P, Any], name: str | None) -> None:
        super().__init__(fn, name)
        self.check: Callable[..., None] | None = None

    def validator(self, check: Callable[P, None], /) -> Callable[P, None]:
        """Make a method the validator of this update.

        It runs with the update's arguments before the update is accepted. If it raises, the update is rejected. It must not
        change anything.
        """
        self.check = check
        return check

    @overload
    def __get__(
        self: UpdateMethod[Concatenate[Any, P2], R2], instance: None, owner: type, /
    ) -> UpdateMethod[P2, R2]: ...
    @overload
    def __get__(self: UpdateMethod[Concatenate[Any, P2], R2], instance: object, owner: type, /) -> Callable[P2, R2]: ...
    def __get__(self, instance: object | None, owner: type, /) -> Any:
        return self if instance is None else self.bind(instance)


class AsyncUpdateMethod(UpdateMethod[P, R]):
    # On the class it is typed by the awaited result; on `self` it is the coroutine function.
    @overload
    def __get__(
        self: AsyncUpdateMethod[Concatenate[Any, P2], R2], instance: None, owner: type, /
    ) -> UpdateMethod[P2, R2]: ...
    @overload
    def __get__(
        self: AsyncUpdateMethod[Concatenate[Any, P2], R2], instance: object, owner: type, /
    ) -> Callable[P2, Coro[R2]]: ...
    def __get__(self, instance: object | None, owner: type, /) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self if instance is None else self.bind(instance)


class Signal(Generic[T]):
    """A typed channel: `approved = Signal[str]("approved")`, read with `wait(approved)`.

    Without a name it is named after the class attribute that it is assigned to.
    """

    def __init__(self, name: str | None = None) -> None:
        if type(name) is not str:  # a hot path: every `wait` by name makes one
            expect("name", name, DefinitionError)
        self._name = name

    def __set_name__(self, owner: type[Any], name: str) -> None:
        if self._name is None:
            self._name = name

    @property
    def name(self) -> str:
        """The public name: the one given, or that of the class attribute."""
        if self._name is None:
            raise DefinitionError("this Signal has no name; write Signal[str]('its-name')")
        return self._name

    @property
    def type(self) -> Any:
        """The type of its values, `str` in `Signal[str]`; Any without a subscription."""
        given = get_args(getattr(self, "__orig_class__", None))
        return given[0] if given else Any

    def contract(self) -> dict[str, Any]:
        """Its parameter as the start of a run records it."""
        sent = self.type
        parameter = {
            "name": "value",
            "position": 0,
            "required": not allows_null(sent),
            "variadic": sent is Any,
            "default_available": allows_null(sent),
            "default": None,
            "type": type_name(sent),
            "allows_null": allows_null(sent),
        }
        return {"name": self.name, "parameters": [parameter], "mode": "wait"}

    def __repr__(self) -> str:
        return f"<signal {self._name}>"


class SignalDecorator(Protocol):
    def __call__(self, fn: Callable[P, R], /) -> SignalMethod[P, R]: ...


class QueryDecorator(Protocol):
    def __call__(self, fn: Callable[P, R], /) -> QueryMethod[P, R]: ...


class UpdateDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[P, Never], /) -> UpdateMethod[P, Any]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, Coro[R]], /) -> AsyncUpdateMethod[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> UpdateMethod[P, R]: ...


@overload
def signal(fn: Callable[P, R], /) -> SignalMethod[P, R]: ...
@overload
def signal(*, name: str | None = None) -> SignalDecorator: ...
def signal(fn: Any = None, /, *, name: str | None = None) -> Any:
    """Make a method a signal handler. It is called for each signal of its name, in order, and makes no durable calls.

    `name` is its public name, by default that of the method. A handler that raises fails the workflow task, not the run.
    """
    return _decorate(SignalMethod, fn, name)


@overload
def query(fn: Callable[P, R], /) -> QueryMethod[P, R]: ...
@overload
def query(*, name: str | None = None) -> QueryDecorator: ...
def query(fn: Any = None, /, *, name: str | None = None) -> Any:
    """Make a method a query: clients call it to read the state of a run. It must change nothing and makes no durable calls.

    `name` is its public name, by default that of the method.
    """
    return _decorate(QueryMethod, fn, name)


@overload
def update(fn: Callable[P, Never], /) -> UpdateMethod[P, Any]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def update(fn: Callable[P, Coro[R]], /) -> AsyncUpdateMethod[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def update(fn: Callable[P, R], /) -> UpdateMethod[P, R]: ...
@overload
def update(*, name: str | None = None) -> UpdateDecorator: ...
def update(fn: Any = None, /, *, name: str | None = None) -> Any:
    """Make a method an update handler: clients call it to change a run and get an answer. Each update is applied exactly once.

    `name` is its public name, by default that of the method. An exception fails the update, not the run. A method decorated
    with `@<handler>.validator` may reject an update before it is accepted.
    """

    def decorate(fn: Any) -> Any:
        is_async = bool(getattr(fn, "__code__", None) and fn.__code__.co_flags & 0x80)
        kind: Any = AsyncUpdateMethod if is_async else UpdateMethod
        return kind(fn, name)

    return decorate if fn is None else decorate(fn)


def _decorate(kind: Any, fn: Any, name: str | None) -> Any:
    def decorate(fn: Any) -> Any:
        return kind(fn, name)

    return decorate if fn is None else decorate(fn)


class Handlers:
    """The handlers and channels of one workflow, by public name."""

    def __init__(self) -> None:
        self.signals: dict[str, SignalMethod[Any, Any]] = {}
        self.channels: dict[str, Signal[Any]] = {}
        self.queries: dict[str, QueryMethod[Any, Any]] = {}
        self.updates: dict[str, UpdateMethod[Any, Any]] = {}

    def collect(self, cls: type[Any]) -> None:
        """Collect the handlers of a workflow class. Those of a subclass replace those of its base classes."""
        seen: set[str] = set()
        for owner in cls.__mro__:
            for attribute, value in vars(owner).items():
                if attribute not in seen:
                    seen.add(attribute)
                    self._take(cls, value)

    def _take(self, cls: type[Any], value: Any) -> None:
        match value:
            case SignalMethod():
                self._claim(cls, self.signals, value.name, cast(Any, value))
            case QueryMethod():
                self._claim(cls, self.queries, value.name, cast(Any, value))
            case UpdateMethod():
                self._claim(cls, self.updates, value.name, cast(Any, value))
            case Signal():
                self.channel(cast(Any, value))
            case _:
                pass
        both = self.signals.keys() & self.channels.keys()
        if both:
            raise DefinitionError(f"{cls.__qualname__}: signal {min(both)!r} is both a method and a channel")

    def _claim(self, cls: type[Any], table: dict[str, Any], name: str, member: Any) -> None:
        if name in table:
            raise DefinitionError(f"{cls.__qualname__} has two members with the public name {name!r}")
        table[name] = member

    def channel(self, channel: Signal[Any] | str) -> None:
        """Declare a signal that the code waits for by name."""
        if isinstance(channel, str):
            channel = Signal(channel)
        self.channels.setdefault(channel.name, channel)


def packed(
    member: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, bytes | None, dict[str, Any] | None]:
    """Return the public name of a handler, the encoded arguments, and arguments by name for a contract to order."""
    match member:
        case HandlerMethod(name=name, signature=signature):
            return name, signature.pack(args, kwargs), None
        case Signal(name=name):
            if kwargs or len(args) > 1:
                raise TypeError(f"signal {name!r} takes one value")
            return name, dumps(list(args)), None
        case str(name):
            if kwargs and args:
                raise TypeError("by public name, give all arguments by position or all by name")
            return (name, None, dict(kwargs)) if kwargs else (name, dumps(list(args)), None)
        case _:
            raise TypeError(f"name it by its method, its Signal or its public name, not {member!r}")
