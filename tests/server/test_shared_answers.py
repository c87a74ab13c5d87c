"""Answers that several requests share."""

from __future__ import annotations

import asyncio

import pytest

from backstay.server.http.errors import HttpError
from backstay.server.http.shared_answers import SharedAnswers


class Question:
    """Its answers are numbered, and made when `go` is set."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()

    async def make(self) -> int:
        self.begun += 1
        number = self.begun
        await self.go.wait()
        if number == 3:
            raise HttpError(503, "storage_unavailable", "no")
        return number


async def test_who_comes_while_an_answer_is_made_shares_the_next_one() -> None:
    answers, asked = SharedAnswers(), Question()
    first = asyncio.ensure_future(answers.get("q", asked.make))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(answers.get("q", asked.make)) for _ in range(200)]
    await asyncio.sleep(0)
    others.pop().cancel()
    assert asked.begun == 1
    asked.go.set()
    assert await first == 1
    assert set(await asyncio.gather(*others)) == {2}
    with pytest.raises(HttpError):
        await answers.get("q", asked.make)
    assert await answers.get("q", asked.make) == 4
    assert (answers._made, answers._next) == ({}, {})


async def test_other_questions_wait_for_no_shared_answer() -> None:
    answers, asked, other = SharedAnswers(), Question(), Question()
    held = asyncio.ensure_future(answers.get("q", asked.make))
    other.go.set()
    assert await answers.get("other", other.make) == 1
    asked.go.set()
    assert await held == 1
