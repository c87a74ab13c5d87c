"""What fits into a request to the server, and what is reported instead of what does not.

A report that is too large is never sent, so it is never sent again and again: an attempt whose result is too large has
failed, by the name of the limit, as if the result had been looked at by the server; and so has a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.failure import Failure
from backstay.kernel.features.close import FailWorkflow
from backstay.kernel.features.update import FailUpdate
from backstay.kernel.limits import Breach, Limits, over_count
from backstay.kernel.task import Block
from backstay.protocol.native import worker as wire
from backstay.protocol.native.client import Refusal

UNBOUNDED = 1 << 62
KEPT = 2000  # characters of a message that is too long
SAID = 100  # more than it takes to say how long it was


class Bounds:
    """What a server takes, as it has said when a station was opened."""

    def __init__(self, limits: Limits) -> None:
        self.set(limits, 0)

    def set(self, limits: Limits, body: int) -> None:
        """`body`: bytes of one request; 0 while nobody has said how many."""
        self.limits = limits
        self.body = body
        self._fits = min(limits.payload_size or UNBOUNDED, body // 4 * 3 or UNBOUNDED)  # as a result, whatever it is

    def passed(self, size: int) -> bool:
        """Whether so many bytes are too many for one request."""
        return 0 < self.body < size

    def over(self, result: bytes | None) -> Breach | None:
        """The limit that a result passes, if it does."""
        size = 0 if result is None else len(result)
        if size <= self._fits:
            return None
        return over_count("payload_size", size, self.limits.payload_size) or self._over_body(_packed(size))

    def _over_body(self, size: int) -> Breach | None:
        return Breach("max_body_bytes", size, self.body) if self.passed(size) else None

    def reduced(self, report: wire.Report, size: int) -> wire.Report:
        """What to say instead of a report of so many bytes, which is too large even alone."""
        match report:
            case wire.AttemptDone(resumed=wire.Resumed()):
                return replace(report, resumed=None)  # what the code did comes with its next task, and is judged there
            case wire.AttemptDone(result=result):
                breach = report.breach or self.over(result) or self._over_body(size)
                return replace(report, result=None, breach=breach)
            case wire.TaskDone(commands=commands) if any(_is_long(command) for command in commands):
                return replace(report, commands=[_told_shortly(command) for command in commands])
            case wire.TaskDone(commands=commands):
                breach = over_count("payload_size", max(_payloads(commands), default=0), self.limits.payload_size)
                if breach is not None:
                    return replace(report, commands=[], handled=[], breach=breach)
                return wire.TaskFailed(report.key, report.task_id, report.attempt, self._block(size))
            case wire.TaskFailed(block=block):
                return replace(report, block=Block(message=_short(block.message), type=block.type, reason=block.reason))
            case wire.AttemptFailed(failure=failure):
                return replace(report, failure=_shortened(failure))
            case wire.Heartbeat():
                return replace(report, progress=None)
            case wire.QueryAnswer():
                message = (
                    f"the answer has {size} bytes, and the server takes {self.body} (max_body_bytes); ask for less"
                )
                return wire.QueryAnswer(report.question, report.attempt, refused=Refusal("payload_too_large", message))
            case wire.GivenBack():
                return report

    def _block(self, size: int) -> Block:
        """The run is not wrong, and its server may take more one day: so its task fails, and waits for somebody."""
        message = (
            f"what the workflow asks for at once has {size} bytes, and the server takes {self.body} (max_body_bytes)."
            " Ask for less at a time, or let the server take more; then: dw repair"
        )
        return Block(message=message, type="RequestTooLarge", reason="payload_too_large", replay_blocked=True)


def _packed(size: int) -> int:
    """How many bytes so many become on the way."""
    return (size + 2) // 3 * 4


def _payloads(value: Any) -> Iterator[int]:
    """The sizes of all payloads in something."""
    if isinstance(value, bytes):
        yield len(value)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from _payloads(getattr(value, name))
    elif isinstance(value, list | tuple):
        for part in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _payloads(part)
    elif isinstance(value, dict):
        for part in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _payloads(part)


def _is_long(command: Command) -> bool:
    """Whether it tells an error at great length."""
    if not isinstance(command, FailWorkflow | FailUpdate):
        return False
    return command.message != _short(command.message) or (
        command.exception is not None and command.exception != _shortened(command.exception)
    )


def _told_shortly(command: Command) -> Command:
    if not isinstance(command, FailWorkflow | FailUpdate):
        return command
    failure = command.exception
    return replace(command, message=_short(command.message), exception=None if failure is None else _shortened(failure))


def _short(text: str) -> str:
    """The beginning of a text, and how long it was. What is short stays as it is."""
    return text if len(text) <= KEPT + SAID else f"{text[:KEPT]}... ({len(text)} characters)"


def _shortened(failure: Failure) -> Failure:
    return Failure(
        message=_short(failure.message),
        exception_type=failure.exception_type,
        exception_class=failure.exception_class,
        non_retryable=failure.non_retryable,
    )
