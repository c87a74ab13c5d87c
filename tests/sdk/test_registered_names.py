"""A name from outside reaches what this process registered, and nothing else: no import, no attribute, no call."""

from __future__ import annotations

import ast
import functools
import json
import shutil
import sys
from os import system  # noqa: F401
from pathlib import Path
from shutil import rmtree  # noqa: F401
from typing import Any

import pytest

import backstay
from backstay import (
    DefinitionError,
    FunctionNotRegistered,
    RequestRefused,
    WorkflowFailed,
    activity,
    background,
    child,
    workflow,
)
from backstay.codec.class_names import name_of
from backstay.codec.exceptions import Exceptions, RemoteFailure
from backstay.codec.values import dumps
from backstay.kernel.failure import Failure
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.worker.registry import Registry

from . import kit  # noqa: F401
from .kit import memory

HERE = __name__
ran: list[str] = []


def quote(sku: str) -> str:
    ran.append(sku)
    return f"quoted {sku}"


def _private(sku: str) -> str:
    return f"private {sku}"


def __hidden(sku: str) -> None:
    ran.append(sku)


def counted(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        ran.append("counted")
        return fn(*args)

    return wrapper


@counted
def decorated(sku: str) -> str:
    return f"decorated {sku}"


class Tools:
    @staticmethod
    def half(n: int) -> float:
        return n / 2

    def method(self) -> None:
        ran.append("method")


class Declined(Exception):
    class Kind(Exception):
        pass


@workflow(type="durable-workflow.async")
def named(reference: str, arguments: bytes) -> Any:
    """What a worker of any kind can start as a child: the package's own type with a name of its choice."""


@workflow(unchecked=True)
def calls(reference: str, arguments: bytes) -> Any:
    try:
        return child(named, reference, arguments)
    except FunctionNotRegistered as error:
        return [type(error).__name__, str(error)]


@pytest.fixture(autouse=True)
def _clean() -> None:
    ran.clear()


@pytest.mark.parametrize(
    "reference",
    [
        "os:system",
        "subprocess:call",
        f"{HERE}:system",
        f"{HERE}:rmtree",
        f"{HERE}:shutil.rmtree",
        f"{HERE}:kit.memory",
        f"{HERE}:__hidden",
        f"{HERE}:quote.__globals__",
        f"{HERE}:Tools",
        f"{HERE}:Tools.method",
        f"{HERE}:Tools.__init__",
        f"{HERE}:calls",
        f"{HERE}:ran.append",
        f"{HERE}:nothing",
        f"{HERE}:",
        "builtins:eval",
        "backstay.sdk.author.background:runner",
        "antigravity:nothing",
        "no colon",
        "",
    ],
)
async def test_a_name_in_a_payload_reaches_no_code_that_was_not_registered(reference: str) -> None:
    assert {"system", "rmtree", "shutil", "kit"} <= set(globals())  # which is not enough to be reachable
    async with memory(calls) as app:
        kind, message = await app.execute(calls, "c", reference, dumps(["x"]))
    assert kind == "FunctionNotRegistered"
    assert repr(reference) in message
    assert "register" in message
    assert ran == []
    assert "antigravity" not in sys.modules


async def test_functions_and_static_methods_of_the_module_of_a_workflow_are_known() -> None:
    async with memory(calls) as app:
        assert await app.execute(calls, "1", f"{HERE}:quote", dumps(["tea"])) == "quoted tea"
        assert await app.execute(calls, "2", f"{HERE}:_private", dumps(["tea"])) == "private tea"
        assert await app.execute(calls, "3", f"{HERE}:Tools.half", dumps([5])) == 2.5
        assert await app.execute(calls, "4", f"{HERE}:decorated", dumps(["tea"])) == "decorated tea"


def elsewhere() -> Any:
    """A workflow that stands in another module than the function it calls."""
    room: dict[str, Any] = {"__name__": "another.room", "workflow": workflow, "background": background, "quote": quote}
    exec("@workflow(unchecked=True)\ndef run():\n    return background(quote, 'tea')\n", room)
    return room["run"]


async def test_a_function_of_a_module_without_a_workflow_has_to_be_registered() -> None:
    run = elsewhere()
    async with memory(run) as app:
        with pytest.raises(WorkflowFailed, match="not registered") as caught:
            await app.execute(run, "r")
        assert isinstance(caught.value.__cause__, FunctionNotRegistered)
    assert ran == []
    async with memory(run, quote) as app:
        assert await app.execute(run, "r") == "quoted tea"


@pytest.mark.parametrize("wrong", [lambda: 1, len])
def test_a_function_without_a_name_of_its_own_cannot_be_registered(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="cannot register"):
        Registry().register([wrong])


async def test_only_a_parent_starts_the_workflow_type_of_the_package() -> None:
    async with memory(calls, quote) as app:
        with pytest.raises(RequestRefused, match="background") as caught:
            await app.start(named, "n", f"{HERE}:quote", dumps(["tea"]))
        assert (caught.value.reason, caught.value.fields["field"]) == ("invalid_workflow_type", "workflow_type")
        with pytest.raises(RequestRefused, match="background"):
            await app.schedules.options(every="1h").create(named, "s", f"{HERE}:quote", dumps(["tea"]))
    assert ran == []


# -- exceptions


@activity
def reported(kind: str) -> None:
    raise Declined(kind)


FOREIGN = [
    "loot:X",
    "antigravity:X",
    f"{HERE}:quote",
    f"{HERE}:Tools",
    f"{HERE}:Declined.mro",
    "zipfile:BadZipFile",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_the_class_that_a_failure_names_is_not_imported(name: str) -> None:
    known = Registry()
    known.register([reported])
    failure = Failure(message="boo", exception_type="x.X", exception_class=name)
    wrapped = known.exceptions.restore_or_wrap(failure)
    assert isinstance(wrapped, RemoteFailure)
    assert (wrapped.exception_type, str(wrapped)) == ("x.X", "boo")
    assert name in wrapped.__notes__[0]
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        (f"{HERE}:Declined", Declined),
        (f"{HERE}:Declined.Kind", Declined.Kind),
        ("shutil:SameFileError", shutil.SameFileError),
        ("builtins:TimeoutError", TimeoutError),
        ("backstay.sdk.errors:ChildStopped", backstay.ChildStopped),
        ("backstay.sdk.guard.verdict:NonDeterminismWarning", backstay.NonDeterminismWarning),  # where it once stood
    ],
)
def test_exceptions_that_the_module_of_registered_code_names_are_known(name: str, cls: type[Exception]) -> None:
    known = Registry()
    known.register([reported])
    assert type(known.exceptions.restore_or_wrap(Failure(message="m", exception_class=name))) is cls


def test_exceptions_of_the_package_keep_the_names_that_histories_have_recorded() -> None:
    public: list[Any] = [vars(backstay).get(name) for name in backstay.__all__]
    ours = {name_of(kind) for kind in public if _is_error(kind)}
    assert {name for name in ours if not name.startswith("backstay.sdk.errors:")} == {
        "asyncio.exceptions:CancelledError",
        "backstay.codec.exceptions:RemoteFailure",
        "backstay.codec.exceptions:RemoteTraceback",
        "backstay.kernel.errors:BackstayError",
    }


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def test_a_class_that_options_name_is_known() -> None:
    from zipfile import BadZipFile

    class Local(Exception):
        pass

    @activity(fatal=[Local, BadZipFile])
    def parse() -> None: ...

    known = Registry()
    known.register([parse])
    failure = Failure(message="m", exception_class="zipfile:BadZipFile")
    assert type(known.exceptions.restore_or_wrap(failure)) is BadZipFile


async def test_a_client_knows_what_it_was_given_and_what_its_workflows_can_name() -> None:
    from zipfile import BadZipFile

    client = AsyncClient("http://127.0.0.1:1", exceptions=[BadZipFile])
    failure = Failure(message="m", exception_class="zipfile:BadZipFile")
    assert type(client.restored(failure, None)) is BadZipFile
    own = Failure(message="m", exception_class=f"{HERE}:Declined")
    assert type(client.restored(own, None)) is RemoteFailure
    assert type(client.restored(own, calls.definition)) is Declined
    with pytest.raises(TypeError, match="exception classes"):
        AsyncClient("http://127.0.0.1:1", exceptions=["loot:X"])  # type: ignore[list-item]


def test_an_unknown_class_comes_back_as_the_one_of_python_above_it() -> None:
    known = Exceptions()
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        failure = known.failure(error)
    assert failure.exception_type == "json.decoder.JSONDecodeError"
    back = known.restore(failure).exception
    assert (type(back), str(back)) == (ValueError, failure.message)
    again = known.failure(back)
    assert (again.exception_type, again.exception_class) == ("json.decoder.JSONDecodeError", "builtins:ValueError")


# -- the source itself

REACHING = {"import_module", "__import__", "eval", "exec", "compile", "attrgetter", "exec_module", "find_spec"}
DYNAMIC = {"getattr", "hasattr", "setattr", "delattr"}

# Where code is reached by a string, and whose string it is.
ALLOWED = {
    "__init__.py:import_module": "names of our own table of lazy imports",
    "cli/main.py:import_module": "names of our own table of commands",
    "cli/loading.py:exec_module": "the file that a user gave to dw",
    "codec/class_names.py:import_module": "classes that the author's own type map names",
    "contrib/django/project.py:import_module": "modules that the project's own settings name",
    "kernel/call_options.py:attrgetter": "fields of a struct of ours",
    "protocol/exporting.py:import_module": "a setting of the server or an option of dw, from its operator",
    "server/operators/observability.py:import_module": "a setting of the server, from its operator",
    "store/postgresql/driver.py:import_module": "the literal name of an optional dependency",
    "sdk/replay/source/names.py:import_module": "the source check follows the author's own imports",
}
LOOKED_AT = {
    "cli/loading.py": "puts the user's own file in place",
    "cli/file_watch.py": "the files of what was loaded",
    "codec/msgspec_types.py": "whether pydantic or attrs was loaded, by literal names",
    "testing/crashes/exploration.py": "whether pytest was loaded, by its literal name",
    "testing/crashes/memory.py": "the module of the author's own function, in a test",
    "contrib/pytest_plugin.py": "whether a test has loaded backstay.testing, by its literal name",
    "sdk/replay/guard/audit.py": "whether zoneinfo was loaded, by its literal name",
    "sdk/replay/guard/monitor.py": "how many modules were loaded",
    "sdk/replay/source/locate.py": "the module of the author's own function",
    "sdk/replay/source/names.py": "modules that the author's own source names",
    "sdk/tracing.py": "whether opentelemetry was loaded, by its literal name",
}
ROOT = Path(backstay.__file__).parent


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _reaches() -> set[str]:
    found: set[str] = set()
    for file in ROOT.rglob("*.py"):
        where = file.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and _called(node) in REACHING:
                if isinstance(node.func, ast.Attribute) and _called(node) == "compile":
                    continue  # re.compile
                found.add(f"{where}:{_called(node)}")
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.partition(".")[0] for alias in node.names}
                module = (getattr(node, "module", None) or "").partition(".")[0]
                assert not {"pickle", "marshal", "shelve", "runpy", "dill"} & {*names, module}, where
    return found


def test_no_code_is_reached_by_a_string_but_where_the_string_is_the_authors() -> None:
    assert _reaches() <= set(ALLOWED), "code that is reached by a string from outside runs for whoever sends it"


def test_loaded_modules_are_looked_up_only_where_the_name_is_the_authors() -> None:
    found = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr == "modules"
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    }
    assert found == set(LOOKED_AT)


def test_the_attribute_of_an_object_is_never_named_by_what_was_received() -> None:
    """`getattr` with a name that is computed: each place, and where its names come from."""
    own = {
        "__init__.py": "our own table of lazy imports",
        "cli/main.py": "our own table of commands",
        "cli/schedule.py": "a tuple of literals",
        "codec/from_plain.py": "literal names of typing's aliases",
        "codec/exceptions.py": "literals of its callers",
        "codec/msgspec_types.py": "base classes by literal names, fields of our own or the author's structs",
        "codec/to_plain.py": "fields of the author's own types",
        "codec/class_names.py": "the author's own type map",
        "codec/typenames.py": "literal names of typing's aliases",
        "engine/requests/workflow_commands.py": "a literal of its callers",
        "engine/requests/streams.py": "fields of a struct of ours",
        "kernel/features/child/parent_side.py": "a tuple of literals",
        "kernel/features/condition.py": "fields of a struct of ours",
        "kernel/features/schedule/lifecycle.py": "fields of a struct of ours",
        "kernel/features/schedule/records.py": "fields of a struct of ours",
        "kernel/call_options.py": "fields of a struct of ours",
        "kernel/features/activity/schedule.py": "a tuple of literals",
        "kernel/features/start/checks.py": "a tuple of literals",
        "kernel/features/timer.py": "a tuple of literals",
        "kernel/features/fork/inherit.py": "fields of events of ours",
        "kernel/session.py": "a tuple of literals",
        "kernel/views/causes.py": "fields of events of ours, from our own words",
        "kernel/views/liveness.py": "a literal of its callers",
        "protocol/native/client.py": "fields of a struct of ours",
        "protocol/export.py": "a tuple of literals",
        "protocol/recorded_run.py": "a tuple of literals",
        "protocol/wire_fields.py": "fields of a struct of ours",
        "protocol/history.py": "fields of a struct of ours",
        "protocol/run_detail.py": "fields of a struct of ours",
        "protocol/tasks.py": "fields of a struct of ours",
        "sdk/replay/loop.py": "our own table of what a loop refuses",
        "sdk/replay/guard/monitor.py": "names in the author's own code",
        "sdk/replay/guard/shims.py": "a tuple of literals",
        "sdk/remote/bounds.py": "fields of a struct of ours",
        "sdk/remote/server_links.py": "kinds of slots, which are ours",
        "sdk/remote/slots.py": "kinds of slots, which are ours",
        "sdk/replay/source/check.py": "the entry of the author's own class",
        "sdk/replay/source/locate.py": "fields of syntax nodes",
        "sdk/replay/source/names.py": "names in the author's own source",
        "server/limits/admission.py": "kinds of tasks, which are literals",
        "server/published/control/operator_commands.py": "fields of a command, from our own table",
        "server/published/worker/lifecycle.py": "a tuple of literals",
        "server/published/control/run_lists.py": "a tuple of literals",
        "server/published/control/schedules.py": "a tuple of literals",
        "server/operators/discovery.py": "fields of a struct of ours",
        "engine/reading/describe.py": "a tuple of literals",
        "engine/requests/rehearsal.py": "methods of a store that our own code calls",
        "engine/reading/run_search.py": "literals that are compared just before",
        "engine/views/certificate.py": "a tuple of literals",
        "engine/views/stored_views.py": "our own table of views",
        "kernel/views/outline.py": "fields of events of ours, from our own words",
        "kernel/views/run_query.py": "our own tables of fields",
        "protocol/bundle_import.py": "fields of a struct of ours",
        "protocol/exporting.py": "a setting of the server or an option of dw, from its operator",
        "protocol/plain.py": "fields of a struct of ours",
        "protocol/shown_events.py": "fields of a struct of ours",
        "server/http/boundary.py": "our own table of methods",
        "server/operators/observability.py": "a setting of the server, from its operator",
        "server/operators/rehearsal.py": "attributes of objects of ours that are copied",
        "server/operators/run_filters.py": "a tuple of literals",
        "server/native/worker_routes.py": "a tuple of literals",
        "server/settings_reference.py": "fields of a struct of ours",
        "store/listing.py": "a tuple of literals",
        "testing/crashes/memory.py": "names in the author's own code, in a test",
        "testing/crashes/mortal.py": "methods of a store that our own code calls",
    }
    found = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and _called(node) in DYNAMIC
        and isinstance(node.func, ast.Name)
        and not isinstance(node.args[1], ast.Constant)
    }
    assert found <= set(own), f"say where these names come from: {sorted(found - set(own))}"
