"""Families killed at every commit boundary: between the commit that sends and the commit that takes, in both directions.

The stories together send everything there is to send: starts, closes, news of another run, signals, stops, answers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..selection import first_of, some_of
from .evidence import on_their_way
from .trial import KILLED, Trial
from .victim import Side
from .workflows import FAMILIES, Story

MakeTrial = Callable[[str], Trial]
AtOnce = Callable[[Callable[[int], None], list[int]], None]

SENDS = [
    ("shipments", "StartFromParent", 4),
    ("shipments", "ChildReport", 4),
    ("permits", "StartFromParent", 1),
    ("permits", "SignalFromParent", 2),
    ("permits", "ChildReport", 1),
    ("drops", "ChildReport", 3),
    ("leaves", "StopFromParent", 3),
    ("leaves", "PolicyAnswer", 2),
    ("leaves", "ChildReport", 2),
]
"""Which story sends what, and how often at least."""

EACH = pytest.mark.parametrize("most", first_of([3, None], 1, "each boundary, of which `make test` has some"))


@pytest.mark.contract("CHILD-06", "CHILD-10", "PCP-04", "PCP-08", "HNDL-05")
@EACH
@pytest.mark.parametrize("side", ["before", "open", "after"])
@pytest.mark.parametrize("story", FAMILIES, ids=lambda story: story.name)
def test_a_kill_at_any_commit_changes_nothing(
    story: Story, side: Side, most: int | None, trial: MakeTrial, at_once: AtOnce
) -> None:
    start = (story.workflow.type, story.name, list(story.args))
    reference = trial("reference").starting(start)
    unharmed = reference.finish(settle=True)
    reference.conclude([])
    died: list[int] = []

    def kill_at(commit: int) -> None:
        one = trial(f"{commit}").starting(start)
        ended = one.live(side=side, commit=commit, settle=True)
        if ended == KILLED:
            died.append(commit)
        else:
            assert ended == 0, one.log
        remains = one.examine()
        assert one.finish(settle=True).results == unharmed.results
        one.conclude([remains])

    every = range(1, unharmed.commits + 1)
    boundaries = some_of(every, most or len(every))
    at_once(kill_at, boundaries)
    assert len(died) > len(boundaries) // 2


@pytest.mark.contract("CHILD-06", "HNDL-05", "PCP-04", "PCP-08")
@pytest.mark.parametrize(("name", "kind", "times"), SENDS)
def test_a_send_on_disk_is_taken_once_after_its_process_is_killed(
    name: str, kind: str, times: int, trial: MakeTrial, at_once: AtOnce
) -> None:
    """The sender's commit is on disk, the receiver's is not: for every send of every kind."""
    (story,) = (story for story in FAMILIES if story.name == name)
    start = (story.workflow.type, story.name, list(story.args))
    unharmed = trial("reference").starting(start).finish(settle=True)

    def kill_at(count: int) -> None:
        one = trial(f"{count}").starting(start)
        one.die(die_sending=(kind, count), settle=True)
        remains = one.examine()
        assert kind in {send.kind for send in on_their_way(one.directory / "app.db")}
        assert one.finish(settle=True).results == unharmed.results
        one.conclude([remains])

    at_once(kill_at, list(range(1, times + 1)))


@EACH
@pytest.mark.parametrize("story", FAMILIES, ids=lambda story: story.name)
def test_a_kill_while_recovering_from_a_kill_changes_nothing(
    story: Story, most: int | None, trial: MakeTrial, at_once: AtOnce
) -> None:
    start = (story.workflow.type, story.name, list(story.args))
    unharmed = trial("reference").starting(start).finish(settle=True)

    def kill_twice(commit: int) -> None:
        one = trial(f"{commit}").starting(start)
        one.live(side="after", commit=commit, settle=True)
        remains = [one.examine()]
        one.live(side="open" if commit % 2 else "after", commit=1, settle=True)
        remains.append(one.examine())
        assert one.finish(settle=True).results == unharmed.results
        one.conclude(remains)

    every = range(2, unharmed.commits + 1, 2)
    at_once(kill_twice, some_of(every, most or len(every)))


@pytest.mark.contract("CHILD-10", "BARRIER-05")
def test_a_tree_of_a_thousand_three_deep_survives_kills(trial: MakeTrial) -> None:
    wood = trial("wood").starting(("tree", "tree", [3, 10]))
    remains = []
    for commit in (2, 3, 3):
        wood.die(side="after", commit=commit, deadline=60)
        remains.append(wood.examine())
    assert wood.finish(settle=True, deadline=60).results == {"tree": 1000}
    found = wood.conclude(remains)
    assert len(found) == 1 + 10 + 100 + 1000
