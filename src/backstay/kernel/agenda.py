"""The agenda: a heap of a run's deadlines, each of which counts only while its feature still confirms it.

So a feature that no longer needs a deadline does not have to remove it, and to add one costs a push on the heap.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from heapq import heapify, heappop

from backstay.kernel.feature import Deadline
from backstay.kernel.state import Instance, Moment
from backstay.kernel.values import Micros


class Agenda:
    def __init__(self, deadlines: Mapping[str, Deadline]) -> None:
        self.deadlines = deadlines

    def next_wake(self, instance: Instance) -> Micros | None:
        """The earliest deadline that still counts; stale agenda entries are dropped on the way."""
        run = instance.run
        if run is None or run.closed_reason is not None:
            return None
        agenda = run.agenda
        while agenda:
            at, kind, id = agenda[0]
            if self.armed(instance, kind, id) == at:
                return at
            heappop(agenda)
        return None

    def armed(self, instance: Instance, kind: str, id: int | str) -> Micros | None:
        """When this deadline is due, if its feature still confirms it."""
        at = self.deadlines[kind].armed(instance, id)
        moved = instance.current.moved_deadlines
        return moved.get((at, kind, id), at) if moved and at is not None else at

    def restart_after_clock_change(
        self, instance: Instance, now: Micros, moved_before: MutableMapping[tuple[int, Moment], Micros]
    ) -> None:
        """Restart, from now, every deadline that is farther away than when it was set: the clock was set back.

        Without it a timer of a minute would take as long as the clock went back, and a minute. In memory only: history
        keeps the deadline that was set. `moved_before` remembers the new time, so that a run that is folded again is
        not put off once more. Test: `tests/sim/test_clock_set_back.py`.
        """
        run = instance.run
        if run is None or not run.is_open:
            return
        for moment in run.agenda:
            at, kind, id = moment
            rule = self.deadlines[kind]
            if at > now and rule.length is not None and rule.armed(instance, id) == at:
                length = rule.length(instance, id)
                if at - now > length:
                    instead = (
                        now + length if rule.after_clock_change is None else rule.after_clock_change(instance, id, now)
                    )
                    run.moved_deadlines[moment] = moved_before.setdefault((run.key, moment), instead)
        if run.moved_deadlines:
            run.agenda = [(run.moved_deadlines.get(moment, moment[0]), *moment[1:]) for moment in run.agenda]
            heapify(run.agenda)

    def postpone(self, instance: Instance, kind: str, id: int | str, since: Micros, until: Micros) -> bool:
        """Move a deadline to `until` if it counts a worker's silence from before `since`: no worker could reach the
        engine then.

        In memory only, like a restarted deadline: history keeps the one that was set, and it is put off again after
        each fold.
        """
        rule = self.deadlines[kind]
        at = rule.armed(instance, id) if rule.silence else None
        if at is None or rule.length is None or at - rule.length(instance, id) >= since:
            return False
        run = instance.current
        run.moved_deadlines[at, kind, id] = until
        run.add_deadline(until, kind, id)
        return True


def wake_may_stay(before: Micros | None, wake: Micros | None, now: Micros) -> bool:
    """Whether the stored wake is good enough. One that only moved later is: a wake may be early, never late."""
    return wake == before or (wake is not None and before is not None and now < before < wake)


def wake_is_late(wake: Micros | None, due: Micros | None) -> bool:
    """Whether the stored wake is missing or too late for the next deadline of an instance: its wake was lost."""
    return due is not None and (wake is None or wake > due)
