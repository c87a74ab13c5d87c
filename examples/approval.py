"""An expense needs a human: it is booked, waits for somebody to approve it, and gives up after a while.

Others talk to the run while it waits: a signal approves, an update changes the amount and answers, a query looks. Run it with
`python examples/approval.py`, or live with `dw dev examples/approval.py` and, beside it,

    dw start examples/approval.py:Approval expense-1 '{"who": "ann", "cents": 4200}'
    dw query expense-1 status --app examples/approval.py
    dw update expense-1 amend 3900
    dw signal expense-1 approve '"bob"'
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from backstay import Backstay, RequestRefused, Saga, activity, query, signal, update, wait, workflow


@dataclass
class Expense:
    who: str
    cents: int


@activity
def book(expense: Expense) -> str:
    return f"booking of {expense.who}"


@activity
def unbook(booking: str) -> None:
    print(f"undone: {booking}")


@activity
def pay(who: str, cents: int) -> str:
    return f"{who} gets {cents / 100:.2f}"


class NotApprovedError(Exception):
    pass


@workflow(type="expense.approval")
class Approval:
    def __init__(self) -> None:
        self.by: str | None = None
        self.cents = 0

    @signal
    def approve(self, by: str) -> None:
        """Whoever sends this only needs to know that it arrived."""
        self.by = by

    @update
    def amend(self, cents: int) -> str:
        """Whoever sends this wants an answer, and that it happens exactly once."""
        before, self.cents = self.cents, cents
        return f"{before} -> {cents}"

    @amend.validator
    def check(self, cents: int) -> None:
        if cents <= 0:
            raise ValueError("an expense costs something")

    @query
    def status(self) -> str:
        return f"{self.cents} cents, {'approved by ' + self.by if self.by else 'waiting'}"

    def handle(self, expense: Expense, patience: str = "3d") -> str:
        self.cents = expense.cents
        with Saga() as saga:
            booking = book(expense)
            saga.undo(unbook, booking)
            if not wait(lambda: self.by, key="approved", timeout=patience):
                raise NotApprovedError(f"nobody approved it within {patience}")
        return f"{pay(expense.who, self.cents)}, approved by {self.by}"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory) / "expenses.db"
        with Backstay(database, register=[Approval, book, unbook, pay, NotApprovedError]) as app:
            run = app.start(Approval, "expense-1", Expense("ann", 4200))
            print("amended:", run.update(Approval.amend, 3900))
            try:
                run.update(Approval.amend, -1)
            except RequestRefused as refused:
                print("refused:", refused.fields["validation_errors"]["validator"][0])
            print("status:", run.query(Approval.status))
            run.signal(Approval.approve, "bob")
            print("result:", run.result())
            print("and long after:", run.query(Approval.status))
            try:
                app.execute(Approval, "expense-2", Expense("ben", 99), patience="20ms")
            except Exception as failed:
                print(f"expense-2: {failed.__cause__}")


if __name__ == "__main__":
    main()
