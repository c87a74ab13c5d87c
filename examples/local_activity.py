"""Local activities: short work done beside the workflow task, recorded with it in one commit.

An ordinary activity is a task of its own: scheduled, leased, completed. A local one saves those trips. It suits lookups
and small calculations; if its process dies in the middle it is simply done again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from backstay import Backstay, activity, workflow

RATES = {"EUR": 100, "USD": 92, "CHF": 104}


@activity(local=True, retries=2, backoff="10ms")
def rate(currency: str) -> int:
    return RATES[currency]


@activity
def pay(cents: int) -> str:
    return f"paid {cents / 100:.2f} EUR"


@workflow
def settle(invoices: list[tuple[str, int]]) -> str:
    total = sum(cents * rate(currency) // 100 for currency, cents in invoices)
    return pay(total)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Backstay(Path(directory) / "invoices.db", register=[settle, rate, pay]) as backstay,
    ):
        print(backstay.execute(settle, "settle-1", [("EUR", 1000), ("USD", 2000), ("CHF", 500)]))
        events = [entry.type for entry in backstay.history("settle-1")]
        print(f"{events.count('ActivityCompleted')} activities, {len(events)} events")


if __name__ == "__main__":
    main()
