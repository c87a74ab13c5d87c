"""The summary of a run: its state, what it waits for, and whether it needs somebody, with the clock and the fleet of now."""

from __future__ import annotations

from typing import cast

from backstay.engine.facts import FactFinder
from backstay.kernel.views.why import attention
from backstay.protocol.summaries import shown_summary
from backstay.server.answers.runs import SummaryAnswer
from backstay.server.http_messages import HttpRequest
from backstay.server.published.control.parts.selected import check_parameters, part, selected_run
from backstay.server.published.control.workflow_json import listed
from backstay.server.server import Server


async def summary(server: Server, request: HttpRequest) -> SummaryAnswer:
    """The summary of a run."""
    check_parameters(request)
    row = await selected_run(server, request)
    found = await server.node.projector.summary(row)
    shown = {**listed(row), **shown_summary(found), "history_length": found.events, **server.fleet.of_run(row)}
    if found.closed_at is None:
        engine = server.engine
        has_engine = engine.holder or await engine.store.has_engine()
        facts = FactFinder(engine, has_engine=has_engine).of(found)
        shown["attention"] = attention(found, facts, server.now)
    return cast(SummaryAnswer, shown)


ROUTES = part("summary", summary)
