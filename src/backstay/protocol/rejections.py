"""Messages of rejected commands, with advice. HTTP, SDK and `dw` use the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.operators import REFUSALS


def sentence(command: CommandReply) -> str:
    what = command.command_type if command.target_name is None else f"{command.command_type} {command.target_name!r}"
    return f"{what} of workflow {command.workflow_id!r} was rejected: {reason(command)}"


def reason(command: CommandReply) -> str:
    why = command.rejection_reason or "rejected"
    refusal = REFUSALS.get(why)
    words = _WORDS.get(why) if refusal is None else refusal.words
    if isinstance(words, str):
        return words
    return why.replace("_", " ") if words is None else words(command)  # a newer server may have other reasons


def declared_names(name: str, names: Sequence[str]) -> str:
    """The names that exist, for a message about one that does not."""
    near = get_close_matches(name, names, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"declared are: {', '.join(names) or 'none'}{meant}"


def _unknown(command: CommandReply) -> str:
    if not command.declared:
        return f"the workflow declares no {command.command_type} of that name"
    return f"the workflow does not declare it; {declared_names(command.target_name or '', command.declared)}"


def _errors(command: CommandReply) -> str:
    return "; ".join(f"{name} {', '.join(said)}" for name, said in command.validation_errors.items())


def _messages(command: CommandReply) -> str:
    return "; ".join(line for said in command.validation_errors.values() for line in said)


_WORDS: dict[str, Callable[[CommandReply], str]] = {
    "instance_not_started": lambda _: "it has not been started yet; start it first",
    "selected_run_not_current": lambda command: (
        f"run {command.requested_run_id} is not the current one, which is {command.run_id}; name that, or no run at all"
    ),
    "run_not_active": lambda command: f"its run {command.run_id} has ended and takes no messages",
    "unknown_signal": _unknown,
    "unknown_update": _unknown,
    "invalid_signal_arguments": _errors,
    "invalid_update_arguments": _errors,
    "update_validator_rejected": lambda command: f"its validator rejected it: {_messages(command)}",
    "earlier_signal_pending": lambda _: "a signal sent earlier has not been applied yet; try again",
    "workflow_definition_unavailable": lambda command: (
        _messages(command) or "no live worker knows the code of the workflow; start one and try again"
    ),
    "structural_limit_exceeded": lambda command: f"{_messages(command)}; wait until the run has handled pending ones",
}
