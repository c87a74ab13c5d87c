"""The `patched()` line that would keep a blocked run, tried on the run itself.

Code and history part at one line. Three small changes of the code explain most of what is seen there: the line is new, it stands
where another step stood, or a step before it is gone. Each is tried by replaying the run as if `patched()` were false at that line,
as it would be in this run. A change that lets the replay fit is what to put under `patched()`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Struct

from backstay.kernel.feature import Outcome, Plain, Value
from backstay.sdk.replay.code_place import CodePlace, place_in
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.operation import Operation
from backstay.sdk.replay.workflow_greenlet import WorkflowGreenlet, current_greenlet


class PatchHint(Struct, frozen=True):
    """Lines of code. `tried`: a run was replayed as they say, and fits."""

    lines: list[str]
    tried: bool


class Change(NamedTuple):
    """What the code at a line does in a run in which `patched()` is false there."""

    leaves_out_line: bool
    takes_recorded: bool  # the step that history has there is taken


ADDED = Change(leaves_out_line=True, takes_recorded=False)
REPLACED = Change(leaves_out_line=True, takes_recorded=True)
REMOVED = Change(leaves_out_line=False, takes_recorded=True)


class PatchedRun(LiveRun):
    """A live run whose code was changed at one line, for runs that are older than the line."""

    change: Change
    place: CodePlace
    has: str  # the step of history there, in words

    @classmethod
    def made(cls, change: Change, place: CodePlace, has: str, *args: Any, **kwargs: Any) -> PatchedRun:
        made = cls(*args, **kwargs)
        made.change, made.place, made.has = change, place, has
        return made

    def call(self, operation: Operation, greenlet: WorkflowGreenlet) -> Outcome:
        if not self._is_changed(greenlet):
            return super().call(operation, greenlet)
        step: int | None = self._recorded_step()
        if step is None:
            return _nothing(operation)
        self._waiting[step] = greenlet
        return self.suspend(greenlet)

    def ask(self, operation: Operation, answer: Callable[[Outcome], None]) -> int:
        if not self._is_changed(current_greenlet()):
            return super().ask(operation, answer)
        step = self._recorded_step()
        if step is None:
            answer(_nothing(operation))
            return self.step
        self._waiting[step] = answer
        return step

    def immediate(self, operation: Operation, decide: Callable[[int], Any]) -> Outcome | None:
        if self._is_changed(current_greenlet()):
            self._recorded_step()
            return Plain(None)
        return super().immediate(operation, decide)

    def _ask(self, operation: Operation, greenlet: WorkflowGreenlet | None) -> int:
        if not self.change.leaves_out_line and operation.describe() != self.has:
            self._recorded_step()
        return super()._ask(operation, greenlet)

    def _is_changed(self, greenlet: WorkflowGreenlet | None) -> bool:
        return self.change.leaves_out_line and greenlet is not None and place_in(greenlet) == self.place

    def _recorded_step(self) -> int | None:
        """Take the next step of history instead of the code, if the change does that and history has it here."""
        known = self._recorded.get(self.step + 1) if self._recorded and self.change.takes_recorded else None
        if known is None or known.describe() != self.has:
            return None
        assert self._recorded is not None
        self.step += 1
        del self._recorded[self.step]
        return self.step


def _nothing(operation: Operation) -> Outcome:
    return Plain(None) if operation.hears else Value(None)


def likely_changes(has: str, asked: str) -> list[Change]:
    """The changes to try, the likeliest first: a step is more often renamed than replaced by one of another kind."""
    same_kind = has.partition(" ")[0] == asked.partition(" ")[0]
    return [ADDED, REPLACED, REMOVED] if same_kind else [ADDED, REMOVED, REPLACED]


def lines_of(change: Change | None, workflow_type: str, place: CodePlace | None, has: str, asked: str) -> list[str]:
    """The lines to write. `change` None: none of the small changes explains the difference."""
    where = "" if place is None else f"  # {place}"
    text = "..." if place is None or not place.text else place.text
    old = f"    ...  # {has}, as these runs have it"
    if change == REMOVED:
        return [f'if not patched("{_change_id(workflow_type, "without", has)}"):{where and f"  # before {place}"}', old]
    new = f'if patched("{_change_id(workflow_type, "", asked)}"):{where}'
    if change == ADDED:
        return [new, f"    {text}"]
    if change == REPLACED:
        return [new, f"    {text}", "else:", old]
    return [
        new,
        "    ...  # the steps from here on, as they are now",
        "else:",
        f"    ...  # as these runs have them: {has}",
    ]


def _change_id(*words: str) -> str:
    """A change id of words, such as `order-check`; its author may take a better one."""
    kept = [part for word in words for part in re.split(r"[^A-Za-z0-9_]+", word) if part and part != "activity"]
    return "-".join(kept)[:60].lower()
