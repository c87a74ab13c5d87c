"""Plain values into Avro. On the hot path: tables instead of arithmetic, one loop instead of recursion.

The walk keeps its own stack, so depth is bounded by `MAX_DEPTH` and never by the stack of the caller, and the way to
the item at hand is known when it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from math import isfinite
from struct import Struct
from typing import Any, Final

from backstay.codec.errors import PayloadError, Step, path_of
from backstay.codec.schema import DOUBLE, HEADER, MAX_DEPTH


def encode(value: Any, plain: Callable[[object], object] | None = None) -> bytes:
    """The blob of `value`. `plain` turns what is not a plain value into one, a level at a time."""
    named = False
    outer: list[tuple[Iterable[Any], bool, Any]] = []
    key: Any = None
    item: Any
    try:
        kind = _TYPE(value)
        if kind in _SCALARS:  # most results
            return HEADER + _SCALARS[kind](value)
        out = bytearray(HEADER)
        pairs: Iterable[Any] = ((None, value),)
        if kind is tuple and value:  # arguments, half of all there is to write: begin inside them
            out += _ARRAY_HEADS[len(value)]
            outer.append(_OUTSIDE)
            pairs = _NUMBERED(value)
        while True:
            for key, item in pairs:
                if named:
                    out += _KEYS[key]
                kind = _TYPE(item)
                if kind is int:
                    out += _LONGS[item]
                    continue
                if kind is str:
                    text: bytes = item.encode()
                    out += _STRING_HEADS[len(text)]
                    out += text
                    continue
                if kind not in _NESTED:
                    if kind not in _SCALARS:
                        item = _adapted(item, plain)
                        kind = _TYPE(item)
                    if kind in _SCALARS:
                        out += _SCALARS[kind](item)
                        continue
                if not item:
                    out += b"\x0e\x00" if kind is dict else b"\x0c\x00"
                    continue
                if len(outer) == MAX_DEPTH:
                    raise PayloadError("nesting_too_deep", f"more than {MAX_DEPTH} levels; is it cyclic? Send it flat")
                outer.append((pairs, named, key))
                named = kind is dict
                if named:
                    out += _MAP_HEADS[len(item)]
                    pairs = iter(item.items())
                else:
                    out += _ARRAY_HEADS[len(item)]
                    pairs = _NUMBERED(item)
                break
            else:
                if outer:
                    out.append(0)
                    pairs, named, key = outer.pop()
                if not outer:  # nothing stands beside the value itself
                    return bytes(out)
    except PayloadError as error:
        raise error.within(*_steps(outer, named, key)) from None
    except UnicodeEncodeError as error:
        problem = f"text that is not Unicode ({error.reason}); encode it to bytes first"
        raise PayloadError("unsupported_value_type", problem, path_of(_steps(outer, named, key))) from None


def _zigzag(number: int) -> bytes:
    rest = number << 1 if number >= 0 else ~(number << 1)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _null(_: None) -> bytes:
    return b"\x00"


def _boolean(flag: bool) -> bytes:
    return b"\x02\x01" if flag else b"\x02\x00"


class _Longs(dict[int, bytes]):
    """Numbers with the byte of their branch before them. Small ones come from a table, others are computed."""

    def __init__(self, branch: bytes, known: range) -> None:
        super().__init__({number: branch + _zigzag(number) for number in known})
        self._branch = branch

    def __missing__(self, number: int) -> bytes:
        if -0x8000000000000000 <= number <= 0x7FFFFFFFFFFFFFFF:
            return self._branch + _zigzag(number)
        # Its digits may be more than Python agrees to print.
        problem = f"an integer of {number.bit_length()} bits does not fit 64; send it as a string"
        raise PayloadError("integer_overflow", problem)


def _double(number: float) -> bytes:
    if isfinite(number):
        return _WRITE_DOUBLE(DOUBLE, number)
    raise PayloadError("non_finite_float", f"{number} has no portable form; send None or a string")


def _string(text: str) -> bytes:
    content = text.encode()
    return _STRING_HEADS[len(content)] + content


def _bytes(content: bytes) -> bytes:
    return b"\x08" + _sized(content)


def _sized(content: bytes) -> bytes:
    return _zigzag(len(content)) + content


class _Keys(dict[str, bytes]):
    """Keys of maps are few and come again and again; the table only grows to its bound."""

    def __missing__(self, key: object) -> bytes:
        if not isinstance(key, str):
            problem = f"map key {key!r} is {_a(type(key))}, and keys travel as text; convert it with str() first"
            raise PayloadError("invalid_map_key", problem)
        # A member of a text enum is its text, whatever its own __str__ says.
        text = str.__str__(key)
        encoded = _sized(text.encode())
        if len(encoded) <= 64 and len(self) < 4096:
            self[text] = encoded
        return encoded


def _steps(outer: list[tuple[Iterable[Any], bool, Any]], named: bool, key: Any) -> list[Step]:
    """The way to the item at hand; a key that is no text is a fault of the map, so the way ends there."""
    return [*(step for _, _, step in outer), None if named and not isinstance(key, str) else key]


def _adapted(item: object, plain: Callable[[object], object] | None) -> object:
    adapted = item if plain is None else plain(item)
    if type(adapted) in _PLAIN:
        return adapted
    problem = f"{_a(type(item))} has no payload form; "
    if isinstance(item, Coroutine):
        problem += "it was described or called and never waited for: write `await`, or in `def` code `.run()`"
    else:
        problem += "send plain values, a dataclass, a Struct or a pydantic model"
    raise PayloadError("unsupported_value_type", problem)


def _a(kind: type) -> str:
    return f"a `{kind.__qualname__}`"


# Two builtins, under types that a checker can follow through values of any kind.
_TYPE: Final[Callable[[object], type[Any]]] = type
_NUMBERED: Final[Callable[[Any], Iterator[Any]]] = enumerate
_WRITE_DOUBLE: Final = Struct("<Bd").pack
_LONGS: Final = _Longs(b"\x04", range(-64, 1024))
_STRING_HEADS: Final = _Longs(b"\x0a", range(512))
_ARRAY_HEADS: Final = _Longs(b"\x0c", range(64))
_MAP_HEADS: Final = _Longs(b"\x0e", range(64))
_KEYS: Final = _Keys()
_SCALARS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): _null,
    bool: _boolean,
    int: _LONGS.__getitem__,
    float: _double,
    str: _string,
    bytes: _bytes,
}
_OUTSIDE: Final[tuple[Iterable[Any], bool, Any]] = ((), False, None)
_NESTED: Final = frozenset([dict, list, tuple])
_PLAIN: Final = _NESTED.union(_SCALARS)
