"""Call arguments as one payload, the list of positional arguments, and back.

What can be given by position travels by position. Keyword-only arguments and `**kwargs` travel by name, as one last
element `{"**": {...}}`, which only a callable that takes such arguments looks for.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final, cast

from backstay.codec.errors import PayloadError, Step
from backstay.codec.from_plain import convert
from backstay.codec.hints import hints_of
from backstay.codec.reader import decode
from backstay.codec.to_plain import plain, plainly
from backstay.codec.typenames import allows_null, type_name
from backstay.codec.writer import encode

NAMED: Final = "**"


class Signature:
    """The parameters of a callable and their annotations, resolved once; what does not resolve is `Any`."""

    def __init__(self, target: Callable[..., Any], drop_self: bool = False) -> None:
        hints = hints_of(target)
        self._name: str = getattr(target, "__qualname__", repr(target))
        parameters = list(inspect.signature(target).parameters.values())[1 if drop_self else 0 :]
        self._bound = inspect.Signature(parameters)
        self._annotations: dict[str, Any] = {p.name: hints.get(p.name, Any) for p in parameters}
        self._positional = [
            p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        ]
        self._by_name = {p.name: p for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
        self._rest = next((p for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
        self._named_rest = next((p for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
        self._takes_names = bool(self._by_name) or self._named_rest is not None
        # The types of arguments that are what they should be, where no names can be among them.
        self._wanted = None if self._takes_names else [self._annotations[p.name] for p in self._positional]
        fewest = sum(p.default is Parameter.empty for p in self._positional)
        most = len(self._positional) if self._rest is None else sys.maxsize
        needs_names = any(p.default is Parameter.empty for p in self._by_name.values())
        self._counts = range(0) if needs_names else range(fewest, most + 1)  # of arguments that need no names
        self._listed_counts = range(0) if self._takes_names else self._counts  # of those that are sent as they are
        self.returns: Any = hints.get("return", Any)

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The blob of a call; TypeError if the callable could not be called like that."""
        # Counting mostly shows that the call is right; otherwise it takes binding to know.
        listed = args if not kwargs and len(args) in self._listed_counts else self._listed(args, kwargs)
        return encode(listed, plain)

    def pack_fitting(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Like `pack`, and TypeError if an argument could not be read again as its annotation wants it."""
        blob = self.pack(args, kwargs)
        if kwargs or list(map(type, args)) != self._wanted:
            try:
                self.unpack(blob)
            except PayloadError as error:
                raise TypeError(f"{self._name}(): {error.problem} (at {error.path} of its arguments)") from None
        return blob

    def unpack(self, blob: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, each as its annotation wants it."""
        value: list[Any] = decode(blob)  # type: ignore[assignment] - or one value alone, as is asked next
        if type(value) is list and list(map(type, value)) == self._wanted:
            return value, {}  # as mostly: every argument is already what its annotation says
        args, kwargs = self._split(value)
        self._check(args, kwargs)
        positional = [self._converted(self._at(index), item, index) for index, item in enumerate(args)]
        named = {
            name: self._converted(self._named(name), item, len(args), NAMED, name) for name, item in kwargs.items()
        }
        return positional, named

    def contract(self) -> list[dict[str, Any]]:
        """The parameters as history keeps them, in order; those by name follow those by position."""
        listed = [*self._positional, *([self._rest] if self._rest else []), *self._by_name.values()]
        return [self._described(position, parameter) for position, parameter in enumerate(listed)]

    def _listed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        try:
            given = self._bound.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._name}(): {error}; it takes ({self._taken()})") from None
        names = [p.name for p in self._positional]
        last = max((index for index, name in enumerate(names) if name in given), default=-1)
        listed = [given.get(p.name, p.default) for p in self._positional[: last + 1]]
        if self._rest is not None:
            listed.extend(given.get(self._rest.name, ()))
        named = {name: given[name] for name in self._by_name if name in given}
        if self._named_rest is not None:
            named |= given.get(self._named_rest.name, {})
        # An ordinary last argument that looks like names is followed by true names, if only none.
        if named or (self._takes_names and listed and _named_in(listed[-1]) is not None):
            listed.append({NAMED: named})
        return listed

    def _split(self, value: object) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
        if not self._takes_names or not args:
            return args, {}
        if (named := _named_in(args[-1])) is not None:
            return args[:-1], named
        if self._rest is None:
            # A server that checked the call against the contract sends named arguments in its order, too.
            own = len(self._positional)
            beyond = dict(zip(self._by_name, args[own:], strict=False))
            return args[:own] + args[own + len(beyond) :], beyond
        return args, {}

    def _check(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        if not kwargs and len(args) in self._counts:
            return
        try:
            self._bound.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadError("invalid_arguments", f"{error}; expected ({self._taken()})") from None

    def _taken(self) -> str:
        return ", ".join(self._bound.parameters)

    def _at(self, index: int) -> Parameter:
        if index < len(self._positional):
            return self._positional[index]
        return cast(Parameter, self._rest)  # the call was checked: what is left over has its place

    def _named(self, name: str) -> Parameter:
        return self._bound.parameters.get(name) or cast(Parameter, self._named_rest)  # the same

    def _converted(self, parameter: Parameter, value: Any, *way: Step) -> Any:
        if value is None and parameter.default is None:
            return None  # `x: int = None` says int and means optional
        annotation = self._annotations[parameter.name]
        if annotation is Any:
            return value
        try:
            return convert(value, annotation)
        except PayloadError as error:
            named = f"argument {parameter.name!r}: {error.problem}"
            raise PayloadError(error.reason, named, error.path).within(*way) from None

    def _described(self, position: int, parameter: Parameter) -> dict[str, Any]:
        annotation = self._annotations[parameter.name]
        variadic = parameter is self._rest
        default, available = _default(parameter)
        return {
            "name": parameter.name,
            "position": position,
            "required": not variadic and parameter.default is Parameter.empty,
            "variadic": variadic,
            "default_available": available,
            "default": default,
            "type": type_name(annotation),
            "allows_null": allows_null(annotation) or parameter.default is None,
        }


def _named_in(item: object) -> dict[str, Any] | None:
    """The arguments by name, if that is what `item` is."""
    if not isinstance(item, dict):
        return None
    entries = cast(dict[str, Any], item)
    named: Any = entries.get(NAMED) if len(entries) == 1 else None
    return cast(dict[str, Any], named) if isinstance(named, dict) else None


def _default(parameter: Parameter) -> tuple[object, bool]:
    if parameter.default is Parameter.empty:
        return None, False
    try:
        return plainly(parameter.default), True
    except PayloadError:
        return None, False
