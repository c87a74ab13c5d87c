"""`dw history`: the history of a run, as a timeline or as JSON events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import click

from backstay.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from backstay.cli.reading import ServerReader, StoreReader
    from backstay.kernel.event import Recorded
    from backstay.protocol.shown_events import EventFilter

LOOK = 0.05  # seconds between two looks while following


@click.command(name="history")
@click.argument("id")
@options.place
@options.namespace
@click.option("--run", "run_id", metavar="RUN", help="Use this run of the workflow instead of the current one.")
@click.option("--json", "as_json", is_flag=True, help="Print the events in their wire form, one JSON object per line.")
@click.option("--traces", is_flag=True, help="Print the whole traceback of every failure.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the run closes.")
@click.option("--tail", metavar="N", type=click.IntRange(1), help="Only the last N events.")
@click.option("--from", "first", metavar="N", type=click.IntRange(1), help="Only from event N on.")
@click.option("--to", "last", metavar="N", type=click.IntRange(1), help="Only up to event N.")
@click.option(
    "--kind", "kinds", metavar="KIND", multiple=True, help="Only events of this kind: activity, timer, signal ..."
)
@click.option("--text", metavar="TEXT", default="", help="Only events whose fields or payloads contain TEXT.")
def command(
    id: str,
    path: options.Place,
    namespace: str,
    run_id: str | None,
    as_json: bool,
    traces: bool,
    follow: bool,
    tail: int | None,
    first: int | None,
    last: int | None,
    kinds: tuple[str, ...],
    text: str,
) -> None:
    """Show the history of workflow ID as a timeline.

    Times count from the start of the run; the number after the time is the step. The command only reads, so it is safe
    beside a running engine.

    \b
    Examples:
      dw history order-1
      dw history order-1 --follow
      dw history order-1 --traces
      dw history order-1 --tail 20
      dw history order-1 --kind activity --text declined
      dw history order-1 --json | jq .event_type
      dw history order-1 --run 01J9ZQ5W3V6K1Q7T0M8E2C4X5B
    """
    from backstay.cli.reading import reader_of

    with reader_of(path, namespace) as reader:
        teller = _Json(reader, id, namespace, run_id) if as_json else _Words(reader, id, namespace, run_id, traces)
        chosen = _chosen(kinds, text)
        start = first or 1
        if tail is not None:
            start = max(start, teller.run.length - tail + 1)
        if last is not None and last < start:
            raise click.UsageError(f"the range ends at event {last}, before it begins at {start}")
        teller.shows = lambda entry: (
            start <= entry.sequence and (last is None or entry.sequence <= last) and chosen.matches(entry)
        )
        teller.tell()
        while follow and not teller.closed:
            if reader.changed():
                teller.tell()
            else:
                time.sleep(LOOK)
        teller.end()


def _chosen(kinds: tuple[str, ...], text: str) -> EventFilter:
    from difflib import get_close_matches

    from backstay.cli.problems import CliError
    from backstay.protocol.shown_events import KINDS, EventFilter

    for kind in kinds:
        if kind not in KINDS:
            near = get_close_matches(kind, KINDS, 1)
            raise CliError(
                f"there is no kind {kind!r}; "
                + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(KINDS)}")
            )
    return EventFilter(kinds=frozenset(kinds), text=text)


class _Teller(ABC):
    """Prints the events of one run, each once."""

    def __init__(self, reader: StoreReader | ServerReader, id: str, namespace: str, run_id: str | None) -> None:
        from backstay.cli.problems import Missing
        from backstay.protocol.requests import DescribeWorkflow

        described = reader.ask(DescribeWorkflow(workflow_id=id, namespace=namespace))
        if run_id is None:
            run = described.run
            if run is None:
                raise Missing(f"workflow {id!r} is reserved and has no run yet")
        else:
            run = reader.run(namespace, id, run_id)
            if run is None:
                raise Missing(f"workflow {id!r} has no run {run_id!r}; see `dw list --id {id}`")
        self.reader = reader
        self.run = run
        self.closed = run.closed_reason is not None
        self._after = 0
        self.shows: Callable[[Recorded], bool] = lambda entry: True

    def tell(self) -> None:
        from backstay.protocol.requests import GetHistory

        asked = self.run
        run = self.reader.run(asked.namespace, asked.workflow_id, asked.run_id)
        history = GetHistory(
            workflow_id=asked.workflow_id, namespace=asked.namespace, run_id=asked.run_id, after=self._after
        )
        for entry in self.reader.ask(history):
            self._after = entry.sequence
            self.event(entry, self.shows(entry))
        # The row was read before the events: a run that closed in between is finished by the next call.
        self.closed = run is None or run.closed_reason is not None

    @abstractmethod
    def event(self, entry: Recorded, shown: bool) -> None:
        """Print one event, if it is shown. The words of later ones may depend on it."""

    def end(self) -> None:  # noqa: B027 - most have nothing to add
        """Print the lines after the last event."""


class _Json(_Teller):
    def event(self, entry: Recorded, shown: bool) -> None:
        if not shown:
            return
        import msgspec

        from backstay.protocol.history import to_wire

        click.echo(msgspec.json.encode(to_wire(entry, self.run.run_id)).decode())


class _Words(_Teller):
    def __init__(
        self, reader: StoreReader | ServerReader, id: str, namespace: str, run_id: str | None, traces: bool
    ) -> None:
        from backstay.cli import format
        from backstay.cli.console import console
        from backstay.kernel.words import Story

        super().__init__(reader, id, namespace, run_id)
        self.console = console()
        self.story = Story(format)
        self.traces = traces
        run = self.run
        self.console.print(
            f"{run.workflow_id}  {run.workflow_type}  run {run.number} ({run.run_id}),"
            f" started {format.moment(run.started_at)}",
            style="bold",
            markup=False,
        )

    def event(self, entry: Recorded, shown: bool) -> None:
        from backstay.cli import format
        from backstay.cli.timeline import line_of

        line = line_of(self.story, entry)
        if line is not None and shown:
            self.console.print(line)
            for frame in format.where(entry.event, self.traces):
                self.console.print(f"{'':>21}{frame}", style="bright_black", markup=False, highlight=False)

    def end(self) -> None:
        from backstay.cli import format

        now = format.now()
        for step in self.story.open.values():
            self.console.print(f"{'':>12} {step.number:>4}  … {step.waits(format, now)}", style="cyan", markup=False)
