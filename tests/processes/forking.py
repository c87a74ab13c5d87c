"""A program that forks, before or after it opens Backstay. What each process finds out is one line of output."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable

from backstay import Backstay

from . import flows


def tell(line: str) -> None:
    """In one write: `print` may write a line and its end apart, and a sibling's line comes between."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def attempt(what: str, call: Callable[[], object]) -> None:
    try:
        tell(f"{what}: {call()}")
    except Exception as error:
        tell(f"{what}: {type(error).__name__}: {error}")


def in_child(work: Callable[[], None]) -> int:
    """Fork, do it there, and return how the child ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            sys.stdout.flush()
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def use(app: Backstay, ledger: str) -> None:
    attempt("child starts", lambda: app.start(flows.visit, "child", ledger, "child"))
    attempt("child lists", app.list)
    attempt("child asks", lambda: app.is_engine)
    attempt("child closes", app.close)


def opened_before(path: str, ledger: str) -> None:
    with Backstay(path, flows.REGISTER) as app:
        attempt("parent before", lambda: app.execute(flows.visit, "before", ledger, "before"))
        in_child(lambda: use(app, ledger))
        attempt("parent after", lambda: app.execute(flows.visit, "after", ledger, "after"))


def opened_before_with_multiprocessing(path: str, ledger: str) -> None:
    with Backstay(path, flows.REGISTER) as app:
        attempt("parent before", lambda: app.execute(flows.visit, "before", ledger, "before"))
        child = multiprocessing.get_context("fork").Process(target=use, args=(app, ledger))
        child.start()
        child.join()
        attempt("parent after", lambda: app.execute(flows.visit, "after", ledger, "after"))


def child_leaves_the_block(path: str, ledger: str) -> None:
    """A child that falls out of its parent's `with` closes nothing of its parent."""
    with Backstay(path, flows.REGISTER) as app:
        attempt("parent before", lambda: app.execute(flows.visit, "before", ledger, "before"))
        pid = os.fork()
        if pid == 0:
            sys.exit(7)
        tell(f"child ended: {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
        attempt("parent after", lambda: app.execute(flows.visit, "after", ledger, "after"))


def child_opens_its_own(path: str, ledger: str) -> None:
    with Backstay(path, flows.REGISTER) as app:
        attempt("parent before", lambda: app.execute(flows.visit, "before", ledger, "before"))
        in_child(lambda: attempt("child opens", Backstay(path, flows.REGISTER).open))
        attempt("parent after", lambda: app.execute(flows.visit, "after", ledger, "after"))


def child_opens_what_was_closed(path: str, ledger: str) -> None:
    def work() -> None:
        with app:
            attempt("child runs", lambda: app.execute(flows.visit, "child", ledger, "child"))

    app = Backstay(path, flows.REGISTER)
    with app:
        attempt("parent before", lambda: app.execute(flows.visit, "before", ledger, "before"))
    in_child(work)
    with app:
        attempt("parent after", lambda: app.execute(flows.visit, "after", ledger, "after"))


def workers_open_after_the_fork(path: str, ledger: str) -> None:
    """Like a web server that forks its workers first: each opens the file, one of them runs the engine."""

    app = Backstay(path, flows.REGISTER)  # declared at import, as programs do

    def work(number: int) -> None:
        with app:
            for n in range(5):
                id = f"{number}-{n}"
                attempt(f"worker {id}", lambda name=id: app.execute(flows.visit, name, ledger, name))

    pids = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            try:
                work(number)
            finally:
                sys.stdout.flush()
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    os.register_at_fork(after_in_child=lambda: signal.alarm(15))  # a child that hangs ends as -SIGALRM
    globals()[sys.argv[1]](*sys.argv[2:])
    print("the end", flush=True)
