"""The size limits of a server, and the shorter report that is sent instead of one that is too large.

A report that is too large is not sent, since the server would refuse it every time. Instead the attempt or the run fails with
the name of the limit, as if the server had checked the result.
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
MESSAGE_LENGTH = 2000  # characters that are kept of a message that is too long
SUFFIX_LENGTH = 100  # more than the suffix that says how long the message was


class Bounds:
    """The limits that a server named when the link was opened."""

    def __init__(self, limits: Limits) -> None:
        self.set(limits, 0)

    def set(self, limits: Limits, body: int) -> None:
        """Set the limits. `body`: the most bytes of one request; 0 while the server has not sent it."""
        self.limits = limits
        self.body = body
        self._fits = min(
            limits.payload_size or UNBOUNDED, body // 4 * 3 or UNBOUNDED
        )  # bytes of a result that fits in any case

    def too_large(self, size: int) -> bool:
        """Return whether a request of this many bytes is too large."""
        return 0 < self.body < size

    def breach(self, result: bytes | None) -> Breach | None:
        """Return the limit that a result exceeds, if it does."""
        size = 0 if result is None else len(result)
        if size <= self._fits:
            return None
        return over_count("payload_size", size, self.limits.payload_size) or self._over_body(_packed(size))

    def _over_body(self, size: int) -> Breach | None:
        return Breach("max_body_bytes", size, self.body) if self.too_large(size) else None

    def reduce(self, report: wire.Report, size: int) -> wire.Report:
        """Return the shorter report that replaces one of this many bytes, which is too large even alone."""
        match report:
            case wire.AttemptDone(resumed=wire.Resumed()):
                return replace(report, resumed=None)  # the next task repeats the work of the code
            case wire.AttemptDone(result=result):
                breach = report.breach or self.breach(result) or self._over_body(size)
                return replace(report, result=None, breach=breach)
            case wire.TaskDone(commands=commands) if any(_is_long(command) for command in commands):
                return replace(report, commands=[_shorten_command(command) for command in commands])
            case wire.TaskDone(commands=commands):
                breach = over_count("payload_size", max(_payloads(commands), default=0), self.limits.payload_size)
                if breach is not None:
                    return replace(report, commands=[], handled=[], breach=breach)
                return wire.TaskFailed(report.key, report.task_id, report.attempt, self._block(size))
            case wire.TaskFailed(block=block):
                return replace(
                    report, block=Block(message=_shorten(block.message), type=block.type, reason=block.reason)
                )
            case wire.AttemptFailed(failure=failure):
                return replace(report, failure=_shorten_failure(failure))
            case wire.Heartbeat():
                return replace(report, progress=None)
            case wire.QueryAnswer():
                message = f"the answer has {size} bytes, the server accepts {self.body} (max_body_bytes); return less"
                return wire.QueryAnswer(report.question, report.attempt, refused=Refusal("payload_too_large", message))
            case wire.GivenBack():
                return report

    def _block(self, size: int) -> Block:
        """Return the block of a task whose commands are too large. The run does not fail: the server's limit may be raised."""
        message = (
            f"the commands of this workflow task have {size} bytes, the server accepts {self.body} (max_body_bytes)."
            " Start fewer steps at once, or raise the setting; then: dw repair"
        )
        return Block(message=message, type="RequestTooLarge", reason="payload_too_large", replay_blocked=True)


def _packed(size: int) -> int:
    """Return the encoded size of this many bytes (base64)."""
    return (size + 2) // 3 * 4


def _payloads(value: Any) -> Iterator[int]:
    """Yield the size of every payload in a value."""
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
    """Return whether a command carries an error text that can be shortened."""
    if not isinstance(command, FailWorkflow | FailUpdate):
        return False
    return command.message != _shorten(command.message) or (
        command.exception is not None and command.exception != _shorten_failure(command.exception)
    )


def _shorten_command(command: Command) -> Command:
    if not isinstance(command, FailWorkflow | FailUpdate):
        return command
    failure = command.exception
    return replace(
        command, message=_shorten(command.message), exception=None if failure is None else _shorten_failure(failure)
    )


def _shorten(text: str) -> str:
    """Return the beginning of a long text and how long it was; a short text is returned as it is."""
    return (
        text if len(text) <= MESSAGE_LENGTH + SUFFIX_LENGTH else f"{text[:MESSAGE_LENGTH]}... ({len(text)} characters)"
    )


def _shorten_failure(failure: Failure) -> Failure:
    return Failure(
        message=_shorten(failure.message),
        exception_type=failure.exception_type,
        exception_class=failure.exception_class,
        non_retryable=failure.non_retryable,
    )
