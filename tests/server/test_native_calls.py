"""Calls of our own clients with values that no database can hold: each is a mistake of the caller, and is answered as one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backstay.protocol.native.client import HEADER, PATH, VERBS, VERSION

from ..selection import rotating
from .kit import TOKEN, serving

NUL, LONG = "a\0b", "x" * 300_000
HUGE = (1 << 63, -(1 << 63) - 1, 10**30)
MANY = 40_000
KNOWN: dict[str, Any] = {
    "workflow_id": "o-1",
    "workflow_type": "order",
    "schedule_id": "nightly",
    "spec": {"cron_expressions": ["@daily"]},
    "action": {"workflow_type": "order"},
    "wait_seconds": 0.01,
}
"""What fields mean if nothing is wrong with them."""

UNTOLD = ("wait_seconds", "namespace", "source", "context")
"""Fields that only say how long to wait, or that the server replaces."""
WAITING = "run-workflow"
"""Its only field is a start, which `start-workflow` has, too; then it waits."""


def bodies(kind: Any, depth: int = 0) -> Iterator[Any]:
    """Values of a type, each of which is wrong in one place."""
    match kind:
        case msgspec.inspect.StructType(fields=fields):
            plain = {f.encode_name: plain_value(f) for f in fields if f.required or f.encode_name in KNOWN}
            for field in fields if depth < 4 else ():
                if field.encode_name not in UNTOLD:
                    for wrong in bodies(field.type, depth + 1):
                        yield plain | {field.encode_name: wrong}
        case msgspec.inspect.UnionType(types=types):
            for one in types:
                yield from bodies(one, depth)
        case msgspec.inspect.StrType():
            yield from (NUL, LONG)
        case msgspec.inspect.IntType():
            yield from HUGE
        case msgspec.inspect.FloatType():
            yield 1e300
        case msgspec.inspect.DictType(value_type=of):
            yield {NUL: plain_of(of)}
            yield {f"k{number}": plain_of(of) for number in range(3000)}
            for wrong in bodies(of, depth + 1):
                yield {"k": wrong}
        case msgspec.inspect.CollectionType(item_type=of):
            yield [plain_of(of)] * MANY
            for wrong in bodies(of, depth + 1):
                yield [wrong]
        case msgspec.inspect.AnyType():
            yield from (NUL, HUGE[0], [NUL])
        case _:
            return


def plain_value(field: msgspec.inspect.Field) -> Any:
    return KNOWN[field.encode_name] if field.encode_name in KNOWN else plain_of(field.type)


def plain_of(kind: Any) -> Any:
    """A value of a type with which nothing is wrong."""
    match kind:
        case msgspec.inspect.StructType(fields=fields):
            return {f.encode_name: plain_value(f) for f in fields if f.required}
        case msgspec.inspect.UnionType(types=types):
            return plain_of(types[0])
        case msgspec.inspect.StrType() | msgspec.inspect.AnyType():
            return "x"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 1
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.LiteralType(values=values):
            return values[0]
        case msgspec.inspect.DictType():
            return {}
        case msgspec.inspect.CollectionType():
            return []
        case msgspec.inspect.TupleType(item_types=of):
            return [plain_of(one) for one in of]
        case _:
            return None


@pytest.mark.parametrize(
    ("verb", "store"), rotating(product(sorted(set(VERBS) - {WAITING}), ["file", "postgresql"]), 20)
)
async def test_a_value_that_no_database_can_hold_is_the_callers_mistake(
    verb: str, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue("postgresql_url") if store == "postgresql" else f"sqlite:{tmp_path}/calls.db"
    async with serving(store=place, still=False, query_timeout_seconds=0.05) as api:
        headers = {"Authorization": f"Bearer {TOKEN}", HEADER: str(VERSION)}

        async def call(name: str, body: Any) -> tuple[int, str]:
            answer = await api.http.post(PATH + name, json=body, headers=headers)
            return answer.status_code, answer.text[:300]

        start = {"workflow_type": "order", "workflow_id": "o-1"}
        assert (await call("start-workflow", start))[0] == 200
        wrong = {}
        for body in bodies(msgspec.inspect.type_info(VERBS[verb].request)):
            status, said = await call(verb, body)
            if status >= 500:
                wrong[repr(body)[:200]] = said
        assert not wrong
        assert (await call("start-workflow", start | {"workflow_id": "o-2"}))[0] == 200


async def test_a_place_before_the_first_event_is_the_callers_mistake_and_no_damage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as api:
        headers = {"Authorization": f"Bearer {TOKEN}", HEADER: str(VERSION)}
        await api.start("o-1")
        answer = await api.http.post(f"{PATH}get-history", json={"workflow_id": "o-1", "after": -2}, headers=headers)
        assert (answer.status_code, answer.json()["field"]) == (422, "after")
    assert "damaged" not in caplog.text
