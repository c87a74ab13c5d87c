"""Side effects: code runs once and its value is recorded; replay takes the recorded value."""

from __future__ import annotations

from backstay.kernel.command import Command, StepCommand
from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Outcome, Shape, Value, nothing_to_check
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.words import About, Phrase, Story, Words


class RecordSideEffect(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="record_side_effect"):
    result: bytes


class SideEffectRecorded(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    """`stream_name` (ours): code has written `stream_items` items to that stream; 0 means that it ended the stream."""

    result: bytes
    stream_name: str | None = None
    stream_items: int = 0


def apply(turn: Turn, command: RecordSideEffect) -> None:
    turn.record(SideEffectRecorded(sequence=turn.run.step + 1, result=command.result))


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    sizes = [len(command.result) for command in commands if isinstance(command, RecordSideEffect)]
    return over_count("payload_size", max(sizes), turn.features.limits.payload_size) if sizes else None


def _recorded(run: Run, event: SideEffectRecorded, entry: Recorded) -> None:
    """The value is in history only."""


def _shape(event: SideEffectRecorded) -> Shape:
    return Shape("side effect")


def _outcome(event: SideEffectRecorded) -> Outcome:
    return Value(event.result)


def _say_recorded(story: Story, event: SideEffectRecorded) -> Phrase:
    stream, items = event.stream_name, event.stream_items
    if stream is None:
        return Phrase("◆", f"side effect recorded → {story.form.value(event.result)}")
    if items == 0:
        return Phrase("≋", f"stream {stream!r} ended")
    return Phrase("≋", f"{items} {'item' if items == 1 else 'items'} emitted to stream {stream!r}")


FEATURE = Feature(
    name="side_effect",
    deciding=Deciding(
        commands={RecordSideEffect: CommandRule(nothing_to_check, apply)},
        limits=_limits,
    ),
    history=History(
        evolve={SideEffectRecorded: _recorded},
        shapes={SideEffectRecorded: _shape},
        outcomes={SideEffectRecorded: _outcome},
    ),
    words={SideEffectRecorded: Words(About("side_effect", "workflow_step", "sequence"), _say_recorded)},
)
