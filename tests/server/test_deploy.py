"""The Prometheus rules and the Grafana dashboard of `deploy/` name only metrics and labels that a live server has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .kit import Api, serving
from .test_prometheus import scrape

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "backstay.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "backstay.json"

OF_PROMETHEUS = {"up": {"job", "instance"}}
OF_EVERY_TARGET = {"job", "instance"}

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^{}]*)\})")
_WORDS = {"and", "or", "unless", "bool", "offset"}


def expressions_of_rules() -> Iterator[str]:
    lines = RULES.read_text("utf-8").splitlines()
    alerts = [line for line in lines if line.strip().startswith("- alert:")]
    found = [line.partition("expr:")[2].strip() for line in lines if line.strip().startswith("expr:")]
    assert len(found) == len(alerts) > 0, "each alert has its expression on one line"
    yield from found


def expressions_of_dashboard() -> Iterator[str]:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            yield f"count by ({label}) ({metric})"


def names_in(expression: str) -> tuple[set[str], set[tuple[str, str]], set[str]]:
    """The metrics of an expression, the labels that its selectors name with their metric, and those it groups by."""
    text = _STRING.sub('""', expression)
    grouped = {label.strip() for labels in _GROUPING.findall(text) for label in labels.split(",") if label.strip()}
    selected = {
        (metric, label)
        for metric, labels in _SELECTOR.findall(text)
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels)
    }
    text = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", " ", _GROUPING.sub(" ", text))
    words = {name for name in re.findall(r"[a-zA-Z_:][\w:]*(?!\w|\s*\()", text) if name not in _WORDS}
    return words - {"by", "without"}, selected, grouped


def test_names_are_found_in_expressions() -> None:
    told = names_in('max by (a, b) (rate(x_total{c="d{", e=~"$f"}[5m])) / on (g) y_sum > 0 and up')
    assert told == ({"x_total", "y_sum", "up"}, {("x_total", "c"), ("x_total", "e")}, {"a", "b", "g"})


def described(text: str) -> dict[str, set[str]]:
    """The metrics of a scrape by the names that expressions use, with the labels of their samples."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            for end in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
                found[name + end] = set()
        elif not line.startswith("#"):
            name = re.split(r"[{ ]", line)[0]
            found[name] |= set(re.findall(r'(\w+)="', line))
    return found


async def something_of_everything(api: Api) -> dict[str, set[str]]:
    """A scrape of a server with work that waits, that failed and that nobody takes."""
    await api.register()
    await api.start("done")
    await api.complete(await api.poll(), {"type": "complete_workflow"})
    await api.start("waits")
    await api.complete(await api.poll(), {"type": "schedule_activity", "activity_type": "charge"})
    await api.control("POST", "/workflows", {"workflow_type": "other", "workflow_id": "x", "task_queue": "nowhere"})
    return described((await scrape(api)).text)


@pytest.mark.parametrize("expressions", [expressions_of_rules, expressions_of_dashboard])
async def test_a_live_server_has_every_metric_and_label_that_is_named(expressions: Any) -> None:
    async with serving() as api:
        live = await something_of_everything(api) | OF_PROMETHEUS
    anywhere = {label for labels in live.values() for label in labels} | OF_EVERY_TARGET
    for expression in expressions():
        metrics, selected, grouped = names_in(expression)
        assert metrics <= live.keys(), f"no server has {metrics - live.keys()}: {expression}"
        for metric, label in selected:
            assert label in live[metric] | OF_EVERY_TARGET, f"{metric} has no label {label}: {expression}"
        of_one = set[str]().union(*(live[metric] for metric in metrics))
        gone = {"node"} if "backstay_nodes_gone" in metrics else set[str]()  # only PostgreSQL has nodes that go
        assert grouped - gone <= (of_one | OF_EVERY_TARGET | {"le"}) & (anywhere | {"le"}), expression


def test_a_panel_shows_each_expression_once() -> None:
    found = list(expressions_of_dashboard())
    assert len(found) == len(set(found)) > 15


async def test_each_red_cause_is_an_alert() -> None:
    """The rule of the causes fires for whatever is red, with the number that the list of causes has."""
    async with serving() as api:
        await something_of_everything(api)
        causes = (await api.control("GET", "/causes")).json()["causes"]
        text = (await scrape(api)).text
    red: dict[str, int] = {}
    for cause in causes:
        if cause["severity"] == "error":
            red[cause["name"]] = red.get(cause["name"], 0) + cause["count"]
    assert "no_worker" in red
    for name, count in red.items():
        assert f'backstay_causes{{namespace="default",cause="{name}",severity="error"}} {count}' in text
    assert any('backstay_causes{severity="error"}' in expression for expression in expressions_of_rules())
