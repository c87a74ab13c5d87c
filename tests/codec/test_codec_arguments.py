"""Call arguments: one list on the wire, bound and converted by the signature of the callable."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, Optional, TypeVar
from uuid import UUID

import msgspec
import pytest
from test_codec_avro import refusal

from backstay.codec import avro
from backstay.codec.arguments import Signature
from backstay.codec.values import dumps

if TYPE_CHECKING:
    Nowhere = Any  # no such name exists when the code runs


@dataclass
class Line:
    sku: str
    quantity: int = 1


def order(line: Line, wait: timedelta = timedelta(seconds=1), note: str = "") -> Line: ...


def gather(first: int, *rest: timedelta, label: str = "x", **extra: int) -> None: ...


def named(item: int, /, other: int = 2, *, urgent: bool, until: datetime | None = None) -> None: ...


def loose(anything, more=None): ...


def nothing() -> None: ...


async def later(x: int) -> Line: ...


def half_known(x: "Nowhere", y: timedelta) -> "Nowhere": ...


NOTHING: Any = None


def optional_in_truth(first: int = NOTHING, second: int = 3): ...  # with None, as people write it


class Shop:
    def buy(self, line: Line) -> Line: ...

    def __call__(self, wait: timedelta) -> None: ...


def packed(target, *args, **kwargs) -> object:
    return avro.decode(Signature(target).pack(args, kwargs))


LINE = {"sku": "a", "quantity": 1}
WIRE = [
    (order, (Line("a"),), {}, [LINE]),
    (order, (Line("a"), timedelta(seconds=2)), {}, [LINE, 2.0]),
    (order, (), {"line": Line("a")}, [LINE]),
    (order, (Line("a"),), {"note": "n"}, [LINE, 1.0, "n"]),
    (gather, (1,), {}, [1]),
    (gather, (1, timedelta(1), timedelta(2)), {}, [1, 86400.0, 172800.0]),
    (gather, (1, timedelta(1)), {"label": "l", "z": 3}, [1, 86400.0, {"**": {"label": "l", "z": 3}}]),
    (named, (1,), {"urgent": True}, [1, {"**": {"urgent": True}}]),
    (named, (1,), {"other": 5, "urgent": True}, [1, 5, {"**": {"urgent": True}}]),
    (loose, ({"**": {}},), {}, [{"**": {}}]),
    (nothing, (), {}, []),
]


@pytest.mark.parametrize(("target", "args", "kwargs", "wire"), WIRE)
def test_arguments_travel_by_position_and_the_rest_by_name(target, args, kwargs, wire):
    assert packed(target, *args, **kwargs) == wire


@pytest.mark.parametrize(("target", "args", "kwargs", "wire"), WIRE)
def test_the_receiver_gets_the_call_that_was_made(target, args, kwargs, wire):
    signature = Signature(target)
    got_args, got_kwargs = signature.unpack(signature.pack(args, kwargs))
    shape = inspect.signature(target)
    sent, got = shape.bind(*args, **kwargs), shape.bind(*got_args, **got_kwargs)
    sent.apply_defaults()
    got.apply_defaults()
    assert got.arguments == sent.arguments


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (order, (), {}),
        (order, (1, 2, 3, 4), {}),
        (order, (1,), {"line": 2}),
        (order, (1,), {"colour": 2}),
        (named, (1,), {}),
        (named, (), {"item": 1, "urgent": True}),
        (nothing, (1,), {}),
    ],
)
def test_a_wrong_call_is_a_type_error_before_anything_is_sent(target, args, kwargs):
    with pytest.raises(TypeError):
        Signature(target).pack(args, kwargs)


def test_an_argument_that_looks_like_names_is_not_taken_for_them():
    def target(data: dict, **names: int): ...

    signature = Signature(target)
    assert signature.unpack(signature.pack(({"**": {"x": 1}},), {})) == ([{"**": {"x": 1}}], {})


@pytest.mark.parametrize(
    ("target", "wire", "args", "kwargs"),
    [
        (order, [LINE, 2], [Line("a"), timedelta(seconds=2)], {}),
        (order, LINE, [Line("a")], {}),
        (loose, "one", ["one"], {}),
        (loose, None, [None], {}),
        (named, [1, 2, True], [1, 2], {"urgent": True}),
        (named, [1, {"**": {"other": 4, "urgent": False}}], [1], {"other": 4, "urgent": False}),
        (optional_in_truth, [None, 1], [None, 1], {}),
    ],
)
def test_each_argument_is_converted_by_its_annotation(target, wire, args, kwargs):
    assert Signature(target).unpack(dumps(wire)) == (args, kwargs)


@pytest.mark.parametrize(
    ("target", "wire"),
    [
        (order, []),
        (order, [LINE, 1.0, "", 4]),
        (nothing, [1]),
        (named, [1]),
        (named, [1, 2, True, None, 5]),
        (named, [1, {"**": {"urgent": True, "unknown": 1}}]),
        (named, [1, 2, {"**": {"other": 3, "urgent": True}}]),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_the_receiver(target, wire):
    error = refusal(Signature(target).unpack, dumps(wire))
    assert error.reason == "invalid_arguments"
    assert "expected (" in str(error)


@pytest.mark.parametrize(
    ("target", "wire", "path"),
    [
        (order, [{"sku": 1}], "$[0].sku"),
        (order, [LINE, "soon"], "$[1]"),
        (gather, [1, 2.0, "x"], "$[2]"),
        (gather, [1, {"**": {"z": "x"}}], "$[1]['**'].z"),
        (optional_in_truth, [1, None], "$[1]"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_with_its_path(target, wire, path):
    error = refusal(Signature(target).unpack, dumps(wire))
    assert (error.reason, error.path) == ("value_mismatch", path)


def test_an_argument_that_cannot_be_sent_is_refused_with_its_path():
    assert refusal(Signature(loose).pack, (1, [object()]), {}).path == "$[1][0]"


def wrapping(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs): ...

    return wrapper


@pytest.mark.parametrize(
    "signature",
    [
        Signature(Shop.buy, drop_self=True),
        Signature(Shop().buy),
        Signature(wrapping(order)),
        Signature(functools.partial(order, note="n")),
        Signature(wrapping(functools.partial(wrapping(order), note="n"))),
        Signature(Line),
    ],
    ids=["unbound", "bound", "wrapped", "partial", "both", "class"],
)
def test_any_callable_has_a_signature(signature):
    blob = dumps([LINE]) if "line" in str(signature.contract()) else dumps(["a"])
    assert signature.unpack(blob)[0] in ([Line("a")], ["a"])


def test_a_callable_object_has_a_signature():
    assert Signature(Shop()).unpack(dumps([2])) == ([timedelta(seconds=2)], {})


def test_a_name_that_does_not_resolve_wants_anything_and_spoils_nothing_else():
    signature = Signature(half_known)
    assert signature.unpack(dumps([{"a": 1}, 2])) == ([{"a": 1}, timedelta(seconds=2)], {})
    assert signature.returns is Any


@pytest.mark.parametrize(("target", "returns"), [(order, Line), (later, Line), (nothing, type(None)), (loose, Any)])
def test_the_return_annotation_is_known(target, returns):
    assert Signature(target).returns is returns


def entry(name, position, type, **changes) -> dict:
    return {
        "name": name,
        "position": position,
        "required": False,
        "variadic": False,
        "default_available": False,
        "default": None,
        "type": type,
        "allows_null": False,
    } | changes


def test_a_contract_lists_the_parameters_in_order():
    assert Signature(order).contract() == [
        entry("line", 0, "object", required=True),
        entry("wait", 1, "float", default_available=True, default=1.0),
        entry("note", 2, "string", default_available=True, default=""),
    ]
    assert Signature(gather).contract() == [
        entry("first", 0, "int", required=True),
        entry("rest", 1, "float", variadic=True),
        entry("label", 2, "string", default_available=True, default="x"),
    ]
    assert Signature(named).contract() == [
        entry("item", 0, "int", required=True),
        entry("other", 1, "int", default_available=True, default=2),
        entry("urgent", 2, "bool", required=True),
        entry("until", 3, "string", default_available=True, allows_null=True),
    ]
    assert Signature(loose).contract() == [
        entry("anything", 0, "mixed", required=True, allows_null=True),
        entry("more", 1, "mixed", default_available=True, allows_null=True),
    ]


def test_a_default_that_has_no_payload_form_is_not_available():
    def target(x=Shop()): ...  # noqa: B008 - such a default is the point

    assert Signature(target).contract() == [entry("x", 0, "mixed", allows_null=True)]


class Colour(Enum):
    RED = "red"


class Mixed(Enum):
    ONE = 1
    TWO = "two"


class Point(NamedTuple):
    x: int


class Pair(msgspec.Struct, array_like=True):
    x: int


@pytest.mark.parametrize(
    ("annotation", "name", "null"),
    [
        (int, "int", False),
        (bool, "bool", False),
        (float | None, "float", True),
        (Optional[str], "string", True),  # noqa: UP045 - the old spelling, on purpose
        (int | str, "int|string", False),
        (int | Any, "mixed", True),
        (list[int], "array", False),
        (tuple[int, ...], "array", False),
        (set, "array", False),
        (Sequence[int], "array", False),
        (Point, "array", False),
        (dict[str, int], "object", False),
        (Line, "object", False),
        (UUID, "string", False),
        (datetime, "string", False),
        (bytes, "mixed", False),
        (Colour, "string", False),
        (Mixed, "int|string", False),
        (Literal[1, None], "int", True),
        (NewType("Id", int), "int", False),
        (Annotated[str, "doc"], "string", False),
        (None, "mixed", True),
        (TypeVar("T"), "mixed", True),
        (TypeVar("B", bound=int), "int", False),
        (Pair, "array", False),
        (type[int] | Callable, "mixed", False),
    ],
)
def test_types_are_named_in_the_words_of_the_contract(annotation, name, null):
    def target(x): ...

    target.__annotations__["x"] = annotation
    (parameter,) = Signature(target).contract()
    assert (parameter["type"], parameter["allows_null"]) == (name, null)
