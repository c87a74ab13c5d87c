"""Commands: what workflow code asks for at the end of a workflow task, imperative.

`StepCommand`s take a step number each; a terminal command closes the run and stands alone at the end.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """Base of all commands; the tag is the wire's `type`. `apart`: belongs to a task of its own, not to the code's body.

    Such a task has one command that `answers`; others may go along.
    """

    own_task: ClassVar[bool] = False
    answers: ClassVar[bool] = True

    @property
    def ends_wait(self) -> bool:
        """Whether it says that code had waited for something, and that this has come."""
        return False


class StepCommand(Command, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A durable call. `sequence` is sent by our SDK and must then be the next step of the run."""

    sequence: int | None = None


class TerminalCommand(Command, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Closes the run; at most one per completion."""


def command_type(kind: type[Command]) -> str:
    """The wire's `type` of a command."""
    return str(kind.__struct_config__.tag)
