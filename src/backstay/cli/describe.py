"""`dw describe`: the state of a workflow, its waits, and the reason if it does not move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from backstay.kernel.task import Block
    from backstay.kernel.words import Story
    from backstay.protocol.requests import Description, TaskView


IDLE = "no engine runs this database, so no run moves; start one that does (your program, or dw dev FILE)"


@click.command(name="describe")
@click.argument("id")
@options.place
@options.namespace
def command(id: str, path: options.Place, namespace: str) -> None:
    """Show the state of workflow ID: status, waits, tasks and last failure.

    For a blocked run, shows its history and the steps of the current code side by side.

    \b
    Examples:
      dw describe order-1
      dw describe order-1 --db shop.db
    """
    from backstay.cli import format
    from backstay.cli.console import console
    from backstay.cli.reading import reader_of
    from backstay.kernel.views.timeline import tell
    from backstay.kernel.words import Story
    from backstay.protocol.requests import DescribeWorkflow, GetHistory

    story = Story(format)
    with reader_of(path, namespace) as reader:
        described = reader.ask(DescribeWorkflow(workflow_id=id, namespace=namespace))
        for entry in reader.ask(GetHistory(workflow_id=id, namespace=namespace)):
            tell(story, entry)
        idle = described.run is not None and described.run.closed_at is None and not reader.has_engine()
    out = console()
    status = "blocked" if described.blocked else described.status
    out.print(f"{described.workflow_id}  {described.workflow_type}  {status}", style="bold", markup=False)
    for name, text in _facts(described, story):
        out.print(f"  {name:<13} {text}", markup=False)
    for line in format.where(story.failed, whole=True):
        out.print(f"  {'':<13} {line}", style="bright_black", markup=False, highlight=False)
    if idle:
        out.print(f"  {'engine':<13} {IDLE}", style="yellow", markup=False)
    for view in described.tasks:
        _show_task(out, view)
    for command in described.commands:
        if command.unreadable is not None:
            what = f"{command.command_type} command {command.sequence} ({command.id}) cannot be read"
            out.print(f"  {'damaged':<13} {what}: {format.shortened(command.unreadable)}", style="red", markup=False)
    for view in described.tasks:
        if view.task.block is not None:
            _show_block(out, described.workflow_id, view.task.block)


def _facts(described: Description, story: Story) -> list[tuple[str, str]]:
    from backstay.cli import format

    now = format.now()
    facts: list[tuple[str, str]] = []
    run = described.run
    if run is None:
        return [("reserved", "no run has been started yet")]
    facts.append(("run", f"{run.run_id} (number {run.number}, {run.length} events)"))
    facts.append(("started", f"{format.moment(run.started_at)} ({format.ago(run.started_at, now)})"))
    if described.parent_workflow_id is not None:
        facts.append(("child of", described.parent_workflow_id))
    if described.schedule_id is not None:
        facts.append(("started by", f"schedule {described.schedule_id}"))
    if run.closed_at is not None:
        took = format.span(run.closed_at - run.started_at)
        facts.append(("closed", f"{format.moment(run.closed_at)}, {run.closed_reason} after {took}"))
    else:
        facts.append(("liveness", described.liveness_state.replace("_", " ")))
        facts += [("waits for", f"step {step.number}: {step.waits(format, now)}") for step in story.open.values()]
        if not story.open:
            facts.append(("waits for", "its next workflow task"))
        if described.next_wake is not None:
            facts.append(
                ("next wake", f"{format.moment(described.next_wake)} ({format.ago(described.next_wake, now)})")
            )
    for name, at in (("run deadline", described.run_deadline_at), ("deadline", described.execution_deadline_at)):
        if at is not None:
            facts.append((name, f"{format.moment(at)} ({format.ago(at, now)})"))
    if run.queue != "default":
        facts.append(("queue", run.queue))
    if run.business_key is not None:
        facts.append(("business key", run.business_key))
    for name, pairs in (("labels", run.labels), ("search", run.search_attributes)):
        if pairs:
            facts.append((name, format.shortened(", ".join(f"{key}={value}" for key, value in pairs.items()))))
    for key, blob in described.memo.items():
        facts.append(("memo", f"{key} = {format.value(blob)}"))
    if story.last_failure is not None:
        at, why = story.last_failure
        facts.append(("last failure", f"{why} ({format.ago(at, now)})"))
    return facts


def _show_task(out: Console, view: TaskView) -> None:
    from backstay.cli import format

    task = view.task
    now = format.now()
    notes = [f"attempt {task.attempt}"] if task.attempt else []
    if view.transport_state == "scheduled":
        notes.append(f"in {format.span(task.available_at - now)}")
    elif view.transport_state == "ready":
        notes.append(f"waiting for a worker of queue {task.routing.queue!r} for {format.span(now - task.available_at)}")
    elif task.owner is not None:
        notes.append(f"held by {task.owner}")
    if task.repair_count:
        notes.append(f"repaired {task.repair_count}x")
    colour = "red" if task.state == "failed" or view.transport_state == "lease_expired" else "default"
    text = f"  {'task':<13} {task.kind} {task.type}, {view.transport_state}" + "".join(f", {note}" for note in notes)
    out.print(text, style=colour, markup=False)


def _show_block(out: Console, id: str, block: Block) -> None:
    from backstay.cli import format
    from backstay.cli.differences import side_by_side

    out.print()
    what = "blocked" if block.replay_blocked else "the workflow task failed and is retried"
    out.print(f"{what}: {format.shortened(block.message, 1000)}", style="bold red", markup=False)
    if block.blocked_by is not None:
        out.print(f"  by {format.shortened(block.blocked_by)}", markup=False, highlight=False)
    for line in (block.stack_trace or "").splitlines():
        out.print(f"  {line}", style="bright_black", markup=False, highlight=False)
    if block.difference:
        out.print(side_by_side(block.difference))
    if block.replay_blocked:
        out.print(
            f"Deploy code that fits this history, and the run continues; or retry now: dw repair {id}", markup=False
        )
