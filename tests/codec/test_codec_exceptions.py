"""Exceptions through history: the same class, text and attributes after a restart, or a block with its reason."""

import enum
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest
from pydantic import ValidationError

import backstay
from backstay.codec import avro, values
from backstay.codec.avro import PayloadError
from backstay.codec.exceptions import (
    DEEPEST,
    Exceptions,
    RemoteFailure,
    RemoteTraceback,
    UnresolvedFailure,
    exception_payload,
)
from backstay.kernel.failure import Diagnostics, Failure

if TYPE_CHECKING:
    Nowhere = Any  # no such name exists when the code runs

HERE = __name__


class Declined(Exception):
    """Attributes set in an __init__ that takes other arguments than `args`."""

    def __init__(self, order: str, amount: Decimal, *, tries: int = 1):
        super().__init__(f"order {order} declined")
        self.order = order
        self.amount = amount
        self.tries = tries
        self.connection = object()
        built.append(order)


class Coded(Exception):
    code = 404
    non_retryable = True
    exception_type = "shop.coded"


class Slotted(Exception):
    __slots__ = ("shelf",)

    def __init__(self, shelf):
        self.shelf = shelf


class Lost(OSError):
    def __init__(self, place):
        super().__init__(2, "lost", place)
        self.place = place


@dataclass(frozen=True)
class Typed(Exception):
    amount: Decimal
    reason: str


class Renamed(Exception):
    def __init__(self, sku: str):
        super().__init__(sku)
        self.sku = sku


class Refusing(Exception):
    def __new__(cls, *args):
        if not allowed:
            raise TypeError("only from within")
        return super().__new__(cls, *args)


class Mute(Exception):
    def __init__(self, connection):
        self.connection = connection

    def __str__(self):
        return str(self.connection.name)


class Careless(Exception):
    """Annotations that say nothing true, and a property that fails."""

    later: "Nowhere"

    def __init__(self, amount: int):
        super().__init__(Decimal(amount), "x")
        self.amount = str(amount)

    @property
    def code(self):
        raise LookupError


class Several(Exception):
    def __init__(self):
        super().__init__("several")
        self.exceptions = ["a", "b"]


class Status(enum.IntEnum):
    GONE = 410


built: list[str] = []
allowed: list[bool] = []


def here(**given: Any) -> Exceptions:
    """What a process knows that has registered something of this module."""
    return Exceptions(modules=[globals()], **given)


def diagnosed(exc: BaseException) -> Diagnostics:
    """What is recorded of where an exception was raised."""
    found = here().failure(exc).diagnostics
    assert found is not None
    return found


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:
        return caught


def through(exc: BaseException, registry: Exceptions | None = None) -> BaseException:
    """Recorded, stored as history stores it, read and restored."""
    registry = registry or here()
    stored = msgspec.json.encode(registry.failure(raised(exc)))
    return registry.restore(msgspec.json.decode(stored, type=Failure)).exception


def blocked(failure: Failure, registry: Exceptions | None = None) -> UnresolvedFailure:
    with pytest.raises(UnresolvedFailure) as caught:
        (registry or here()).restore(failure)
    return caught.value


def noted(exc: Exception) -> Exception:
    exc.add_note("in the evening")
    return exc


def undecodable() -> Exception:
    return UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte")


@pytest.mark.contract("FAIL-05")
@pytest.mark.parametrize(
    "exc",
    [
        ValueError("no", 2),
        KeyError("missing"),
        RuntimeError(),
        FileNotFoundError(2, "No such file", "/a/b"),
        OSError("plain"),
        Lost("/attic"),
        undecodable(),
        ImportError("no module", name="shop", path="/x"),
        AttributeError("no attribute", name="colour"),
        StopIteration(3),
        ZeroDivisionError("division by zero"),
        Slotted("upper"),
        Typed(Decimal("1.50"), "limit"),
        Coded("x"),
        Several(),
        noted(ValueError("x")),
        subprocess.CalledProcessError(3, ["ls"], b"out"),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_an_exception_comes_back_with_its_class_text_and_attributes(exc):
    back = through(exc)
    assert type(back) is type(exc)
    assert str(back) == str(exc)
    assert vars(back) == vars(exc)
    for name in ("errno", "filename", "start", "reason", "object", "name", "path", "value", "shelf"):
        assert getattr(back, name, "absent") == getattr(exc, name, "absent")


@pytest.mark.contract("FAIL-05")
def test_custom_attributes_come_back_without_running_the_constructor():
    exc = Declined("o-1", Decimal("9.90"), tries=3)
    built.clear()
    back = through(exc)
    assert isinstance(back, Declined)
    assert (back.order, back.amount, back.tries) == ("o-1", Decimal("9.90"), 3)
    assert isinstance(back.amount, Decimal)
    assert back.args == exc.args
    assert not hasattr(back, "connection")
    assert built == []


@pytest.mark.contract("FAIL-05")
def test_an_exception_comes_back_in_another_process():
    program = (
        "import sys, msgspec\n"
        "import test_codec_exceptions\n"
        "from backstay.codec.exceptions import Exceptions\n"
        "from backstay.kernel.failure import Failure\n"
        "restored = Exceptions(modules=[vars(test_codec_exceptions)]).restore(msgspec.json.decode(sys.stdin.buffer.read(), type=Failure))\n"
        "print(type(restored.exception).__name__, restored.exception.order, restored.source)\n"
    )
    failure = here().failure(Declined("o-1", Decimal(1)))
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=msgspec.json.encode(failure),
        env={"PYTHONPATH": folder},
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == [b"Declined", b"o-1", b"recorded_class"]


def test_an_exception_with_careless_annotations_comes_back_with_plain_values():
    back = through(Careless(1))
    assert type(back) is Careless
    assert (back.args, back.amount) == (("1", "x"), "1")


def test_a_group_comes_back_with_its_members():
    group = ExceptionGroup("two", [ValueError("a"), ExceptionGroup("inner", [Declined("o", Decimal(1))])])
    back = through(group)
    assert isinstance(back, ExceptionGroup)
    assert str(back) == str(group)
    assert back.exceptions[0].args == ("a",)
    inner: Any = back.exceptions[1]
    assert inner.exceptions[0].order == "o"


def test_groups_in_groups_are_kept_down_to_a_depth():
    group = ValueError("core")
    for _ in range(400):
        group = ExceptionGroup("shell", [group])
    back = through(group)
    assert type(back) is ExceptionGroup
    levels = 0
    while isinstance(back, ExceptionGroup):
        (back,) = back.exceptions
        levels += 1
    assert levels == DEEPEST + 1
    assert isinstance(back, RemoteFailure)
    assert back.message == "shell (1 sub-exception)"


@dataclass
class Half:
    x: int = field(init=False)


def released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


@pytest.mark.parametrize("broken", [Half(), released()], ids=["half a dataclass", "a released buffer"])
def test_an_attribute_that_breaks_when_it_is_read_is_left_out(broken):
    exc: Any = ValueError("no")
    exc.broken, exc.whole = broken, 1
    back = through(exc)
    assert (type(back), vars(back)) == (ValueError, {"whole": 1})


def test_an_argument_without_a_payload_form_comes_back_as_its_text():
    back = through(RuntimeError(ValueError("inner")))
    assert (type(back), str(back)) == (RuntimeError, "inner")


@pytest.mark.parametrize(
    ("exc", "type", "code", "non_retryable"),
    [
        (ValueError("x"), "ValueError", None, False),
        (Renamed("x"), f"{HERE}.Renamed", None, False),
        (Coded("x"), "shop.coded", 404, True),
    ],
)
def test_the_stable_surface_of_a_failure(exc, type, code, non_retryable):
    failure = here().failure(exc)
    assert (failure.exception_type, failure.code, failure.non_retryable) == (type, code, non_retryable)
    assert failure.message == "x"
    assert failure.details is not None
    assert values.loads(failure.details) == ["x"]
    assert failure.details_payload_codec == "avro"


@pytest.mark.parametrize(
    ("code", "kept"), [(7, 7), ("E7", "E7"), (Status.GONE, 410), (True, None), (1.5, None), (object(), None)]
)
def test_a_code_is_an_integer_or_text(code, kept):
    exc: Any = ValueError("x")
    exc.code = code
    assert here().failure(exc).code == kept


def test_text_that_cannot_be_stored_or_made_does_not_hide_the_failure():
    assert here().failure(ValueError("\ud800")).message == "\\ud800"
    assert "AttributeError" in here().failure(Mute(None)).message


@pytest.mark.contract("FAIL-06")
def test_a_registered_alias_is_resolved_before_the_recorded_class():
    before = here()
    before.register(Declined, "shop.declined")
    failure = before.failure(Declined("o-1", Decimal(1)))
    assert failure.exception_type == "shop.declined"
    after = here(types={"shop.declined": Renamed})
    restored: Any = after.restore(failure).exception
    assert (type(restored), restored.order) == (Renamed, "o-1")


@pytest.mark.contract("FAIL-06")
@pytest.mark.parametrize("target", [Renamed, f"{HERE}:Renamed"])
def test_a_renamed_class_is_found_by_its_alias(target):
    failure = Failure(message="s", exception_type="shop.old", exception_class="gone.module:OldName")
    registry = here(types={"shop.old": target})
    restored = registry.restore(failure)
    assert (type(restored.exception), restored.source) == (Renamed, "exception_type")
    assert registry.failure(Renamed("s")).exception_type == "shop.old"


def test_a_class_is_registered_under_the_alias_that_it_declares():
    registry = here()
    registry.register(Coded)
    assert registry.restore(Failure(message="x", exception_type="shop.coded")).source == "exception_type"


@pytest.mark.contract("FAIL-10")
def test_a_moved_class_is_found_by_the_class_it_was_recorded_as():
    failure = Failure(message="s", exception_type="old.place.Renamed", exception_class="old.place:Renamed")
    restored = here(class_aliases={"old.place:Renamed": Renamed}).restore(failure)
    assert (type(restored.exception), restored.source) == (Renamed, "class_alias")


RECORDED = Failure(message="s", exception_type="alias", exception_class=f"{HERE}:Renamed")


@pytest.mark.contract("FAIL-07")
@pytest.mark.parametrize(
    ("registry", "source"),
    [
        (here(types={"alias": KeyError}, class_aliases={f"{HERE}:Renamed": OSError}), "exception_type"),
        (here(types={"other": KeyError}, class_aliases={f"{HERE}:Renamed": OSError}), "class_alias"),
        (here(), "recorded_class"),
    ],
)
def test_the_source_tells_by_what_the_class_was_found(registry, source):
    assert registry.restore(RECORDED).source == source


@pytest.mark.contract("FAIL-07")
@pytest.mark.parametrize(
    ("recorded", "registry", "source"),
    [
        ("gone.module:Error", here(), "unresolved"),
        (f"{HERE}:Gone", here(), "unresolved"),
        (f"{HERE}:Status", here(), "unresolved"),
        ("builtins:KeyboardInterrupt", here(), "unresolved"),
        (f"{HERE}:f.<locals>.E", here(), "unresolved"),
        ("nonsense", here(), "unresolved"),
        (f"{HERE}:Renamed", here(types={"alias": "gone.module:Error"}), "misconfigured"),
        (f"{HERE}:Renamed", here(types={"alias": "no.colon"}), "misconfigured"),
        (f"{HERE}:Renamed", here(types={"alias": int}), "misconfigured"),
        (f"{HERE}:Renamed", here(class_aliases={f"{HERE}:Renamed": int}), "misconfigured"),
        (f"{HERE}:Refusing", here(), "unrestorable"),
        (f"{HERE}:Mute", here(), "unrestorable"),
        ("pydantic_core._pydantic_core:ValidationError", here(), "unrestorable"),
    ],
)
def test_an_exception_that_cannot_be_restored_blocks_with_its_reason(recorded, registry, source):
    error = blocked(Failure(message="m", exception_type="alias", exception_class=recorded), registry)
    assert error.resolution_source == source
    assert (error.exception_class, error.exception_type) == (recorded, "alias")
    assert error.resolution_error in str(error)


def test_a_block_is_not_caught_by_a_broad_except():
    assert not issubclass(UnresolvedFailure, Exception)


def test_details_that_are_not_ours_to_read_block_and_are_not_guessed():
    failure = msgspec.structs.replace(RECORDED, details=b'["s"]', details_payload_codec="json")
    assert "unsupported_payload_codec" in blocked(failure).resolution_error


def invalid() -> Exception:
    try:
        pydantic.TypeAdapter(int).validate_python("x")
    except ValidationError as error:
        return error
    raise AssertionError


def local() -> Exception:
    class Local(Exception):
        pass

    return Local("x")


@pytest.mark.parametrize("exc", [local(), Mute(object()), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_an_exception_that_could_never_come_back_is_recorded_as_of_another_runtime_and_does_not_block(exc):
    registry = here()
    failure = registry.failure(exc)
    assert failure.exception_class is None
    assert failure.diagnostics is not None
    restored = registry.restore(failure)
    assert restored.source == "external"
    assert isinstance(restored.exception, RemoteFailure)
    assert str(restored.exception.exception_type).endswith(type(exc).__qualname__)


def test_an_exception_that_could_never_come_back_as_itself_comes_back_as_its_builtin_base_class():
    restored: Any = through(invalid())
    assert (type(restored), restored.exception_type) == (
        ValueError,
        "pydantic_core._pydantic_core.ValidationError",
    )


def test_a_local_class_comes_back_if_it_is_registered():
    exc = local()
    registry = here()
    registry.register(type(exc), "local")
    assert type(through(exc, registry)) is type(exc)


FOREIGN = Failure(
    message="card declined",
    exception_type="payment.declined",
    code=51,
    non_retryable=True,
    details=values.dumps({"limit": 5}),
    details_payload_codec="avro",
)


def test_a_failure_of_another_language_is_a_typed_exception_and_not_a_block():
    exc = here().restore(FOREIGN).exception
    assert isinstance(exc, RemoteFailure)
    assert (str(exc), exc.message, exc.exception_type) == ("card declined", "card declined", "payment.declined")
    assert (exc.code, exc.non_retryable, exc.details) == (51, True, {"limit": 5})


def test_a_failure_of_another_language_passes_through_unchanged():
    registry = here()
    assert registry.failure(registry.restore(FOREIGN).exception) == FOREIGN


def test_a_failure_of_another_language_becomes_the_class_of_its_alias():
    restored = here(types={"payment.declined": Renamed}).restore(FOREIGN)
    exc: Any = restored.exception
    assert (type(exc), exc.args, exc.code, exc.details) == (Renamed, ("card declined",), 51, {"limit": 5})


@pytest.mark.contract("CODEC-05")
def test_details_in_another_codec_are_not_sniffed():
    exc = RemoteFailure(msgspec.structs.replace(FOREIGN, details_payload_codec="json"))
    with pytest.raises(PayloadError, match="unsupported_payload_codec"):
        _ = exc.details
    assert RemoteFailure(Failure(message="x")).details is None


def fail_at_depth(depth: int) -> None:
    if depth:
        fail_at_depth(depth - 1)
    raise Declined("o", Decimal(1))


def caught_at_depth(depth: int) -> Declined:
    with pytest.raises(Declined) as caught:
        fail_at_depth(depth)
    return caught.value


def test_diagnostics_name_the_innermost_frame_of_the_author_and_at_most_twenty():
    diagnostics = diagnosed(caught_at_depth(50))
    assert diagnostics.file == __file__
    assert diagnostics.line == fail_at_depth.__code__.co_firstlineno + 3
    assert len(diagnostics.trace) == 20
    assert diagnostics.trace[-1] == f"{__file__}:{diagnostics.line} in fail_at_depth"


def test_diagnostics_leave_out_our_own_frames():
    with pytest.raises(PayloadError) as caught:
        values.dumps(object())
    diagnostics = diagnosed(caught.value)
    assert diagnostics.file == __file__
    ours = str(Path(backstay.__file__).parent)
    assert not any(line.startswith(ours) for line in diagnostics.trace)


class Refused(Exception):
    exception_type = "shop.refused"
    code = 51


def refuse() -> None:
    raise Refused("limit", 5)


@pytest.mark.contract("CODEC-09")
def test_the_payload_of_an_exception_hides_classes_files_lines_and_traces_unless_asked():
    with pytest.raises(Refused) as caught:
        refuse()
    shown = exception_payload(caught.value)
    assert shown == {
        "exception_type": "shop.refused",
        "message": "('limit', 5)",
        "code": 51,
        "non_retryable": False,
        "details": {"codec": "avro", "blob": avro.to_text(values.dumps(["limit", 5]))},
    }
    whole = exception_payload(caught.value, diagnostics=True)
    found = whole.pop("diagnostics")
    assert whole == shown
    assert found["file"] == __file__
    assert "in refuse" in found["trace"][-1]
    assert "raise Refused" in found["traceback"]


@pytest.mark.contract("CODEC-09")
def test_the_payload_of_a_recorded_failure_is_the_one_that_was_recorded():
    failure = here().failure(caught_at_depth(1))
    payload = exception_payload(RemoteFailure(failure), diagnostics=True)
    assert payload["exception_type"] == failure.exception_type
    assert payload["diagnostics"]["class"] == f"{HERE}:Declined"
    assert failure.diagnostics is not None
    assert payload["diagnostics"]["line"] == failure.diagnostics.line


@pytest.mark.contract("CODEC-09")
def test_a_worker_that_hides_diagnostics_records_no_files_lines_and_traces():
    registry = here(diagnostics=False)
    hidden = registry.failure(caught_at_depth(2))
    assert hidden.diagnostics is None
    assert __file__ not in msgspec.json.encode(hidden).decode()
    assert type(registry.restore(hidden).exception) is Declined


def chained() -> None:
    try:
        try:
            refuse()
        except Refused:
            raise KeyError("second") from None
    except KeyError as error:
        raise RuntimeError("third") from error


def test_the_traceback_keeps_the_chain_as_text_without_locals_and_our_own_frames():
    secret = "hunter2"  # noqa: F841
    with pytest.raises(RuntimeError) as caught:
        chained()
    text = diagnosed(caught.value).traceback
    assert text is not None
    assert text.index("KeyError: 'second'") < text.index("direct cause") < text.index("RuntimeError: third")
    assert "raise RuntimeError" in text
    assert "hunter2" not in text
    with pytest.raises(PayloadError) as inside:
        values.dumps(object())
    own = diagnosed(inside.value).traceback
    assert own is not None
    assert "src/backstay" not in own
    assert "test_codec_exceptions" in own


def test_a_traceback_is_not_endless():
    with pytest.raises(Declined) as caught:
        fail_at_depth(300)
    for exc in (caught.value, raised(ValueError("x" * 100_000))):
        text = diagnosed(exc).traceback
        assert text is not None
        assert len(text) < 4_500


def test_a_restored_exception_has_the_traceback_of_where_it_was_raised_as_its_cause():
    with pytest.raises(RuntimeError) as caught:
        chained()
    back = through(caught.value)
    assert isinstance(back.__cause__, RemoteTraceback)
    shown = "".join(traceback.format_exception(back))
    assert "raise Refused" not in shown  # it was raised from None
    assert shown.index("KeyError: 'second'") < shown.index("RuntimeError: third")
    foreign = msgspec.structs.replace(FOREIGN, diagnostics=Diagnostics(trace=["a.php:3", "b.php:4"]))
    assert "b.php:4" in str(here().restore(foreign).exception.__cause__)
    assert here().restore(FOREIGN).exception.__cause__ is None


@pytest.mark.contract("CODEC-08")
def test_files_lines_traces_and_a_recorded_class_do_not_decide_what_is_restored_for_an_alias():
    registry = here(types={"shop.declined": Declined})
    failure = registry.failure(caught_at_depth(1))
    assert failure.diagnostics is not None
    forged = msgspec.structs.replace(
        failure,
        exception_class="somewhere.else:Entirely",
        diagnostics=msgspec.structs.replace(failure.diagnostics, file="/x.py", line=1, trace=[]),
    )
    one, other = (registry.restore(each).exception for each in (failure, forged))
    assert (type(one), one.args, vars(one)) == (type(other), other.args, vars(other))


def test_details_are_the_arguments_in_the_codec():
    failure = here().failure(ValueError("a", 1, {"b": [2.5]}))
    assert failure.details is not None
    assert avro.decode(failure.details) == ["a", 1, {"b": [2.5]}]
