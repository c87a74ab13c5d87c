"""Any command of workflow code, as a type that decoders know: the union of all commands that features declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from backstay.kernel.command import Command
from backstay.kernel.machine import Machine

if TYPE_CHECKING:
    AnyCommand = Command
else:
    AnyCommand = Union[tuple(Machine().commands)]  # noqa: UP007 - made from a list
