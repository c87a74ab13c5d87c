"""What a process starts beside the engine counts, too, and is not remembered for ever."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from backstay import AsyncBackstay, wait, workflow
from tests.sdk.kit import eventually


@workflow
def patient() -> str:
    return wait("go")


def tallied(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as rows:
        return dict(
            rows.execute("select outcome, sum(n) from tally where grain = (select min(grain) from tally) group by 1")
        )


@pytest.mark.parametrize("closes", [True, False])
async def test_what_is_started_beside_the_engine_counts(tmp_path: Path, closes: bool) -> None:
    path = tmp_path / "app.db"
    async with AsyncBackstay(path, [patient]) as engine:
        await engine.start(patient, "here")
        async with AsyncBackstay(path, [patient], client_only=True) as beside:
            for number in range(3):
                await beside.start(patient, f"beside-{number}")
            await beside.handle(patient, "beside-0").terminate()
            if not closes:
                await eventually(lambda: tallied(path) == {"started": 4, "terminated": 1})
                projector = beside._node.projector
                assert not [*projector.noted, *projector.indexed, *projector.closed]
    assert tallied(path) == {"started": 4, "terminated": 1}
