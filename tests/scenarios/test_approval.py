"""A document needs a human. The run waits for days if it must, in no memory at all, and gives up when nobody comes."""

from __future__ import annotations

import pytest

from backstay import Backstay, Saga, Signal, WorkflowFailed, activity, query, signal, wait, workflow

mail: list[str] = []


@activity
def ask(boss: str, document: str) -> None:
    mail.append(f"to {boss}: please look at {document}")


@activity
def withdraw(boss: str, document: str) -> None:
    mail.append(f"to {boss}: never mind {document}")


@activity
def publish(document: str) -> str:
    return f"{document} is out"


class TooLate(Exception):
    pass


@workflow
class Approval:
    """Approved by one of several; remarks are welcome and change nothing."""

    remarks = Signal[str]()

    def __init__(self) -> None:
        self.by: str | None = None

    @signal
    def approve(self, by: str) -> None:
        self.by = self.by or by

    @query
    def status(self) -> str:
        return f"approved by {self.by}" if self.by else "waiting"

    def handle(self, document: str, bosses: list[str], patience: str) -> str:
        with Saga() as saga:
            for boss in bosses:
                ask(boss, document)
                saga.undo(withdraw, boss, document)
            if not wait(lambda: self.by, key="approved", timeout=patience):
                raise TooLate(f"nobody looked at {document} within {patience}")
        remark = wait(self.remarks, timeout=0)
        return f"{publish(document)} ({remark})" if remark else publish(document)


EVERYTHING = [Approval, ask, withdraw, publish, TooLate]


def test_the_first_to_approve_wins_even_over_a_restart(database: str) -> None:
    mail.clear()
    with Backstay(database, EVERYTHING) as app:
        run = app.start(Approval, "report", "the report", ["ann", "bob"], "3d")
        assert run.query(Approval.status) == "waiting"
    with Backstay(database, EVERYTHING) as app:  # days later, after a deploy
        run = app.handle(Approval, "report")
        run.signal(Approval.remarks, "nice")
        run.signal(Approval.approve, "bob")
        assert run.result() == "the report is out (nice)"
        assert run.query(Approval.status) == "approved by bob"
    with Backstay(database, EVERYTHING) as app:  # and for ever after
        assert app.handle(Approval, "report").query(Approval.status) == "approved by bob"
    assert mail == ["to ann: please look at the report", "to bob: please look at the report"]


def test_an_approval_that_is_not_given_in_time_is_withdrawn(database: str) -> None:
    mail.clear()
    with Backstay(database, EVERYTHING) as app:
        with pytest.raises(WorkflowFailed) as failed:
            app.execute(Approval, "memo", "the memo", ["ann", "bob"], "20ms")
        assert isinstance(failed.value.__cause__, TooLate)
    assert mail[2:] == ["to bob: never mind the memo", "to ann: never mind the memo"]
