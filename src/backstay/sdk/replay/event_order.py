"""The order in which code gets the events of history.

Decisions of code are recorded with `decided_after`, the last event it had seen then. Other events may have been
recorded in between, so history has what code decided after them. Replay puts it back where the code had decided it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from backstay.kernel.event import Event, Recorded, StepEvent
from backstay.kernel.feature import Outcome
from backstay.kernel.features.workflow_task import SEEN_BY_NEXT_TASK, replay_position, seen_by_next_task
from backstay.kernel.values import Micros


def in_order(
    events: list[Recorded],
    steps: Collection[type[Event]],
    step: int,
    note: Callable[[Recorded, StepEvent], None],
) -> list[Recorded]:
    """Return the events in the order in which the code gets them, and note the steps that it has not taken yet.

    There are such steps in a cold replay, and after a completion whose answer was lost. `steps`: the types of event that belong
    to a step. `step`: the last one that the code has taken.
    """
    last = 0
    ordered = True
    for entry in events:
        event = entry.event
        kind = type(event)
        if kind in steps and event.sequence > step:  # type: ignore[attr-defined]
            note(entry, event)  # type: ignore[arg-type]
        after = entry.context.decided_after
        if after is None or (kind in SEEN_BY_NEXT_TASK and seen_by_next_task(event)):
            last = entry.sequence  # never less: events arrive in the order of history
        elif after < last:
            ordered = False
        else:
            last = after
    return events if ordered else sorted(events, key=replay_position)


def simultaneous(
    ahead: Iterable[Recorded],
    clock: Callable[[], Micros],
    outcomes: Mapping[type[Event], Callable[[Event], Outcome | None]],
) -> Iterator[tuple[int, Outcome | None]]:
    """Yield (step, outcome) of the events that were recorded at the time of the clock, until one of another time.

    Ends at a decision of the code, which was made without the later events.
    """
    for entry in ahead:
        event = entry.event
        if entry.at != clock() or (entry.context.decided_after is not None and not seen_by_next_task(event)):
            return
        rule = outcomes.get(type(event))
        if rule is not None:
            yield event.sequence, rule(event)  # type: ignore[attr-defined]
