"""A report every night at half past two, made up for three nights.

The clocks of Berlin jump over half past two in the night to the 28th of March 2027: the report of that night comes at three.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from backstay import Backstay, activity, info, workflow


@activity
def count_sales(day: str) -> int:
    return len(day) - 7


@workflow
def report(shop: str) -> str:
    night = info().occurrence  # what it was started for, whenever it runs
    day = "no day" if night is None else f"{night:%Y-%m-%d}"
    return f"{shop}: {count_sales(day)} sales on {day}"


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Backstay(Path(directory) / "nightly.db", register=[report, count_sales]) as backstay,
    ):
        schedules = backstay.schedules.options(cron="30 2 * * *", timezone="Europe/Berlin", overlap="allow_all")
        nightly = schedules.ensure(report, "nightly", "corner shop")
        nights = nightly.backfill(datetime(2027, 3, 27, tzinfo=UTC), datetime(2027, 3, 30, tzinfo=UTC))
        for night in nights:
            id = night.workflow_id or ""
            print(id, "->", backstay.handle(report, id).result())


if __name__ == "__main__":
    main()
