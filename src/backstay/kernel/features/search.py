"""Search attributes: small typed values on a run that lists can filter by. None removes a key."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from backstay.kernel.command import Command, StepCommand
from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Outcome, Plain, Shape
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.words import RUN, Phrase, Story, Words

_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
MAX_TEXT = 2048
MAX_KEYS = 100


class UpsertSearchAttributes(
    StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="upsert_search_attributes"
):
    attributes: dict[str, Any]


class SearchAttributesUpserted(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    attributes: dict[str, Any]
    merged: dict[str, Any]


class SearchAttributes:
    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}


def valid_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


def check(attributes: dict[str, Any]) -> None:
    if len(attributes) > MAX_KEYS:
        raise Refused(
            "invalid_search_attributes", f"at most {MAX_KEYS} search attributes per run", field="search_attributes"
        )
    for key, value in attributes.items():
        if not valid_key(key):
            raise Refused(
                "invalid_search_attributes",
                f"search attribute {key!r}: use 1 to 64 of A-Z a-z 0-9 _ . : -",
                field=f"search_attributes.{key}",
            )
        if not _storable(value):
            raise Refused(
                "invalid_search_attributes",
                f"search attribute {key!r} is {type(value).__name__}; use text up to {MAX_TEXT} characters,"
                " a number, a boolean, a list of texts, or None to remove it",
                field=f"search_attributes.{key}",
            )


def size(values: dict[str, Any]) -> int:
    return len(msgspec.json.encode(values)) if values else 0


def merge(values: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    merged = {**values, **attributes}
    return {key: value for key, value in sorted(merged.items()) if value is not None}


def _storable(value: object) -> bool:
    match value:
        case None | bool():
            return True
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return math.isfinite(value)
        case str():
            return len(value) <= MAX_TEXT
        case list():
            return all(isinstance(item, str) and len(item) <= 255 for item in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return False


def _check(turn: Turn, command: UpsertSearchAttributes) -> None:
    check(command.attributes)


def apply(turn: Turn, command: UpsertSearchAttributes) -> None:
    merged = merge(turn.run.part(SearchAttributes).values, command.attributes)
    turn.record(SearchAttributesUpserted(sequence=turn.run.step + 1, attributes=command.attributes, merged=merged))
    turn.index()


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    upserts = [command for command in commands if isinstance(command, UpsertSearchAttributes)]
    if not upserts:
        return None
    merged = turn.run.part(SearchAttributes).values
    for command in upserts:
        merged = merge(merged, command.attributes)
    return over_count("search_attribute_size", size(merged), turn.features.limits.search_attribute_size)


def _upserted(run: Run, event: SearchAttributesUpserted, entry: Recorded) -> None:
    run.part(SearchAttributes).values = dict(event.merged)


def _shape(event: SearchAttributesUpserted) -> Shape:
    return Shape("search attributes upsert")


def _outcome(event: SearchAttributesUpserted) -> Outcome:
    return Plain(None)


def _say_upserted(story: Story, event: SearchAttributesUpserted) -> Phrase:
    return Phrase("◆", f"search attributes set: {story.form.shortened(repr(event.attributes))}")


FEATURE = Feature(
    name="search",
    deciding=Deciding(
        commands={UpsertSearchAttributes: CommandRule(_check, apply)},
        limits=_limits,
    ),
    history=History(
        evolve={SearchAttributesUpserted: _upserted},
        shapes={SearchAttributesUpserted: _shape},
        outcomes={SearchAttributesUpserted: _outcome},
    ),
    words={SearchAttributesUpserted: Words(RUN, _say_upserted)},
)
