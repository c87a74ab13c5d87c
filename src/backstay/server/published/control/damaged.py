"""The detail of a run whose history is damaged: its readable part, as evidence only (`protocol/damaged_run.py`)."""

from __future__ import annotations

from typing import Any, get_args

from msgspec.structs import asdict

from backstay.engine.reading.run_remains import remains
from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.operator_command import PartList
from backstay.kernel.views.actions import UNSUPPORTED, blocked_part_actions
from backstay.protocol.damaged_run import about_damage, evidence
from backstay.protocol.detail_pages import SHOWN, collections, fit, page_of
from backstay.server.published.control.detail_answer import DetailAnswer
from backstay.server.published.control.workflow_json import undescribed
from backstay.server.server import Server


async def damaged_detail(server: Server, row: RunRow, damage: HistoryDamaged) -> DetailAnswer:
    """The same fields as of any other run: those that need the whole history are empty."""
    await server.node.damaged.noticed(row)
    found = await remains(server.engine, row, damage)
    lists = evidence(found, server.now)
    totals = {name: len(entries) for name, entries in lists.items()}
    shown = page_of(row.length) or SHOWN
    for name, entries in lists.items():
        lists[name] = entries[:shown] if name == "waits" else entries[-shown:]
    for part in get_args(PartList):
        lists[part] = [entry | blocked_part_actions(part, UNSUPPORTED) for entry in lists[part]]
    lists |= {"logs": [], "chartData": []}
    totals |= {"logs": 0, "chartData": 0}
    omitted = fit(lists, frozenset(lists.keys() - {"waits"}), frozenset({"failures", "children"}))
    lists |= {"exceptions": lists["failures"], "continuedWorkflows": lists["children"]}
    totals |= {"exceptions": totals["failures"], "continuedWorkflows": totals["children"]}
    about: dict[str, Any] = asdict(undescribed(server, row)) | lists | about_damage(found)
    return DetailAnswer(**about, collections=collections(lists, totals, {}), payloads_omitted=omitted)
