"""What a process remembers outside its store: globals of modules, closures, attributes of classes and of registered objects.

A process that is killed loses it. A trial runs in one process, so it is put back here: to what it was before the test.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NamedTuple, cast

from backstay.testing.crashes.effects import EffectsLog

_PLAIN = (type(None), bool, int, float, str, bytes, tuple, frozenset)
_CONTAINERS = (list, dict, set, bytearray, deque)


class State(NamedTuple):
    """What a variable held: the object, and what was in it if it is a container."""

    held: Any
    content: Any


class RememberedValue:
    """A variable: how to read it and how to bind it."""

    def __init__(self, key: tuple[int, str], read: Callable[[], Any], bind: Callable[[Any], None]) -> None:
        self.key = key
        self._read = read
        self._bind = bind
        self.first = self.state()

    def state(self) -> State:
        held = self._read()
        return State(held, _copied(held))

    def differs(self, before: State) -> bool:
        now = self._read()
        try:
            return now is not before.held or (isinstance(now, _CONTAINERS) and bool(now != before.content))
        except Exception:  # values that cannot be compared
            return True

    def restore(self, before: State) -> None:
        if self.differs(before):
            held: Any = before.held
            if isinstance(held, _CONTAINERS):
                _refill(cast(Any, held), _copied(before.content))
            self._bind(before.held)


class Memory:
    """What the code that is registered in a test remembers: as it was before the test (`keep`), and as the test had set it up when
    its first process began to work (`mark`)."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, str], RememberedValue] = {}
        self._marks: dict[tuple[int, str], State] | None = None
        self._alive: list[Any] = []  # so that ids stay those of what was kept

    def keep(self, things: Iterable[Any]) -> None:
        """Take down what the modules, classes, closures and attributes of these functions and objects hold."""
        for thing in things:
            self._keep(thing)

    def restore(self) -> None:
        """Put back what was before the test."""
        self._marks = None
        for place in self._places.values():
            place.restore(place.first)

    def mark(self) -> None:
        """The process begins to work: what it changes from here on is lost with it."""
        if self._marks is None:
            self._marks = {key: place.state() for key, place in self._places.items()}

    def changed(self) -> list[str]:
        """Return the names of what the process has changed."""
        marks = self._marks or {}
        return [place.key[1] for key, place in self._places.items() if key in marks and place.differs(marks[key])]

    def forget(self) -> None:
        """Lose what the process has changed."""
        for key, state in (self._marks or {}).items():
            self._places[key].restore(state)

    def keep_values(self, values: dict[str, Any]) -> None:
        """Take down containers that have no place of their own, such as what fixtures return."""
        for name, value in values.items():
            if isinstance(value, _CONTAINERS):
                self._alive.append(value)
                found = cast(Any, value)
                self._add((id(found), name), lambda found=found: found, lambda _: None)

    def _keep(self, thing: Any) -> None:
        target = getattr(thing, "target", None) or thing
        if isinstance(target, type):
            self._keep_attributes(target, vars(target), target.__qualname__)
            for member in list(vars(target).values()):
                self._keep_function(getattr(member, "fn", member))
        elif not isinstance(target, FunctionType) and hasattr(target, "__dict__"):
            self._keep_attributes(target, vars(target), type(target).__qualname__)
        self._keep_function(getattr(target, "fn", target))
        self._keep_module(getattr(target, "__module__", None))

    def _keep_function(self, found: Any) -> None:
        function = getattr(found, "__wrapped__", found)
        if not isinstance(function, FunctionType):
            return
        self._keep_module(function.__module__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # not bound yet
            if _is_state(value):
                self._alive.append(cell)

                def bind(value: Any, cell: Any = cell) -> None:
                    cell.cell_contents = value

                self._add((id(cell), name), lambda cell=cell: cell.cell_contents, bind)

    def _keep_module(self, name: str | None) -> None:
        module = sys.modules.get(name or "")
        if module is None or (name or "").partition(".")[0] == "backstay":
            return
        self._keep_attributes(module, vars(module), module.__name__)

    def _keep_attributes(self, owner: Any, values: Any, told: str) -> None:
        self._alive.append(owner)
        for name, value in list(values.items()):
            if not name.startswith("__") and _is_state(value):

                def read(owner: Any = owner, name: str = name) -> Any:
                    return getattr(owner, name, None)

                def bind(value: Any, owner: Any = owner, name: str = name) -> None:
                    setattr(owner, name, value)

                self._add((id(owner), f"{told}.{name}"), read, bind)

    def _add(self, key: tuple[int, str], read: Callable[[], Any], bind: Callable[[Any], None]) -> None:
        if key not in self._places:
            self._places[key] = RememberedValue(key, read, bind)


def _is_state(value: Any) -> bool:
    return isinstance(value, (*_PLAIN, *_CONTAINERS)) and not isinstance(value, EffectsLog)


def _copied(value: Any) -> Any:
    """Copy containers, also those in containers. What they contain stays the same."""
    match value:
        case dict():
            found = copy.copy(cast(dict[Any, Any], value))
            for key, inner in found.items():
                found[key] = _copied(inner)
            return found
        case list() | deque():
            found = copy.copy(cast(list[Any], value))
            for place, inner in enumerate(found):
                found[place] = _copied(inner)
            return found
        case set() | bytearray():
            return copy.copy(cast(set[Any], value))
        case _:
            return value


def _refill(container: Any, saved: Any) -> None:
    container.clear()
    (container.update if hasattr(container, "update") else container.extend)(saved)
