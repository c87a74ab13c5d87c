"""Names that were given up for better ones are refused, and the error says how to write them now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import backstay
from backstay import AsyncBackstay, AsyncClient, Backstay, Client, DefinitionError, activity, workflow
from backstay.sdk import former_names


def work() -> None:
    pass


@workflow
def flow() -> None:
    pass


SERVER = "http://127.0.0.1:1"  # nobody is asked

REFUSED: dict[str, list[tuple[Callable[[], Any], type[Exception]]]] = {
    "existing": [
        (lambda: Backstay(":memory:").options(existing="return_existing"), TypeError),  # type: ignore[call-arg]
        (lambda: AsyncBackstay(":memory:").options(existing="return_existing"), TypeError),  # type: ignore[call-arg]
        (lambda: Client(SERVER).options(existing="return_existing"), TypeError),  # type: ignore[call-arg]
        (lambda: AsyncClient(SERVER).options(existing="return_existing"), TypeError),  # type: ignore[call-arg]
    ],
    "heartbeat": [
        (lambda: activity(heartbeat="30s")(work), DefinitionError),  # type: ignore[call-overload]
        (lambda: activity(work).options(heartbeat="30s"), DefinitionError),  # type: ignore[call-arg]
    ],
    "crashes": [
        (lambda: activity(crashes=3)(work), DefinitionError),  # type: ignore[call-overload]
        (lambda: activity(work).options(crashes=3), DefinitionError),  # type: ignore[call-arg]
    ],
    "run_tasks": [
        (lambda: Backstay(":memory:", run_tasks=False), TypeError),  # type: ignore[call-arg]
        (lambda: AsyncBackstay(":memory:", run_tasks=False), TypeError),  # type: ignore[arg-type]
    ],
}


def test_an_option_under_its_former_name_is_refused_with_the_new_one() -> None:
    assert REFUSED.keys() == former_names.OPTIONS.keys()
    for name, calls in REFUSED.items():
        for call, error in calls:
            with pytest.raises(error) as refused:
                call()
            _, words = former_names.OPTIONS[name]
            assert str(refused.value).endswith(f"option {name!r}; {words}")


@pytest.mark.parametrize(
    "call",
    [
        lambda: flow.options(existing="return_existing"),  # type: ignore[call-arg]
        lambda: flow.options(heartbeat="30s"),  # type: ignore[call-arg]
        lambda: activity(run_tasks=False)(work),  # type: ignore[call-overload]
        lambda: Backstay(":memory:").options(heartbeat="30s"),  # type: ignore[call-arg]
        lambda: Backstay(":memory:").schedules.options(existing="return_existing"),  # type: ignore[call-arg]
        lambda: Backstay(":memory:", existing="return_existing"),  # type: ignore[call-arg]
    ],
)
def test_callers_are_not_sent_to_a_new_name_that_is_unknown_there_too(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"unknown .*; known are "):
        call()


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("from backstay import attempt", r"there is no backstay.attempt any more: write activity_info\(\)"),
        ("from backstay import aio", r"there is no backstay.aio any more: await the .step\(...\) of a call"),
        ("import backstay; backstay.attempt()", r"write activity_info\(\)"),
        ("import backstay; backstay.aio.sleep(1)", r"await the .step\(...\)"),
    ],
)
def test_a_former_name_of_the_package_is_refused_with_the_new_one(statement: str, hint: str) -> None:
    with pytest.raises(ImportError, match=hint):
        exec(statement, {})


def test_no_former_name_is_used_for_another_thing() -> None:
    assert not former_names.NAMES.keys() & set(backstay.__all__)


def test_an_option_of_an_app_that_never_existed_is_refused_with_those_that_do() -> None:
    with pytest.raises(TypeError, match=r"unknown option 'thread'; known are .*threads"):
        Backstay(":memory:", thread=3)  # type: ignore[call-arg]
