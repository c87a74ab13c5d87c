"""Failures that were raised in the code. Those that the code does not fail with by the end of its task, it has handled."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backstay.kernel.failure import Handled, HandledFailure
from backstay.kernel.feature import Outcome, Thrown
from backstay.kernel.features.local_activity import RecordLocalActivity


class DeliveredFailures:
    """By failure id, since the last task of the run was reported.

    The failure of a local activity has no id before it is recorded, so it goes by a provisional one until then.
    """

    __slots__ = ("_local", "_resolved", "_thrown")

    def __init__(self) -> None:
        self._thrown: dict[str, BaseException] = {}
        self._resolved: dict[str, HandledFailure] = {}  # those whose class was not found as their record implies
        self._local: dict[str, int | str] = {}  # provisional id -> step, or the true id once recorded

    def add(self, failure_id: str, exception: BaseException, resolved: tuple[str, str] | None = None) -> None:
        """`resolved`: the class of the exception, and how it was found, if the record of the failure implies something else."""
        self._thrown[failure_id] = exception
        if resolved is not None:
            self._resolved[failure_id] = HandledFailure(failure_id, *resolved)

    def add_local(self, step: int) -> str:
        """Return a provisional id for the failure of a local activity."""
        self._local[f"local:{step}"] = step
        return f"local:{step}"

    def recorded(self, step: int, outcome: Outcome | None) -> None:
        """Replace the provisional id of a local failure by its recorded one."""
        if not self._local:
            return
        provisional = f"local:{step}"
        if provisional in self._local and isinstance(outcome, Thrown) and outcome.failure_id is not None:
            self._local[provisional] = outcome.failure_id

    def handled(self, fatal: BaseException | None, commands: list[Any]) -> list[Handled]:
        """Return the failures that the code has caught. Those of local activities are marked in their commands."""
        if not self._thrown:
            return []
        thrown, self._thrown = self._thrown, {}
        ids = [id for id, exception in thrown.items() if exception is not fatal]
        if not self._local:
            return [self._resolved.pop(id, id) for id in ids] if self._resolved else list(ids)
        found = [self._local.pop(id, id) for id in ids]
        steps = {step for step in found if isinstance(step, int)}
        for position, command in enumerate(commands):
            if isinstance(command, RecordLocalActivity) and command.sequence in steps:
                commands[position] = replace(command, handled=True)
        return [self._resolved.pop(id, id) for id in found if isinstance(id, str)]
