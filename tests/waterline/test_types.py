"""The modules of Waterline are typed, with JSDoc, against types that are made of the server's own.

TypeScript checks that, on machines that have npm; nothing else needs it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest
from msgspec import Struct
from tools.js_types import declarations

from backstay.server.access.auth import OPERATOR
from backstay.server.http.router import Route
from backstay.server.routes import ROUTES

from .world import World

HERE = Path(__file__).parent
MODULES = HERE.parents[1] / "src/backstay/waterline/static/js"


def compiler() -> Path | None:
    """TypeScript, as `make` installs it beside the tools of Python."""
    found = Path(sys.prefix) / "typescript" / "node_modules" / ".bin" / "tsc"
    return found if found.exists() else None


typescript = pytest.mark.skipif(
    compiler() is None or shutil.which("node") is None, reason="there is no TypeScript here: no npm"
)


def complaints(place: Path, types: str, *more: Path) -> str:
    """What TypeScript says of the modules with these types of the server; nothing if it is content."""
    (place / "api.d.ts").write_text(types)
    options = {
        "extends": str(HERE / "tsconfig.json"),
        "include": [f"{MODULES}/**/*.js"],
        "files": ["api.d.ts", *map(str, more)],
    }
    (place / "tsconfig.json").write_text(json.dumps(options))
    checked = subprocess.run([str(compiler()), "-p", str(place)], capture_output=True, text=True, check=False)
    assert (checked.returncode != 0) == bool(checked.stdout), checked.stderr
    return checked.stdout


@typescript
def test_the_modules_are_typed(tmp_path: Path) -> None:
    said = complaints(tmp_path, declarations(ROUTES))
    assert not said, said


@typescript
def test_a_field_that_the_server_renames_is_found(tmp_path: Path) -> None:
    types = declarations(ROUTES)
    read_by = {
        "busiest": "overview.js",
        "ended_at": "runs.js",
        "by_itself": "head.js",
        "waiting_seconds": "queues.js",
        "took_ms": "health.js",
    }
    for field in read_by:
        renamed = re.sub(rf'"{field}"(\??):', rf'"{field}_now"\1:', types)
        assert renamed != types
        types = renamed
    said = complaints(tmp_path, types).splitlines()
    for field, where in read_by.items():
        assert any(where in line and f"'{field}'" in line for line in said), f"{field}: {said}"


class Part(TypedDict):
    number: int | None
    perhaps: NotRequired[list[str]]


class Whole(Part):
    parts: dict[str, Part]
    anything: Any


class Order(Struct):
    name: str
    size: int = 1


async def whole(server: object, request: object) -> Whole:
    raise NotImplementedError


async def something(server: object, request: object) -> dict[str, Any]:
    raise NotImplementedError


def test_types_are_made_of_what_handlers_say() -> None:
    made = declarations(
        [
            Route("GET", "/api/things/{id}", whole, "control", OPERATOR),
            Route("GET", "/api/things/{id}/more", something, "control", OPERATOR),
            Route("POST", "/api/things", whole, "control", OPERATOR, body=Order),
            Route("GET", "/api/call/x", whole, "own", OPERATOR),
        ]
    )
    assert '    "number": number | null;\n    "perhaps"?: Array<string>;\n' in made
    assert '    "parts": Record<string, Part>;\n' in made
    assert '    "anything": any;\n' in made
    assert '  interface Order {\n    "name": string;\n    "size"?: number;\n  }' in made
    assert (
        "  type Get<Path extends string> =\n"
        "    Path extends `/api/things/${string}/more` ? any :\n"
        "    Path extends `/api/things/${string}` ? Stamped & Whole :\n"
        "    any;" in made
    )
    assert "Path extends `/api/things` ? Order :" in made
    assert "/api/call" not in made


def _asked() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """An address in the world of each route that says what it returns, and the types of its answer."""
    values = {
        "workflow_id": "approval-1",
        "queue": "default",
        "bucket": "all",
        "schedule_id": "nightly",
        "view_id": "system:running",
        "namespace": "default",
        "n": "2",
    }
    for route in ROUTES:
        types = route.answer_types if route.answers == "application/json" else ()
        names = re.findall(r"\{(\w+)\}", route.path)
        if route.method == "GET" and types and route.path.startswith("/api/") and all(name in values for name in names):
            more = {"/api/suggest": "?field=workflow_type", "/api/time-spent": "?workflow_type=shop.order"}
            yield route.path.removeprefix("/api").format(**values) + more.get(route.path, ""), types


@pytest.mark.parametrize(("path", "types"), [pytest.param(*asked, id=asked[0]) for asked in _asked()])
def test_an_answer_has_the_shape_that_its_handler_says(world: World, path: str, types: tuple[Any, ...]) -> None:
    answer = world.get(path)
    answer.pop("generated_at", None)
    if "schema" in answer.get("control_plane", {}):  # the envelope's; that of discovery has a version of its own
        del answer["control_plane"]
    problems: list[str] = []
    for kind in types:
        try:
            # What a type does not name is left out by the conversion, and what it misses is refused.
            if msgspec.to_builtins(msgspec.convert(answer, kind)) == answer:
                return
            problems.append(f"{kind.__name__} does not name every field")
        except msgspec.ValidationError as error:
            problems.append(f"{kind.__name__}: {error}")
    raise AssertionError(problems)
