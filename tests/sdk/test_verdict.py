"""The verdict on all open runs: counts, differences, the line that keeps runs, and going on after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncBackstay, Backstay, Signal, activity, child, patched, sleep, wait, workflow
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.embedded.reading import reading
from backstay.sdk.replay import verdict as verdicts
from backstay.sdk.replay.replayer import Judge
from backstay.sdk.replay.verdict import Verdict, count_open_runs, judge_open_runs

from .kit import eventually

go = Signal[str]("go")


@activity(type="check")
def check(item: str) -> str:
    return f"checked {item}"


@activity(type="pack")
def pack(item: str) -> str:
    return f"packed {item}"


@workflow(type="order")
def order(item: str) -> str:
    check(item)
    sleep("30d")
    return pack(item)


@workflow(type="talk")
async def talk() -> str:
    return await wait.step(go)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three talks that wait, and after them twenty orders that sleep."""
    path = tmp_path / "shop.db"
    with Backstay(path, [order, talk, check, pack]) as app:
        handles = [app.start(talk, f"t-{number}") for number in range(3)]
        handles += [app.start(order, f"o-{number}", "book") for number in range(20)]
        for handle in handles:
            while handle.describe().wait_kind not in ("signal", "timer"):
                pass
    return path


async def judged(path: Path, *things: Any, verdict: Verdict | None = None, **options: Any) -> Verdict:
    found = verdict or Verdict()
    judge = Judge(AsyncBackstay(path, things).registry)
    try:
        async with reading(str(path)) as (transport, _):
            await judge_open_runs(AsyncClient(transport), judge, found, **options)
    finally:
        judge.close()
    return found


def renamed() -> Any:
    @workflow(type="order")
    def order(item: str) -> str:
        pack(item)
        sleep("30d")
        return pack(item)

    return order


def added() -> Any:
    @workflow(type="order")
    def order(item: str) -> str:
        check(item)
        check("twice")
        sleep("30d")
        return pack(item)

    return order


def removed() -> Any:
    @workflow(type="order")
    async def order(item: str) -> str:
        await sleep.step("30d")
        return pack(item)

    return order


def rewritten() -> Any:
    @workflow(type="order")
    def order(item: str) -> str:
        wait(go)
        pack(item)
        return wait(go)

    return order


async def test_runs_are_counted_and_grouped_by_difference(path: Path) -> None:
    assert str(await judged(path, order, talk, check, pack)) == (
        "23 open runs: 23 fit, 0 would be blocked, 0 could not be judged"
    )
    found = await judged(path, added(), check, pack)
    assert str(found) == "23 open runs: 0 fit, 20 would be blocked (1 difference), 3 could not be judged"
    (difference,) = found.differences
    assert (difference.runs, difference.example) == (20, "o-19")
    assert difference.place is not None
    assert difference.place.text == 'check("twice")'
    (reason,) = found.reasons
    assert (reason.runs, reason.message) == (3, "no workflow of type 'talk' is registered")
    assert (await judged(path, added(), check, pack, type="talk")).runs == 3
    assert (await judged(path, added(), talk, check, pack, ids=["o-3", "t-1"])).blocked == 1


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        (added, ['if patched("order-check"):', '    check("twice")']),
        (
            renamed,
            [
                'if patched("order-pack"):',
                "    pack(item)",
                "else:",
                "    ...  # activity check, as these runs have it",
            ],
        ),
        (
            removed,
            ['if not patched("order-without-check"):', "    ...  # activity check, as these runs have it"],
        ),
    ],
)
async def test_the_line_that_would_keep_the_runs_is_tried_and_told(
    path: Path, changed: Callable[[], Any], lines: list[str]
) -> None:
    (difference,) = (await judged(path, changed(), talk, check, pack)).differences
    assert difference.hint is not None
    assert difference.hint.tried
    assert [line if line.startswith("    ...") else line.partition("  #")[0] for line in difference.hint.lines] == lines
    assert "test_verdict.py:" in difference.hint.lines[0]


async def test_a_line_that_keeps_runs_keeps_them(path: Path) -> None:
    @workflow(type="order")
    def kept(item: str) -> str:
        check(item)
        if patched("order-check"):
            check("twice")
        sleep("30d")
        return pack(item)

    assert (await judged(path, kept, talk, check, pack)).fits


async def test_what_no_small_change_explains_is_told_as_such(path: Path) -> None:
    (difference,) = (await judged(path, rewritten(), talk, check, pack)).differences
    assert difference.hint is not None
    assert not difference.hint.tried
    assert difference.hint.lines[-1] == "    ...  # as these runs have them: activity check"


async def test_a_verdict_goes_on_where_it_was_interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Exception): ...

    def interrupt(now: Verdict) -> None:
        if now.runs == 10:
            raise Interrupted

    monkeypatch.setattr(verdicts, "BATCH", 5)
    half = Verdict()
    with pytest.raises(Interrupted):
        await judged(path, added(), talk, check, pack, verdict=half, after_each=interrupt)
    assert (half.runs, half.finished) == (10, False)
    whole = await judged(path, added(), talk, check, pack, verdict=half)
    assert (whole.runs, whole.blocked, whole.finished) == (23, 20, True)


async def test_open_runs_are_counted_beforehand(path: Path) -> None:
    async with reading(str(path)) as (transport, _):
        assert await count_open_runs(AsyncClient(transport)) == 23
        assert await count_open_runs(AsyncClient(transport), "talk") == 3


async def test_only_so_many_differences_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "KEPT", 0)
    found = await judged(path, added(), check, pack)
    assert (found.blocked, found.other_blocked, found.unjudged, found.other_unjudged) == (20, 20, 3, 3)
    assert not found.differences


async def test_a_run_that_ended_meanwhile_does_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is closed after it was read and before it is counted."""
    judge_it = Judge.judge
    with Backstay(path, [talk]) as live:

        def closing(judge: Judge, run: Any, *more: Any) -> Any:
            if run.workflow_id == "o-7":
                live.handle(None, "o-7").terminate("over")
            return judge_it(judge, run, *more)

        monkeypatch.setattr(Judge, "judge", closing)
        found = await judged(path, added(), talk, check, pack)
    assert (found.runs, found.blocked, found.ended) == (22, 19, 1)


async def test_a_child_that_is_renamed_is_found(tmp_path: Path) -> None:
    @workflow(type="kid")
    def kid() -> str:
        return wait(go)

    @workflow(type="other-kid")
    def other_kid() -> str:
        return wait(go)

    def parent(called: Any) -> Any:
        @workflow(type="parent")
        def parent() -> str:
            return child(called)

        return parent

    path = tmp_path / "family.db"
    async with AsyncBackstay(path, [parent(kid), kid]) as app:
        await app.start(parent(kid), "p-1")

        async def begun() -> bool:
            return len(await app.list()) == 2

        await eventually(begun)
    found = await judged(path, parent(other_kid), kid, other_kid)
    assert (found.runs, found.blocked) == (2, 1)
    assert found.differences[0].hint is not None
