"""The recorded steps that the code has not taken yet, by number. A replay is compared with them.

A step of another shape than the recorded one, a recorded step that the code does not take, and a step without a record before
recorded ones, make a `Block` that shows history and code side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.feature import Outcome, Shape
from backstay.kernel.machine import Machine
from backstay.kernel.task import NO_HISTORY, Block

if TYPE_CHECKING:
    from backstay.sdk.replay.operation import Operation

TOPOLOGY = "parallel all barrier matching current topology"


class RecordedStep(NamedTuple):
    shape: Shape
    event: StepEvent
    types: list[str]
    outcome: Outcome | None

    def describe(self) -> str:
        detail = self.shape.detail
        return self.shape.name if detail is None else f"{self.shape.name} {detail(self.event)}"


class RecordedSteps(dict[int, RecordedStep]):
    __slots__ = ("_asked", "_fingerprint", "_machine")

    def __init__(self, machine: Machine, fingerprint: str | None) -> None:
        self._machine = machine
        self._fingerprint = fingerprint
        self._asked: list[tuple[int, str]] = []  # the latest steps of the code, shown beside history

    def note(self, entry: Recorded, event: StepEvent) -> None:
        """Note the recorded event of a step."""
        shape = self._machine.shape(event)
        if shape is None:
            return
        known = self.get(event.sequence)
        outcome = self._machine.outcome(event)
        if known is None:
            self[event.sequence] = RecordedStep(shape, event, [entry.type], outcome)
            return
        known.types.append(entry.type)
        if outcome is not None and known.outcome is None:
            self[event.sequence] = known._replace(outcome=outcome)

    def asked(self, step: int, operation: Operation) -> RecordedStep | None:
        """Remove and return the recorded events of a step that the code takes now."""
        self._asked = [*self._asked[-7:], (step, operation.describe())]
        return self.pop(step, None)

    def compare(self, step: int, operation: Operation, known: RecordedStep) -> Block | None:
        """Return the block of a step that differs from the recorded one, or None if it does not."""
        shape = known.shape
        detail = None if shape.detail is None else shape.detail(known.event)
        if shape.name == operation.shape and (detail is None or operation.detail is None or detail == operation.detail):
            changed = operation.differs(known.event)
            return None if changed is None else self._drifted(step, changed, known, operation)
        self[step] = known
        return self._mismatch(step, operation.describe(), operation.shape)

    def hole(self, step: int, operation: Operation) -> Block | None:
        """Return the block of a step without a record while history has later ones, or None if it may be new."""
        return None if max(self) < step else self._mismatch(step, operation.describe(), operation.shape)

    def unreached(self, ended: bool) -> Block | None:
        """Return the block of recorded steps that the code did not take."""
        step = min(self)
        if ended and self[step].shape.name == "continue as new":
            return None
        asked = "the end of the workflow" if ended else "nothing (it waits)"
        self._asked.append((step, asked))
        return self._mismatch(step, asked, "no step")

    def _drifted(self, step: int, changed: str, known: RecordedStep, operation: Operation) -> Block:
        waits = operation.shape == "condition wait"
        return Block(
            message=f"step {step} is not the one in history: {changed}",
            type="ConditionWaitDefinitionMismatch" if waits else "NonDeterministicReplayError",
            replay_blocked=True,
            reason="condition_wait_definition_mismatch" if waits else "history_shape_mismatch",
            workflow_sequence=step,
            expected_history_shape=known.shape.name if waits else TOPOLOGY,
            recorded_event_types=known.types,
            fingerprint=self._fingerprint,
        )

    def _mismatch(self, step: int, asked: str, shape: str) -> Block:
        recorded = self.get(step)
        has, types = (NO_HISTORY, [NO_HISTORY]) if recorded is None else (recorded.describe(), recorded.types)
        rows: dict[int, tuple[str, str]] = {}
        for number, text in self._asked:
            known = self.get(number)
            rows[number] = (text if known is None else known.describe(), text)
        rows[step] = (has, asked)
        for number in range(step + 1, step + 3):
            known = self.get(number)
            if known is not None:
                rows.setdefault(number, (known.describe(), ""))
        return Block(
            message=f"replay diverged at step {step}: history has {has}, the code asked for {asked}",
            type="NonDeterministicReplayError",
            replay_blocked=True,
            reason="history_shape_mismatch",
            workflow_sequence=step,
            expected_history_shape=shape,
            recorded_event_types=types,
            difference=[(f"{number}: {left}", right) for number, (left, right) in sorted(rows.items())],
            fingerprint=self._fingerprint,
        )
