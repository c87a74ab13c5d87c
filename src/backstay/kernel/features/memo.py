"""Memo: notes on a run that are returned with it and never searched. Values are payloads; None removes a key."""

from __future__ import annotations

import re

from backstay.kernel.command import Command, StepCommand
from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Outcome, Plain, Shape
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.words import RUN, Phrase, Story, Words

_KEY = re.compile(r"(?!-?[0-9]+$)[A-Za-z0-9_.:-]{1,64}")
MAX_KEYS = 100


class UpsertMemo(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="upsert_memo"):
    entries: dict[str, bytes | None]


class MemoUpserted(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    entries: dict[str, bytes | None]
    merged: dict[str, bytes]


class Memo:
    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}


def check(entries: dict[str, bytes] | dict[str, bytes | None]) -> None:
    if len(entries) > MAX_KEYS:
        raise Refused("invalid_memo", f"a memo has at most {MAX_KEYS} keys, not {len(entries)}", field="memo")
    for key in entries:
        if not _KEY.fullmatch(key):
            raise Refused(
                "invalid_memo",
                f"memo key {key!r}: use 1 to 64 of A-Z a-z 0-9 _ . : - and not only digits",
                field=f"memo.{key}",
            )


def size(values: dict[str, bytes]) -> int:
    return sum(len(key) + len(blob) for key, blob in values.items())


def merge(values: dict[str, bytes], entries: dict[str, bytes | None]) -> dict[str, bytes]:
    merged = {**values, **entries}
    return {key: blob for key, blob in sorted(merged.items()) if blob is not None}


def _check(turn: Turn, command: UpsertMemo) -> None:
    check(command.entries)


def apply(turn: Turn, command: UpsertMemo) -> None:
    merged = merge(turn.run.part(Memo).values, command.entries)
    turn.record(MemoUpserted(sequence=turn.run.step + 1, entries=command.entries, merged=merged))


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    upserts = [command for command in commands if isinstance(command, UpsertMemo)]
    if not upserts:
        return None
    merged = turn.run.part(Memo).values
    for command in upserts:
        merged = merge(merged, command.entries)
    return over_count("memo_size", size(merged), turn.features.limits.memo_size)


def _upserted(run: Run, event: MemoUpserted, entry: Recorded) -> None:
    run.part(Memo).values = dict(event.merged)


def _shape(event: MemoUpserted) -> Shape:
    return Shape("memo upsert")


def _outcome(event: MemoUpserted) -> Outcome:
    return Plain(None)


def _say_upserted(story: Story, event: MemoUpserted) -> Phrase:
    return Phrase("◆", f"memo set: {', '.join(event.entries)}")


FEATURE = Feature(
    name="memo",
    deciding=Deciding(
        commands={UpsertMemo: CommandRule(_check, apply)},
        limits=_limits,
    ),
    history=History(
        evolve={MemoUpserted: _upserted},
        shapes={MemoUpserted: _shape},
        outcomes={MemoUpserted: _outcome},
    ),
    words={MemoUpserted: Words(RUN, _say_upserted)},
)
