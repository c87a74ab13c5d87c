"""The table of operator commands, by name, in the order in which people see them."""

from __future__ import annotations

from typing import Any

from backstay.kernel.feature_list import FEATURES
from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.operator_command import CommandRefusal, OperatorCommand

OPERATOR_COMMANDS: dict[str, OperatorCommand] = {
    command.name: command for feature in FEATURES for command in feature.operator
}

REFUSALS: dict[str, CommandRefusal] = {
    reason: refusal for command in OPERATOR_COMMANDS.values() for reason, refusal in command.refusals.items()
}
"""The refusals of all operator commands, by their reason."""


def command_of(reply: Any) -> CommandReply:
    """The record of a command, from its reply: some replies have more beside it."""
    record: CommandReply = reply if isinstance(reply, CommandReply) else reply.command
    return record
