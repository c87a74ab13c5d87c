"""The workers as a decision sees them: the code that could take a task, and the workers that have it.

A *definition* is the code of one workflow type. Its id is its fingerprint; a worker without one is known by its build. A
run that the code of one worker blocked is offered to workers with other definitions, each of them once.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from backstay.kernel.task import Task


def definition_id(fingerprint: str | None, build: str | None) -> str:
    """The id of the definition of a worker. Workers without a fingerprint or build count as one definition."""
    return fingerprint or (f"build {build}" if build else "unknown")


class WorkerIdentity(NamedTuple):
    """A worker as a block names it, with the fingerprint of its definition of one workflow type."""

    host: str | None
    build: str | None
    fingerprint: str | None

    @property
    def definition(self) -> str:
        return definition_id(self.fingerprint, self.build)


class Definitions(NamedTuple):
    """The definitions of live workers that could take a task.

    `elsewhere`: ids of the code of other processes that run tasks themselves. Whether they have the type is not known here.
    """

    known: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()


class LiveFleet(Protocol):
    def definitions(self, task: Task) -> Definitions: ...
    def worker(self, task: Task) -> WorkerIdentity | None:
        """The worker that this workflow task is leased to, if it is known."""
        ...


class _NoFleet:
    """The fleet of a process that knows no workers."""

    def definitions(self, task: Task) -> Definitions:
        return NO_DEFINITIONS

    def worker(self, task: Task) -> WorkerIdentity | None:
        return None


NO_DEFINITIONS = Definitions()
NO_FLEET: LiveFleet = _NoFleet()
