"""The one error of the codec: the problem of a value or a blob, and its path.

`reason` is stable and crosses the wire; `path` points into the value (`$[0].items[2]`), `$` being the whole of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from backstay.kernel.errors import BackstayError

Reason = Literal[
    "integer_overflow",
    "invalid_arguments",
    "invalid_map_key",
    "invalid_payload_framing",
    "nesting_too_deep",
    "non_finite_float",
    "unsupported_payload_codec",
    "unsupported_payload_schema",
    "unsupported_value_type",
    "value_mismatch",
]

Step = int | str | None
"""One step into a value: an index, a key, or None for the value itself."""


class PayloadError(BackstayError, ValueError):
    """A value cannot become a payload, or a payload cannot become the value asked for. `reason` is stable, `path` says where.

    Use types that payloads have: dataclasses, pydantic models, enums, datetimes, JSON.
    """

    def __init__(self, reason: Reason, problem: str, path: str = "$") -> None:
        super().__init__(reason, problem, path)
        self.reason: Reason = reason
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.reason}: {self.problem}" if self.path == "$" else f"{self.reason}: at {self.path}: {self.problem}"
        )

    def within(self, *steps: Step) -> PayloadError:
        """The same error seen from a value that holds this one."""
        return PayloadError(self.reason, self.problem, path_of(steps) + self.path.removeprefix("$"))


def path_of(steps: Sequence[Step]) -> str:
    """`$`, then the steps; the middle of a very long way, as of a cycle, is left out."""
    named = [_step(step) for step in steps if step is not None]
    if len(named) > 20:
        named[10:-5] = ["…"]
    return "$" + "".join(named)


def _step(step: int | str) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() else f"[{step!r}]"


def mismatch(problem: str) -> PayloadError:
    """The error of a value that does not fit its annotation."""
    return PayloadError("value_mismatch", problem)
