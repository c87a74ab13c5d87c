"""The answer of the detail of a run."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.protocol.detail_pages import ShownPart
from backstay.server.published.control.workflow_json import DescribedRun


class HistoryDamage(Struct, frozen=True, kw_only=True):
    sequence: Annotated[int, Meta(description="The first event that cannot be read.")]
    message: str


Entries = list[dict[str, Any]]


class DetailAnswer(DescribedRun, frozen=True, kw_only=True):
    """A run with everything that happened in it. Of a long run each list has a page; `collections` says how much that is."""

    waits_projection_source: str
    timeline_projection_source: str
    timers_projection_source: str
    lineage_projection_source: str
    commands: Entries
    signals: Entries
    updates: Entries
    waits: Entries
    tasks: Entries
    timeline: Entries
    activities: Entries
    timers: Entries
    failures: Entries
    parents: Entries
    children: Entries
    logs: Entries
    chartData: Entries  # noqa: N815  as the contract names it
    exceptions: Entries
    continuedWorkflows: Entries  # noqa: N815
    declared_query_targets: Entries
    declared_signal_targets: Entries
    declared_update_targets: Entries
    declared_queries: list[str]
    declared_query_contracts: Entries
    declared_signals: list[str]
    declared_signal_contracts: Entries
    declared_updates: list[str]
    declared_update_contracts: Entries
    open_wait_count: int
    workflow_determinism_source: str
    replay_block: dict[str, Any] | None
    history_damage: HistoryDamage | None
    collections: dict[str, ShownPart]
    payloads_omitted: Annotated[int, Meta(description="How many large payloads were left out.")]
