"""A trial: victims that live and die one after another on the same file, and what is found in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from . import evidence, ledger
from .victim import Job, Report

KILLED = -9


class Trial:
    def __init__(self, directory: Path, run: Callable[[Job], int]) -> None:
        self.directory = directory
        self._run = run

    def starting(self, *starts: tuple[str, str, list[Any]]) -> Trial:
        """The workflows that every victim of this trial starts, or finds started."""
        fill = {"{dir}": str(self.directory)}
        self._starts = [(type, id, [_filled(arg, fill) for arg in args]) for type, id, args in starts]
        return self

    def live(self, **job: Any) -> int:
        """One victim. Returns how it ended."""
        return self._run(Job(directory=str(self.directory), starts=self._starts, **job))

    def die(self, **job: Any) -> None:
        """One victim that must not survive."""
        ended = self.live(**job)
        assert ended == KILLED, f"the victim ended with {ended}: {self.log}"

    def finish(self, **job: Any) -> Report:
        """One victim that nobody kills: it completes everything."""
        ended = self.live(**job)
        assert ended == 0, f"the victim ended with {ended}: {self.log}"
        return self.report

    @property
    def report(self) -> Report:
        return msgspec.json.decode((self.directory / "report.json").read_bytes(), type=Report)

    @property
    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text()[-4000:] if path.exists() else ""

    @property
    def ledger(self) -> list[ledger.Line]:
        return ledger.read(self.directory / "ledger")

    def evidence(self) -> dict[str, evidence.Evidence]:
        path = self.directory / "app.db"
        return evidence.gather(path) if path.exists() else {}

    def examine(self) -> Remains:
        """What a dead victim has left: consistent, whatever the moment."""
        found = self.evidence()
        for one in found.values():
            evidence.check_consistent(one)
        done = set().union(*(one.completed for one in found.values()))
        side_effects = {
            f"{one.loaded.run.run_id}/side effect"  # type: ignore[union-attr]
            for one in found.values()
            if "SideEffectRecorded" in one.types()
        }
        return Remains(done | side_effects | _local_keys(found), len(self.ledger))

    def conclude(self, remains: list[Remains]) -> dict[str, evidence.Evidence]:
        """At the end: everything closed, and nothing that was on disk at some death happened again after it."""
        lines = self.ledger
        found = self.evidence()
        mine = {id for _, id, _ in self._starts}
        assert mine <= set(found)
        for id, one in found.items():
            assert (id in mine) != _is_child(one)
            status = "completed" if id in mine or one.loaded.run is None else one.loaded.run.status
            evidence.check_closed(one, lines, status)
        evidence.check_families(found)
        assert not evidence.on_their_way(self.directory / "app.db")
        for left in remains:
            again = [line for line in lines[left.lines :] if line.key in left.done]
            assert not again, f"recorded before a kill and done again: {again}"
        return found


class Remains:
    """What was done and recorded at a death, and how long the ledger was."""

    def __init__(self, done: set[str], lines: int) -> None:
        self.done = done
        self.lines = lines


def _is_child(one: evidence.Evidence) -> bool:
    return one.histories[0][1].event.child_call_id is not None  # type: ignore[attr-defined]


def _local_keys(found: dict[str, evidence.Evidence]) -> set[str]:
    """The keys that recorded local activities wrote into the ledger: the first of their arguments."""
    keys: set[str] = set()
    for one in found.values():
        for history in one.histories:
            ended = set(evidence.steps_ended(history))
            for entry in history:
                event = entry.event
                if entry.type == "ActivityScheduled" and event.local_activity and event.sequence in ended:  # type: ignore[attr-defined]
                    keys.add(evidence.first_argument(event.activity.arguments))  # type: ignore[attr-defined]
    return keys


def _filled(argument: Any, fill: dict[str, str]) -> Any:
    if isinstance(argument, str):
        for name, value in fill.items():
            argument = argument.replace(name, value)
    return argument
