"""Python values through a payload: what each kind is on the wire, and how an annotation brings it back."""

import collections
import enum
import gc
import subprocess
import sys
import types
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_codec_avro import refusal, typed

from backstay.codec import avro, from_plain, to_plain
from backstay.codec.values import dumps, loads

if TYPE_CHECKING:
    Nowhere = Any  # no such name exists when the code runs

T = TypeVar("T")
Bounded = TypeVar("Bounded", bound=timedelta)
OrderId = NewType("OrderId", int)
Wait = NewType("Wait", timedelta)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Shade(enum.StrEnum):
    DARK = "dark"


class Size(enum.IntEnum):
    SMALL = 1


class Pace(enum.Enum):
    SLOW = timedelta(seconds=90)
    ODD = 1.5


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int = 0


class Span(NamedTuple):
    name: str
    length: timedelta = timedelta()


@dataclass
class Line:
    sku: str
    quantity: int = 1


@dataclass(frozen=True)
class Order:
    id: UUID
    placed: datetime
    total: Decimal
    lines: list[Line] = field(default_factory=list)
    colour: Colour | None = None
    photo: bytes = b""
    serial: int = field(default=7, init=False)


@dataclass
class Node:
    name: str
    wait: timedelta = timedelta()
    children: list["Node"] = field(default_factory=list)


@dataclass
class Card:
    number: str
    limit: int = 0


@dataclass
class Cash:
    amount: int = 0


@dataclass
class Payment:
    by: Card | Cash
    after: timedelta | None = None


@dataclass(frozen=True)
class Frozen:
    wait: timedelta
    seen: int = field(default=0, init=False)


@dataclass
class Box(Generic[T]):
    content: T
    wait: timedelta = timedelta()


@dataclass
class Positive:
    number: int

    def __post_init__(self):
        if self.number <= 0:
            raise ValueError("not positive")


@dataclass
class Patient:
    wait: timedelta

    def __post_init__(self):
        if self.wait < timedelta(1):
            raise ValueError("not patient")


@dataclass
class Lost:
    what: "Nowhere"


class Struct(msgspec.Struct):
    name: str
    at: datetime


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str
    later: msgspec.UnsetType | int = msgspec.UNSET


class Compact(msgspec.Struct, array_like=True, tag=True):
    x: int
    y: int


class CompactWait(msgspec.Struct, array_like=True):
    wait: timedelta


class Cat(msgspec.Struct, tag=True):
    nap: timedelta


class Dog(msgspec.Struct, tag=True):
    nap: timedelta


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Show(TypedDict):
    title: str
    length: NotRequired[timedelta]


class Model(pydantic.BaseModel):
    name: str
    at: datetime
    wait: timedelta = timedelta(seconds=1)
    tags: set[str] = set()
    raw: bytes = b""
    colour: Colour = Colour.RED


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(alias="fullName")

    @pydantic.computed_field
    def shout(self) -> str:
        return self.name.upper()


@dataclass
class Envelope:
    model: Model
    rest: dict[str, Model] = field(default_factory=dict)


class Unknown:
    pass


STRANGE: dict[str, Any] = {"x": Unknown()}


UID = UUID("12345678-1234-5678-1234-567812345678")
EAST = timezone(timedelta(hours=5, minutes=30))
ODD = timezone(timedelta(hours=23, minutes=59, seconds=30))
WHEN = datetime(2026, 11, 15, 10, 30, 0, 123456, tzinfo=EAST)
ORDER = Order(UID, WHEN, Decimal("19.90"), [Line("a", 2)], Colour.BLUE, b"\x00\xff")
MODEL = Model(name="n", at=WHEN, tags={"b", "a"}, raw=b"\xff")

WIRE = [
    (Colour.RED, "red"),
    (Shade.DARK, "dark"),
    (Size.SMALL, 1),
    (Pace.SLOW, 90.0),
    (Right.READ | Right.WRITE, 3),
    (bytearray(b"x"), b"x"),
    (memoryview(b"x"), b"x"),
    ((1, 2), [1, 2]),
    (Point(1), [1, 0]),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]),
    (set(), []),
    (collections.deque([1]), [1]),
    (WHEN, "2026-11-15T10:30:00.123456+05:30"),
    (datetime(2026, 1, 1), "2026-01-01T00:00:00"),
    (date(2026, 1, 2), "2026-01-02"),
    (time(10, 30, tzinfo=UTC), "10:30:00+00:00"),
    (timedelta(minutes=1, microseconds=1), 60.000001),
    (UID, str(UID)),
    (Decimal("1.10"), "1.10"),
    (PurePosixPath("/a/b"), "/a/b"),
    (collections.OrderedDict(a=1), {"a": 1}),
    (collections.defaultdict(int, a=1), {"a": 1}),
    (types.MappingProxyType({"a": 1}), {"a": 1}),
    ({Shade.DARK: 1}, {"dark": 1}),
    (Line("a"), {"sku": "a", "quantity": 1}),
    (Struct("n", WHEN), {"name": "n", "at": WHEN.isoformat()}),
    (Renamed("n"), {"firstName": "n"}),
    (Compact(1, 2), ["Compact", 1, 2]),
    (Cat(timedelta(1)), {"type": "Cat", "nap": 86400.0}),
    (Aliased(fullName="n"), {"fullName": "n"}),
    ({"deep": [(Line("a"), {Colour.RED})]}, {"deep": [[{"sku": "a", "quantity": 1}, ["red"]]]}),
]


@pytest.mark.parametrize(("value", "wire"), WIRE)
def test_without_an_annotation_a_value_comes_back_plain(value, wire):
    assert typed(loads(dumps(value))) == typed(wire)


ROUND = [
    (None, None),
    (1, int),
    (1, Any),
    (1, object),
    ([1], list),
    (True, bool),
    (1.5, float),
    ("x", str),
    (b"x", bytes),
    (bytearray(b"x"), bytearray),
    (Colour.RED, Colour),
    (Shade.DARK, Shade),
    (Size.SMALL, Size),
    (Pace.SLOW, Pace),
    (Pace.ODD, Pace),
    (Right.READ | Right.WRITE, Right),
    ([Right.READ | Right.WRITE], list[Right]),
    (WHEN, datetime),
    (datetime(2026, 1, 1), datetime),
    (date(2026, 1, 2), date),
    (time(10, 30), time),
    (timedelta(days=3, microseconds=7), timedelta),
    ([timedelta(1)], list[timedelta]),
    ({"a": timedelta(1)}, dict[str, timedelta]),
    ({"a": timedelta(1)}, Mapping[str, timedelta]),
    ((timedelta(1), "x"), tuple[timedelta, str]),
    ((timedelta(1),), tuple[timedelta, ...]),
    (frozenset({timedelta(1)}), frozenset[timedelta]),
    (UID, UUID),
    (Decimal("1.10"), Decimal),
    (Path("/a"), Path),
    ([PurePosixPath("a")], list[PurePosixPath]),
    ((1, "a"), tuple[int, str]),
    ((1, 2, 3), tuple[int, ...]),
    ({1, 2}, set[int]),
    (collections.deque([1]), collections.deque[int]),
    ([1], Sequence[int]),
    (Point(1, 2), Point),
    (Span("a", timedelta(1)), Span),
    (3, OrderId),
    ([3], list[OrderId]),
    (timedelta(1), Wait),
    (timedelta(1), Bounded),
    ([1, "a"], list[object]),
    (3, Annotated[int, msgspec.Meta(gt=0)]),
    ("a", Literal["a", "b"]),
    (None, int | None),
    (1, Optional[int]),  # noqa: UP045 - the old spelling, on purpose
    ("x", int | str | None),
    (1, int | float),
    (timedelta(1), timedelta | None),
    (None, timedelta | None),
    ({"title": "x"}, Movie),
    ({"title": "x", "length": timedelta(1)}, Show),
    ({"title": "x"}, Show),
    (ORDER, Order),
    ({"a": [ORDER]}, dict[str, list[Order]]),
    (Node("a", timedelta(2), [Node("b")]), Node),
    (Payment(Card("1")), Payment),
    (Payment(Cash(), timedelta(1)), Payment),
    (Frozen(timedelta(1)), Frozen),
    (Box([1]), Box),
    (Struct("n", WHEN), Struct),
    (Renamed("n"), Renamed),
    (Compact(1, 2), Compact),
    (Dog(timedelta(1)), Cat | Dog),
    (MODEL, Model),
    (MODEL, Model | None),
    (MODEL, Model | str),
    ([MODEL], list[Model]),
    (Envelope(MODEL, {"x": MODEL}), Envelope),
    (Aliased(fullName="n"), Aliased),
]


@pytest.mark.parametrize(("value", "annotation"), ROUND)
def test_with_its_annotation_a_value_comes_back_as_it_was(value, annotation):
    back = loads(dumps(value), annotation)
    assert back == value
    assert type(back) is type(value)


@given(
    st.datetimes(timezones=st.just(UTC) | st.none() | st.just(EAST)), st.timedeltas(max_value=timedelta(days=90_000))
)
def test_times_come_back_to_the_microsecond(moment, span):
    span = max(span, timedelta(days=-90_000))
    assert loads(dumps(moment), datetime) == moment
    assert loads(dumps(span), timedelta) == span


NEARLY_A_DAY = timedelta(hours=23, minutes=59)


@given(st.datetimes(), st.timedeltas(-NEARLY_A_DAY, NEARLY_A_DAY))
def test_every_offset_comes_back_as_the_same_moment_of_the_same_day(moment, offset):
    moment = moment.replace(tzinfo=timezone(offset))
    back = loads(dumps(moment), datetime)
    assert back == moment
    assert back.date() == moment.date()
    # Python compares times of day by whole seconds of their offsets.
    of_day = moment.time().replace(tzinfo=timezone(timedelta(seconds=offset // timedelta(seconds=1))))
    assert loads(dumps(of_day), time) == of_day


def test_local_mean_time_is_rounded_to_the_offsets_that_readers_know():
    amsterdam = ZoneInfo("Europe/Amsterdam")  # 19 minutes and 32 seconds from UTC, until 1937
    assert dumps(datetime(1930, 1, 1, tzinfo=amsterdam)) == dumps("1930-01-01T00:00:28+00:20")
    assert dumps(datetime(1930, 1, 1, 23, 59, 50, tzinfo=amsterdam)) == dumps("1930-01-01T23:59:18+00:19")
    assert dumps(datetime(2030, 1, 1, tzinfo=amsterdam)) == dumps("2030-01-01T00:00:00+01:00")


@pytest.mark.parametrize("value", [datetime(1, 1, 1, tzinfo=ODD), time(0, tzinfo=ODD)])
def test_an_offset_that_no_minute_is_near_enough_to_is_refused(value):
    error = refusal(lambda: dumps([value]))
    assert (error.reason, error.path) == ("unsupported_value_type", "$[0]")
    assert "send it in UTC" in error.problem


@dataclass(eq=False)
class Friends:
    names: set[Any]


def test_classes_that_come_and_go_are_not_kept():
    kept = weakref.WeakSet[Any]()
    for number in range(2 * to_plain._KINDS):
        made = dataclass(type("Row", (), {"__annotations__": {"n": int}}))
        kept.add(made)
        assert loads(dumps(made(number))) == {"n": number}
        del made
    gc.collect()
    assert len(kept) <= to_plain._KINDS


def test_sets_in_sets_are_put_in_order_once():
    value: Any = "core"
    sent: Any = "core"
    for _ in range(60):  # twice the work for each would not end
        value = frozenset({value, "z"})
        sent = ["z", sent] if isinstance(sent, list) else [sent, "z"]
    assert loads(dumps(value)) == sent


def test_a_set_that_holds_itself_is_refused():
    mine = Friends(set())
    mine.names.add(mine)
    assert refusal(dumps, mine).reason == "nesting_too_deep"


def test_a_union_takes_the_first_member_that_fits_in_the_order_written():
    blob = dumps(WHEN)
    assert loads(blob, datetime | str) == WHEN
    assert loads(blob, str | datetime) == WHEN.isoformat()
    assert loads(dumps("no date"), datetime | str) == "no date"
    assert loads(dumps(b"x"), str | bytes) == b"x"


def test_a_union_of_records_prefers_the_one_that_knows_every_key():
    assert loads(dumps(Card("1", 5)), Cash | Card) == Card("1", 5)
    assert loads(dumps({"amount": 3, "note": "new"}), Card | Cash) == Cash(3)


def test_keys_of_a_newer_version_are_let_pass():
    assert loads(dumps({"sku": "a", "colour": "red"}), Line) == Line("a")
    assert loads(dumps({"name": "a", "size": 1}), Node) == Node("a")


def test_a_set_that_has_no_natural_order_gets_the_same_one_in_every_process():
    program = "from backstay.codec.values import dumps; print(dumps({'b', 1, ('x', 2), None, b'c', 'a'}).hex())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


MISFITS = [
    ("x", int, "$"),
    (1.0, int, "$"),
    (True, int, "$"),
    (1, str, "$"),
    ("1", int, "$"),
    (None, int, "$"),
    ("x", timedelta, "$"),
    (True, timedelta, "$"),
    (1e300, timedelta, "$"),
    ([1, "x"], list[int], "$[1]"),
    ({"a": [1.0, "x"]}, dict[str, list[timedelta]], "$.a[1]"),
    ({"sku": 1}, Line, "$.sku"),
    ({}, Line, "$"),
    ({}, Node, "$"),
    ({"name": "a", "children": [{"name": "b"}, {"name": 3}]}, Node, "$.children[1].name"),
    ([1], Node, "$"),
    ({"a": 1}, list[timedelta], "$"),
    ([1.0], tuple[timedelta, str], "$"),
    (["a", 1.0, 2.0], Span, "$"),
    ([], Span, "$"),
    ("green", Colour, "$"),
    (2.5, Pace, "$"),
    ("x", Right, "$"),
    ("c", Literal["a", "b"], "$"),
    ("x", timedelta | int, "$"),
    ({"number": -1}, Positive, "$"),
    ([{"wait": 1.0}], list[Patient], "$[0]"),
    ({"type": "Cow", "nap": 1.0}, Cat, "$.type"),
    ({"name": "n", "at": "never"}, Model, "$.at"),
    ([{"model": {"name": 1, "at": "2026-01-01"}}], list[Envelope], "$[0].model.name"),
    (3, Path, "$"),
]


@pytest.mark.parametrize(("value", "annotation", "path"), MISFITS)
def test_a_value_that_does_not_fit_is_refused_with_its_path(value, annotation, path):
    error = refusal(loads, dumps(value), annotation)
    assert (error.reason, error.path) == ("value_mismatch", path)


@pytest.mark.parametrize(
    ("annotation", "named"),
    [(Unknown, "Unknown"), (list[Unknown], "Unknown"), (Lost, "Nowhere"), (CompactWait, "CompactWait")],
)
def test_an_annotation_that_no_payload_can_become_is_named(annotation, named):
    error = refusal(loads, dumps([{"what": 1}]), annotation)
    assert error.reason == "unsupported_value_type"
    assert named in str(error)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Unknown(), "$"),
        (1j, "$"),
        (lambda: 1, "$"),
        ({"order": Box([1, Unknown()])}, "$.order.content[1]"),
        (Envelope(MODEL, STRANGE), "$.rest.x"),
    ],
)
def test_a_value_without_a_payload_form_is_refused_with_its_path_through_objects(value, path):
    error = refusal(dumps, value)
    assert (error.reason, error.path) == ("unsupported_value_type", path)


def test_the_path_leads_into_objects_for_every_refusal():
    assert refusal(dumps, Box({"n": [2**64]})).path == "$.content.n[0]"
    assert refusal(dumps, [Box({2: 1})]).path == "$[0].content"


def test_a_plain_value_of_the_right_type_is_not_touched():
    blob = dumps({"a": 1})
    assert avro.decode(blob) == loads(blob, dict) == {"a": 1}


def test_the_table_of_conversions_is_bounded():
    for _ in range(5000):
        from_plain.convert([1], list[int])
    assert len(from_plain._FITS) <= 4096


def test_neither_pydantic_nor_an_avro_library_is_imported_for_the_codec():
    program = (
        "import sys; import backstay.codec.values, backstay.codec.arguments, backstay.codec.exceptions;"
        "print({'pydantic', 'fastavro'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "set()"
