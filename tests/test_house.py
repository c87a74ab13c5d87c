"""The house rules of the source that no linter knows."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src" / "backstay"

PAIRS = {
    "ActivityCancelled": "an event of history, and the error that authors catch",
    "ActivityTimedOut": "an event of history, and the error that authors catch",
    "WorkflowFailed": "an event of history, and the error that authors catch",
    "WorkflowTimedOut": "an event of history, and the error that authors catch",
    "Writer": "the same part of the store, in each dialect",
}
"""Class names that stand for two things on purpose, and why."""

NOT_YET = {
    "Access",
    "Activities",
    "ActivityFailed",
    "Admission",
    "Ahead",
    "Alarm",
    "AppendMessage",
    "Asked",
    "BackfillSchedule",
    "Begun",
    "Bridge",
    "Budget",
    "Call",
    "CancelWorkflow",
    "Cancellation",
    "CloseBody",
    "Commands",
    "CompleteBody",
    "Conditions",
    "Connection",
    "CreateBody",
    "CreateSchedule",
    "Definition",
    "DeleteSchedule",
    "Desk",
    "Ending",
    "Entry",
    "FailBody",
    "Heard",
    "HeartbeatBody",
    "Held",
    "Item",
    "Known",
    "Leaf",
    "Lines",
    "Member",
    "Part",
    "PauseSchedule",
    "Plan",
    "Problem",
    "Question",
    "Reader",
    "Reports",
    "ResumeSchedule",
    "Run",
    "Schedules",
    "Serving",
    "Session",
    "Sessions",
    "Signal",
    "SignalWithStart",
    "Standing",
    "Started",
    "Step",
    "Stream",
    "Together",
    "Token",
    "TriggerSchedule",
    "UpdateBody",
    "UpdateSchedule",
    "Wait",
    "Waiting",
    "Watch",
    "Worker",
    "Workflow",
    "_Field",
}
"""Class names that stand for more than one thing today. Only ever fewer."""


def places_of_classes() -> dict[str, list[str]]:
    """Every class at the top level of a module, and the modules that define one of its name."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(SOURCES.rglob("*.py")):
        module = ".".join(file.relative_to(SOURCES.parent).with_suffix("").parts).removesuffix(".__init__")
        for statement in ast.parse(file.read_text()).body:
            if isinstance(statement, ast.ClassDef):
                places[statement.name].append(module)
    return places


def test_a_class_name_stands_for_one_thing_in_the_whole_package() -> None:
    taken_twice = {name: modules for name, modules in places_of_classes().items() if len(modules) > 1}
    new = {name: modules for name, modules in taken_twice.items() if name not in PAIRS.keys() | NOT_YET}
    assert not new, f"these names are taken already, find others: {new}"
    single = sorted((PAIRS.keys() | NOT_YET) - taken_twice.keys())
    assert not single, f"these names stand for one thing now, take them off the list: {single}"


def test_few_class_names_are_pairs_on_purpose() -> None:
    assert len(PAIRS) < 10
    assert not PAIRS.keys() & NOT_YET
