"""An account: a workflow that is asked, and told, from outside for as long as it is open."""

from __future__ import annotations

from backstay import Signal, query, update, wait, workflow


@workflow
class Account:
    close = Signal[bool]()

    def __init__(self) -> None:
        self.balance = 0

    @query
    def total(self) -> int:
        return self.balance

    @update
    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @deposit.validator
    def positive(self, amount: int) -> None:
        if amount <= 0:
            raise ValueError("a deposit is positive")

    def handle(self) -> int:
        wait(self.close)
        return self.balance
