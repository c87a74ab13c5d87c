"""Instances that are not known by name yet: what comes at once is looked up at once, and each is decided for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from backstay import AsyncBackstay, RequestRefused, wait, workflow
from backstay.store.errors import Unavailable


@workflow
def patient() -> str:
    return wait("go")


def story(tell: Any) -> None:
    async def told() -> None:
        async with AsyncBackstay(":memory:", [patient]) as app:
            await tell(app)

    asyncio.run(told())


def test_names_that_come_up_together_are_looked_up_together() -> None:
    async def tell(app: AsyncBackstay) -> None:
        looks: list[list[str]] = []
        look = app.engine.store.find_all

        def counted(namespace: str, ids: Sequence[str]) -> Any:
            looks.append(list(ids))
            return look(namespace, ids)

        app.engine.store.find_all = counted  # type: ignore[method-assign]
        await asyncio.gather(*(app.start(patient, f"p{n}") for n in range(5)))
        assert looks == [["p0", "p1", "p2", "p3", "p4"]]

    story(tell)


def test_a_start_that_comes_twice_at_once_under_one_request_id_is_one_start() -> None:
    async def tell(app: AsyncBackstay) -> None:
        once = app.options(request_id="r1")
        first, second = await asyncio.gather(once.start(patient, "p"), once.start(patient, "p"))
        assert first.run_id == second.run_id
        assert [e.type for e in await first.history()].count("StartAccepted") == 1

    story(tell)


def test_an_id_that_is_none_is_refused_and_the_others_start() -> None:
    async def tell(app: AsyncBackstay) -> None:
        good, bad, other = await asyncio.gather(
            app.start(patient, "good"),
            app.start(patient, "half \ud800"),
            app.start(patient, "other"),
            return_exceptions=True,
        )
        assert isinstance(bad, RequestRefused)
        assert bad.reason == "invalid_workflow_id"
        assert [(await handle.describe()).status for handle in (good, other)] == ["waiting", "waiting"]  # type: ignore[union-attr]

    story(tell)


def test_a_look_that_fails_fails_everybody_who_waits_for_it() -> None:
    async def tell(app: AsyncBackstay) -> None:
        def broken(namespace: str, ids: Sequence[str]) -> Any:
            raise Unavailable("the disk is gone")

        app.engine.store.find_all = broken  # type: ignore[method-assign]
        answers = await asyncio.gather(*(app.start(patient, f"p{n}") for n in range(2)), return_exceptions=True)
        assert ["the disk is gone" in str(answer) for answer in answers] == [True, True]

    story(tell)


def test_an_id_that_was_just_made_is_not_looked_up() -> None:
    async def tell(app: AsyncBackstay) -> None:
        def never(namespace: str, ids: Sequence[str]) -> Any:
            raise AssertionError(f"{ids} are new")

        app.engine.store.find_all = never  # type: ignore[method-assign]
        first, second = await asyncio.gather(app.start(patient, None), app.start(patient, None))
        assert first.id != second.id

    story(tell)
