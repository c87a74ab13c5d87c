"""Nondeterminism at run time: what the source check at registration cannot see, caught while workflow code runs.

Three chapters. `audit` sees I/O from anywhere below workflow code. `monitor` (Python 3.12 and newer) looks at the calls
that workflow code itself makes. `shims` answer clocks and randomness from the run; a worker process may opt in, because they
tax the whole process. All three act only where code is replayed: on a greenlet, and not in a side effect or a query.

What happens is the run's `guard`: "error" raises where the call is made, "warn" warns once per place, "off" looks away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay.sdk.replay.guard import audit, monitor
from backstay.sdk.replay.guard.verdict import Guard

if TYPE_CHECKING:
    from backstay.sdk.author.workflow_definition import WorkflowDefinition

__all__ = ["Guard", "guard_of", "watch"]


def watch(target: Any) -> None:
    """Start to watch the calls of this workflow function or class."""
    audit.install()
    monitor.watch(target)


def guard_of(definition: WorkflowDefinition, guard: Guard) -> Guard:
    """Return the guard of a definition's runs: off if it opted out of the source check."""
    return "off" if definition.unchecked else guard
