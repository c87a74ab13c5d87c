"""The options of `dw list` as a query, and its pages put together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, cast, get_args

import msgspec

from backstay.cli import format
from backstay.cli.problems import CliError
from backstay.cli.reading import ServerReader, StoreReader
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.present import CAUSES
from backstay.kernel.views.run_query import GROUPS, OPEN, RunQuery, Sort, Value
from backstay.kernel.views.summary import CLOSED_STATES, OPEN_STATES
from backstay.protocol.run_lists import PAGE_MAX, CountedRuns, CountRuns, ListedRun, SearchRuns

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BY = {"type": "workflow_type", "build": "compatibility"}


class Searched:
    """The results of a search of runs, page after page. `note`: that it did not look at everything."""

    def __init__(self, reader: StoreReader | ServerReader, query: RunQuery, view: str | None) -> None:
        self._reader = reader
        self._view = view
        self._query = query
        if view is not None and isinstance(reader, StoreReader):
            self._query = query.over(_stored_view(reader, query.namespace, view))
            self._view = None
        plain = RunQuery(namespace=query.namespace, sort=query.sort, descending=query.descending)
        self.filtered = view is not None or query != plain
        self.note = ""

    def runs(self, limit: int) -> list[ListedRun]:
        found: list[ListedRun] = []
        looked, place = 0, None
        while True:
            page = self._reader.ask(
                SearchRuns(
                    query=self._query,
                    after=place,
                    limit=min(limit - len(found), PAGE_MAX),
                    view=self._view,
                    namespace=self._query.namespace,
                )
            )
            found += page.runs
            looked += page.looked_at
            place = page.end
            if place is None or len(found) >= limit:
                break
        if place is None and not page.complete:
            self.note = f"sorted among the newest {looked} runs; add a filter to sort all that match"
        return found

    def count(self, by: str | None) -> CountedRuns:
        group_by = None if by is None else _BY.get(by, by)
        if group_by is not None and not group_by.startswith(("label:", "attribute:")):
            one_of("--by", group_by, GROUPS)
        return self._reader.ask(
            CountRuns(query=self._query, group_by=group_by, view=self._view, namespace=self._query.namespace)
        )


def asked(reader: StoreReader | ServerReader, namespace: str, given: dict[str, Any]) -> RunQuery:
    """The query that these options are."""
    fields: dict[str, tuple[str, ...]] = {}
    for option, field in (
        ("types", "workflow_type"),
        ("ids", "instance_id"),
        ("business_key", "business_key"),
        ("queue", "queue"),
        ("build", "compatibility"),
    ):
        if given[option]:
            fields[field] = tuple(given[option])
    if given["states"]:
        fields["state"] = tuple(one_of("--state", state, (*OPEN_STATES, *CLOSED_STATES)) for state in given["states"])
    if given["attention"]:
        fields["attention"] = tuple(one_of("--attention", cause, CAUSES) for cause in given["attention"])
    match given["status"]:
        case None:
            pass
        case "open":
            fields["status"] = OPEN
        case "blocked":
            fields["status"], fields["liveness_state"] = OPEN, ("workflow_replay_blocked",)
        case status:
            fields["status"] = (status,)
    times = {
        name: None if given[option] is None else moment(f"--{option.replace('_', '-')}", given[option])
        for name, option in (
            ("started_after", "since"),
            ("started_before", "until"),
            ("closed_after", "closed_since"),
            ("closed_before", "closed_until"),
        )
    }
    for what, option in (("started", "--until"), ("closed", "--closed-until")):
        after, before = times[f"{what}_after"], times[f"{what}_before"]
        if after is not None and before is not None and before <= after:
            raise CliError(f"{option} is not after the start of the time range, so nothing can match")
    types = _attribute_types(reader, namespace)
    return RunQuery(
        namespace=namespace,
        q=given["q"] or None,
        fields=fields,
        labels=_pairs("--label", given["labels"]),
        attributes={
            name: tuple(one for text in texts for one in attribute_values(text, types.get(name)))
            for name, texts in _pairs("--attribute", given["attributes"]).items()
        },
        sort=cast(Sort, one_of("--sort", given["sort"], get_args(Sort))),
        descending=not given["reverse"],
        started_after=times["started_after"],
        started_before=times["started_before"],
        closed_after=times["closed_after"],
        closed_before=times["closed_before"],
    )


def one_of(option: str, value: str, allowed: Sequence[str]) -> str:
    if value in allowed:
        return value
    near = get_close_matches(value, allowed, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise CliError(f"{option} is one of {', '.join(allowed)}, not {value!r}{meant}")


def moment(option: str, text: str) -> Micros:
    """A time, in this time zone unless it says otherwise, or how long ago."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return format.now() - round(float(ago[1]) * _UNITS[ago[2]] * SECOND)
    try:
        return round(datetime.fromisoformat(text.strip()).astimezone().timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise CliError(
            f"{option} is a time like 2026-01-31T12:00 or how long ago, like 15m or 2h, not {text!r}"
        ) from None


def attribute_values(text: str, kind: str | None) -> tuple[Value, ...]:
    """The possible values of a text as a search attribute. Of an attribute that is not registered, every meaning
    counts."""
    number = text if re.fullmatch(r"-?\d{1,18}(\.\d+)?", text) else None
    meanings: list[Value] = [] if kind in ("int", "double", "bool") else [text]
    if number is not None and kind in (None, "int", "double"):
        meanings.append(float(number) if "." in number else int(number))
    if text.lower() in ("true", "false") and kind in (None, "bool"):
        meanings.append(text.lower() == "true")
    return tuple(meanings)


def _pairs(option: str, given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CliError(f"{option} is KEY=VALUE, not {text!r}")
        found[name] = (*found.get(name, ()), value)
    return found


def _attribute_types(reader: StoreReader | ServerReader, namespace: str) -> dict[str, str]:
    if not isinstance(reader, StoreReader):
        return {}
    entries = reader.get(reader.store.kept("search_attribute"))
    return {
        entry.name: msgspec.json.decode(entry.body, type=str)
        for entry in entries
        if entry.namespace == namespace and entry.body is not None
    }


def _stored_view(reader: StoreReader, namespace: str, id: str) -> RunQuery:
    """The filters of a saved view of this database."""
    from backstay.server.http.errors import HttpError
    from backstay.server.operators.run_filters import query_of
    from backstay.server.operators.visibility_contract import supported
    from backstay.server.registries.saved_views import SYSTEM, SavedView

    view = SYSTEM.get(id)
    for entry in reader.get(reader.store.kept("saved_view")):
        if (entry.namespace, entry.name) == (namespace, id) and entry.body is not None:
            view = msgspec.json.decode(entry.body, type=SavedView)
    if view is None:
        raise CliError(f"there is no saved view {id!r} in namespace {namespace!r}")
    try:
        supported(view.version)
        return query_of(namespace, view.bucket, view.asks, _attribute_types(reader, namespace), (0, 0))
    except HttpError as wrong:
        raise CliError(wrong.message) from None
