"""Commands: the requests of workflow code at the end of its workflow task.

Each `StepCommand` takes a step number. A terminal command closes the run and is the last one.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """Base of all commands; the tag is the wire's `type`.

    `own_task`: the command belongs to a workflow task for one event (an update), not to the body of the code. Such a
    task has one command that `answers` the event; others may go along. `leads`: the command stands before all others, in
    a task of either kind, and is applied before anything else that the completion does.
    """

    own_task: ClassVar[bool] = False
    answers: ClassVar[bool] = True
    leads: ClassVar[bool] = False

    @property
    def ends_wait(self) -> bool:
        """Whether the command says that a wait of the code has ended."""
        return False


class StepCommand(Command, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A durable call. `sequence` is sent by our SDK and must then be the next step of the run."""

    sequence: int | None = None


class TerminalCommand(Command, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Closes the run; at most one per completion."""


def command_type(kind: type[Command]) -> str:
    """The wire's `type` of a command."""
    return str(kind.__struct_config__.tag)
