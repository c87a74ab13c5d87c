"""The file of `dw dev` with an engine in its own process, where there is no server: it works and prints the events."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from rich.console import Console

from backstay.cli.dev_console import TAKEN_OVER, other_engine
from backstay.cli.dev_events import EventFeed
from backstay.cli.dev_plan import DevPlan
from backstay.cli.loading import Program
from backstay.cli.reading import StoreReader
from backstay.sdk.embedded import Backstay

LOOK = 0.1


def work(program: Program, plan: DevPlan, out: Console, is_over: Callable[[], bool], ready: Callable[[], None]) -> None:
    """Work until `is_over`. `ready` is called when the database is open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loading has told them as hints
        backstay = Backstay(
            plan.path,
            program.things,
            namespace=plan.namespace,
            queues=program.queues.union(plan.queues),
            types=program.types,
        )
    with StoreReader(plan.path, create=True) as reader:
        feed = EventFeed(reader, plan.namespace, out)
        feed.remember()
        with backstay:
            waiting = not backstay.is_engine
            if waiting:
                out.print(other_engine(plan.path), style="yellow", markup=False)
            ready()
            if feed.open_runs is not None:
                out.print(feed.open_runs, style="cyan")
            feed.begin()
            while not is_over():
                feed.look()
                if waiting and backstay.is_engine:
                    waiting = False
                    out.print(TAKEN_OVER, style="green")
                time.sleep(LOOK)
        feed.look()
