"""Exported histories against code, in tests: `backstay.testing.replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, Signal, activity, sleep, wait, workflow
from backstay.codec import avro
from backstay.protocol.redaction import FRAME
from backstay.testing import TestBackstay, UnreadableHistory, replay

approved = Signal[str]("approved")
paid: list[int] = []


@activity(type="pay")
def pay(cents: int) -> str:
    paid.append(cents)
    return f"paid {cents}"


@workflow(type="order")
def order(cents: int) -> str:
    said = pay(cents)
    sleep("3d")
    return f"{said}, approved by {wait(approved)}"


@workflow(type="order")
async def same_order(cents: int) -> str:
    said = pay(cents + 1)
    await sleep.step("4d")
    return f"{said}, {await wait.step(approved)}"


@workflow(type="order")
def other_order(cents: int) -> str:
    sleep("3d")
    return pay(cents)


@pytest.fixture
def exports() -> list[dict[str, Any]]:
    """An order that sleeps, one that waits, and one that has ended."""
    with TestBackstay(register=[order, pay]) as app:
        found: list[dict[str, Any]] = []
        for id, days, name in (("sleeps", "1d", None), ("waits", "4d", None), ("ended", "4d", "ann")):
            handle = app.start(order, id, 5)
            app.advance(days)
            if name is not None:
                handle.signal(approved, name)
                handle.result()
            found.append(app.export(id))
    paid.clear()
    return found


def test_runs_are_replayed_to_where_they_stand(exports: list[dict[str, Any]]) -> None:
    assert replay(exports, [order, pay]).fits
    assert replay(exports, [same_order, pay]).fits, "arguments and lengths may differ"
    found = replay(exports, [other_order, pay])
    assert [run.workflow_id for run in found.blocked] == ["sleeps", "waits", "ended"]
    assert found.blocked[0].difference == [("1: activity pay", "timer"), ("2: timer", "")]
    assert paid == []


def test_files_folders_and_apps_are_taken(exports: list[dict[str, Any]], tmp_path: Path) -> None:
    for export in exports:
        (tmp_path / f"{export['workflow']['instance_id']}.json").write_text(json.dumps(export))
    assert replay(tmp_path / "ended.json", Backstay("nowhere.db", [order, pay])).runs == 1
    assert replay(str(tmp_path), TestBackstay(register=[order, pay])).runs == 3
    assert not replay(tmp_path, [pay]).fits


def test_a_history_that_was_changed_is_refused(exports: list[dict[str, Any]]) -> None:
    exports[0]["workflow"]["run_number"] = 2
    with pytest.raises(UnreadableHistory, match="its checksum does not match"):
        replay(exports[0], [order, pay])


def test_a_redacted_history_is_replayed_if_its_payloads_are_payloads() -> None:
    def emptied(value: str, context: dict[str, Any]) -> str:
        if not value.startswith(FRAME):
            return "gone"
        plain = avro.decode(avro.from_text(value))
        return avro.to_text(
            avro.encode(["x" if isinstance(one, str) else one for one in plain] if isinstance(plain, list) else "x")
        )

    for redactor, fits in ((emptied, True), (lambda value, context: "gone", False)):
        with TestBackstay(register=[order, pay], export_redactor=redactor) as app:
            app.start(order, "o-1", 5)
            app.advance("1d")
            export = app.export("o-1")
        if fits:
            assert replay(export, [order, pay]).fits
        else:
            with pytest.raises(UnreadableHistory, match=r"it is redacted, and event \d+ has no payload any more"):
                replay(export, [order, pay])
