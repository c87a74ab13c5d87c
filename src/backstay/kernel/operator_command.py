"""Operator commands: the actions of a person on a run (cancel, pause, retry now). Each is declared once, by its
feature.

A declaration says everything that other layers need: the request on the wire, the routes, `dw`, bulk operations, the
operator's page and the generic calls of the clients are made from it (`kernel/operators.py` has the table). So a new
command is a feature with a declaration; only its typed client method and its documentation are written beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from backstay.kernel.state import Instance
from backstay.kernel.values import Micros

Role = Literal["operator", "admin"]
PartList = Literal["activities", "timers", "waits"]
"""A list in the detail of a run whose entries a command may be about."""

Blocked = Callable[[Instance, str, Micros], str | None]
"""Why an open run would not accept a command now; None: it would. It gets the instance, the liveness of its run and the time."""


class CommandField(NamedTuple):
    """An argument of a command, beside its target and its request id: a text, or None."""

    name: str
    help: str
    option: tuple[str, ...]
    """Its names as an option of `dw`."""
    metavar: str
    part: PartList | None = None
    """It names an entry of this list: a route has it in its path, and entries of the list say whether they can be named."""
    bulk: bool = False
    """Whether a bulk operation may set it, to the same for all of its runs."""
    json: bool = False
    """Its text is a JSON object, which the body of a route has as it is."""


REASON = CommandField("reason", "The reason; it is recorded.", ("--reason",), "TEXT")


class CommandOutcome(NamedTuple):
    """The outcome of an accepted command, in words that follow the id of the workflow."""

    words: str
    goes_on: bool = False
    """Whether the run has work now, which needs a running engine."""


class CommandRefusal(NamedTuple):
    """The meaning of a rejection of a command, with advice; `status` is that of the HTTP answer."""

    words: str | Callable[[Any], str]
    """A function gets the `CommandReply`."""
    status: int = 409


class OperatorCommand(Struct, frozen=True, kw_only=True, eq=False):
    """One operator command.

    `help` is a sentence about `{run}`, which begins with a verb. `action` is its name in `can_...` and
    `..._blocked_reason`; None: the name of the command.
    """

    message: type[Any]
    """Its `InstanceCommand`, whose `command_type` is its name."""
    request: str
    """The class name of its request; its verb on the wire is made from that."""
    label: str
    """The text of its button."""
    help: str
    more: str = ""
    examples: tuple[str, ...] = ()
    """Arguments and options of `dw NAME`."""
    fields: tuple[CommandField, ...] = (REASON,)
    action: str | None = None
    role: Role = "operator"
    danger: bool = False
    """Whether it ends the run."""
    reply: type[Any] | None = None
    """The type of its reply; None: `CommandReply`. Another type has that in its field `command`."""
    outcomes: Mapping[str, CommandOutcome]
    refusals: Mapping[str, CommandRefusal] = {}
    """By their reason, those that only this command has."""

    current_run: bool = True
    """Whether it works on the current run only, which must be open. Else it works on any closed run."""
    open_or_closed: bool = False
    """Whether it works on such a run in either case, open or closed."""
    bulk: bool = True
    bulk_flags: Mapping[str, bool] = {}
    """Flags of the runs that a bulk operation takes, beside whether they are open; the others have no use for it."""

    blocked: Blocked | None = None
    """Why a run would not accept it now, beyond being open and current, or closed."""
    blocked_words: Mapping[str, str] = {}
    """The reasons of `blocked` in words."""
    hidden: frozenset[str] = frozenset()
    """Reasons for which the page shows no button, instead of a disabled one."""
    parts: Mapping[PartList, Callable[[Any], str | None]] = {}
    """Why it would be refused for an entry of these lists of an open run, by the entry's view."""

    @property
    def name(self) -> str:
        return self.message.command_type

    @property
    def verb(self) -> str:
        """Its name in paths and as a command of `dw`."""
        return self.name.replace("_", "-")

    @property
    def able(self) -> str:
        """Its name in `can_...`."""
        return self.action or self.name

    @property
    def bulk_filter(self) -> dict[str, bool]:
        """The flags of the runs that a bulk operation takes."""
        ended = {} if self.open_or_closed else {"is_terminal": not self.current_run}
        return {**ended, **self.bulk_flags}

    def about(self, run: str = "the run") -> str:
        """Its effect on a run."""
        return self.help.format(run=run)
