"""Every workflow, killed at every commit boundary, from every side of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..selection import first_of, some_of
from .trial import KILLED, Trial
from .victim import Side
from .workflows import STORIES, Story

MakeTrial = Callable[[str], Trial]
AtOnce = Callable[[Callable[[int], None], list[int]], None]

MOST = 14  # boundaries per story and side; of a longer one, the first, the last and a spread between
SOME = 3
EACH = pytest.mark.parametrize("most", first_of([SOME, MOST], 1, "each boundary, of which `make test` has some"))


@pytest.mark.contract("LEASE-15", "LEASE-16", "ACT-14", "REPLAY-01", "REPLAY-02", "REPLAY-11", "MATCH-01")
@EACH
@pytest.mark.parametrize("side", ["before", "open", "after"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_kill_at_any_commit_changes_nothing(
    story: Story, side: Side, most: int, trial: MakeTrial, at_once: AtOnce
) -> None:
    start = (story.workflow.type, story.name, list(story.args))
    reference = trial("reference").starting(start)
    unharmed = reference.finish()
    reference.conclude([])
    died: list[int] = []

    def kill_at(commit: int) -> None:
        one = trial(f"{commit}").starting(start)
        ended = one.live(side=side, commit=commit)
        if ended == 0:
            # Activities that end at the same moment may share a commit: this life had fewer of them.
            assert one.report.commits < commit
        else:
            assert ended == KILLED, one.log
            died.append(commit)
        remains = one.examine()
        assert one.finish().results == unharmed.results
        one.conclude([remains])

    boundaries = spread(unharmed.commits, most)
    at_once(kill_at, boundaries)
    assert len(died) > len(boundaries) // 2


@pytest.mark.contract("LEASE-16", "REPLAY-01")
@EACH
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_kill_while_recovering_from_a_kill_changes_nothing(
    story: Story, most: int, trial: MakeTrial, at_once: AtOnce
) -> None:
    start = (story.workflow.type, story.name, list(story.args))
    reference = trial("reference").starting(start)
    unharmed = reference.finish()

    def kill_twice(commit: int) -> None:
        one = trial(f"{commit}").starting(start)
        one.live(side="after", commit=commit)
        remains = [one.examine()]
        one.live(side="open" if commit % 2 else "after", commit=1)
        remains.append(one.examine())
        assert one.finish().results == unharmed.results
        one.conclude(remains)

    every = range(2, unharmed.commits + 1, 2)
    at_once(kill_twice, list(every) if most == MOST else some_of(every, 2))


def spread(commits: int, most: int) -> list[int]:
    if most == SOME:
        return some_of(range(1, commits + 1), SOME)
    if commits <= MOST:
        return list(range(1, commits + 1))
    return sorted({1 + round(i * (commits - 1) / (MOST - 1)) for i in range(MOST)})
