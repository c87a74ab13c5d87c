"""The query of a list: equality of fields and search attributes, joined by AND."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.server.http.errors import HttpError
from backstay.server.operators.visibility import parse

from .kit import Api, serving


async def several(api: Api) -> None:
    await api.register()
    for name, type in (("customer", "keyword"), ("amount", "int"), ("vip", "bool")):
        await api.control("POST", "/search-attributes", {"name": name, "type": type})
    await api.start("a", search_attributes={"customer": "ada", "amount": 1, "vip": True}, business_key="k1")
    await api.start("b", search_attributes={"customer": "ada", "amount": 2, "vip": False})
    await api.start("c", search_attributes={"customer": "bob's", "amount": 1}, build_id="b1", task_queue="far")
    task = await api.poll()
    await api.complete(task, {"type": "complete_workflow"})
    assert task["workflow_id"] == "a"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("customer = 'ada'", "ab"),
        ("customer = 'ada' AND amount = 1", "a"),
        ("customer='ada' and vip=false", "b"),
        ('customer = "bob\'s"', "c"),
        ("customer = 'bob\\'s'", "c"),
        ("amount = 1.0", "ac"),
        ("amount = '1'", ""),
        ("Status = 'running'", "bc"),
        ("Status = 'completed'", "a"),
        ("Status = 'completed' AND Status = 'failed'", ""),
        ("WorkflowId = 'b'", "b"),
        ("WorkflowId = 'b' AND WorkflowId = 'c'", ""),
        ("WorkflowType = 'order' AND TaskQueue = 'far'", "c"),
        ("BuildId = 'b1'", "c"),
        ("BusinessKey = 'k1'", "a"),
        ("", "abc"),
    ],
)
async def test_a_query_finds_what_equals_all_of_it(query: str, found: str) -> None:
    async with serving() as api:
        await several(api)
        answer = await api.control("GET", "/workflows", params={"query": query})
        assert sorted(w["workflow_id"] for w in answer.json()["workflows"]) == sorted(found), answer.text
        both = await api.control("GET", "/workflows", params={"query": query, "status": "completed"})
        assert {w["workflow_id"] for w in both.json()["workflows"]} == set(found) & {"a"}


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("customer > 'ada'", "invalid_visibility_query"),
        ("customer = ada", "invalid_visibility_query"),
        ("customer = 'ada' OR amount = 1", "invalid_visibility_query"),
        ("customer = 'ada' AND", "invalid_visibility_query"),
        ("= 1", "invalid_visibility_query"),
        ("WorkflowId = 1", "invalid_visibility_query"),
        ("Status = 'gone'", "invalid_visibility_query"),
        ("x" * 5000, "invalid_visibility_query"),
        ("nobody = 1", "unsupported_visibility_field"),
        ("StartTime = '2026-01-01'", "unsupported_visibility_predicate"),
    ],
)
async def test_a_wrong_query_says_what_is_wrong_with_it(query: str, reason: str) -> None:
    async with serving() as api:
        await several(api)
        wrong = await api.control("GET", "/workflows", params={"query": query})
        assert (wrong.status_code, wrong.json()["reason"], wrong.json()["field"]) == (422, reason, "query")


@pytest.mark.parametrize(
    ("text", "terms"),
    [("a = 1 AND b = -2.5", [("a", 1), ("b", -2.5)]), ("a=true AND b='AND c = 1'", [("a", True), ("b", "AND c = 1")])],
)
def test_the_grammar(text: str, terms: list[tuple[str, Any]]) -> None:
    assert parse(text) == terms
    with pytest.raises(HttpError):
        parse(text + " trailing")
