"""Declared contracts: which arguments a message takes, by position or by name, and what is wrong with them per parameter."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.contract import arrange, check, find, fits

from .given import parameter

PAY = {
    "name": "pay",
    "parameters": [
        parameter("amount", "int"),
        parameter("currency", "string", required=False, default_available=True, default="EUR"),
        parameter("note", "?string", required=False, default_available=True, default=None, allows_null=True),
    ],
}
LOG = {"name": "log", "parameters": [parameter("level", "int"), parameter("rest", "string", variadic=True)]}
NONE: dict[str, Any] = {"name": "ping", "parameters": []}


@pytest.mark.contract("DECL-02", "DECL-03", "SIG-05", "UPD-15")
@pytest.mark.parametrize(
    ("contract", "values", "errors"),
    [
        (PAY, [1], {}),
        (PAY, [1, "USD"], {}),
        (PAY, [1, "USD", "thanks"], {}),
        (PAY, [1, "USD", None], {}),
        (PAY, [], {"amount": ["is missing"]}),
        (PAY, ["1"], {"amount": ["must be int, not string"]}),
        (PAY, [None], {"amount": ["must not be null"]}),
        (PAY, [1, None], {"currency": ["must not be null"]}),
        (PAY, [True, 2], {"amount": ["must be int, not bool"], "currency": ["must be string, not int"]}),
        (PAY, [1, "a", "b", "c"], {"arguments": ["1 more than the 3 that 'pay' takes"]}),
        (
            PAY,
            [None, "a", "b", "c", "d"],
            {"amount": ["must not be null"], "arguments": ["2 more than the 3 that 'pay' takes"]},
        ),
        (LOG, [1], {}),
        (LOG, [1, "a", "b"], {}),
        (LOG, [1, "a", 2, None], {"rest": ["must be string, not int", "must not be null"]}),
        (NONE, [], {}),
        (NONE, [1], {"arguments": ["1 more than the 0 that 'ping' takes"]}),
        ({"name": "bare"}, [], {}),
    ],
)
def test_arguments_by_position(contract: dict[str, Any], values: list[Any], errors: dict[str, list[str]]) -> None:
    assert check(contract, values) == errors


@pytest.mark.contract("DECL-03", "SIG-05", "UPD-15")
@pytest.mark.parametrize(
    ("named", "values", "errors"),
    [
        ({"amount": 1}, [1], {}),
        ({"note": "x", "amount": 1}, [1, "EUR", "x"], {}),
        ({"amount": 1, "note": None}, [1, "EUR", None], {}),
        ({}, None, {"amount": ["is missing"]}),
        ({"currency": "USD"}, None, {"amount": ["is missing"]}),
        ({"amount": None}, None, {"amount": ["must not be null"]}),
        ({"amount": "1"}, None, {"amount": ["must be int, not string"]}),
        ({"amount": 1, "sum": 2}, None, {"sum": ["is unknown; 'pay' takes amount, currency, note"]}),
        (
            {"sum": 2, "currency": 3},
            None,
            {
                "sum": ["is unknown; 'pay' takes amount, currency, note"],
                "amount": ["is missing"],
                "currency": ["must be string, not int"],
            },
        ),
    ],
)
def test_arguments_by_name_come_out_in_the_order_of_the_contract(
    named: dict[str, Any], values: list[Any] | None, errors: dict[str, list[str]]
) -> None:
    arranged, found = arrange(PAY, named)
    assert found == errors
    assert values is None or arranged == values


def test_a_message_without_parameters_knows_no_names() -> None:
    assert arrange(NONE, {"x": 1})[1] == {"x": ["is unknown; 'ping' takes no arguments"]}
    assert arrange(NONE, {}) == ([], {})


def test_a_default_that_is_null_is_no_null_that_a_caller_gave() -> None:
    parameters = [parameter("a", "int", required=False, default=None), parameter("b", "int")]
    assert arrange({"name": "m", "parameters": parameters}, {"b": 1}) == ([None, 1], {})


TYPES: dict[str, tuple[list[Any], list[Any]]] = {
    "int": ([0, -1], [True, 1.0, "1", None, [], {}]),
    "float": ([1.5, 1], [True, "1", None]),
    "string": (["", "a"], [1, b"a", None]),
    "bytes": ([b"a"], ["a", None]),
    "bool": ([True, False], [0, 1, "true", None]),
    "array": ([[], [1], {}, {"a": 1}], ["a", 1, None]),
    "object": ([{}, {"a": 1}], [[], 1, None]),
    "iterable": ([[], {}], ["a", 1, None]),
    "scalar": ([1, 1.5, "a", True], [[], {}, None]),
    "mixed": ([1, None, [], {}], []),
    "null": ([None], [0, "", []]),
    "?int": ([1, None], ["1", True]),
    "int|string": ([1, "a"], [1.5, None, []]),
    "int | null": ([1, None], ["a"]),
    "array&object": ([{}], [[]]),
    "shop.Order": ([1, None, {}, []], []),
}


@pytest.mark.parametrize("declared", TYPES)
def test_types(declared: str) -> None:
    good, bad = TYPES[declared]
    assert [value for value in good if not fits(declared, value)] == []
    assert [value for value in bad if fits(declared, value)] == []


@pytest.mark.parametrize(
    ("declared", "allows_null", "accepted"),
    [
        ("int", False, False),
        ("int", True, True),
        ("?int", False, True),
        ("int|null", False, True),
        ("mixed", False, True),
        (None, False, True),
    ],
)
def test_null_is_taken_where_the_parameter_or_its_type_allows_it(
    declared: str | None, allows_null: bool, accepted: bool
) -> None:
    contract = {"name": "m", "parameters": [parameter("p", declared, allows_null=allows_null)]}
    assert check(contract, [None]) == ({} if accepted else {"p": ["must not be null"]})


def test_a_contract_is_found_by_its_name() -> None:
    assert find([LOG, PAY], "pay") is PAY
    assert find([LOG], "pay") is None
    assert find(None, "pay") is None
