"""What a failed trial shows: where the process was killed, what went wrong, its timeline, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from backstay.kernel.decision import Decision
from backstay.kernel.event import Recorded
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.values import Micros
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story
from backstay.protocol import format
from backstay.testing.crashes.effects import Effect
from backstay.testing.crashes.schedule import CrashSchedule
from backstay.testing.crashes.trial import CrashTrial, Note

LINES = 60  # of a timeline
WIDTH = 100  # characters

MARKS = {"killed": "✗", "restart": "↻", "order": "⇄", "done": "!", "test": "→"}


class TrialFinding:
    """What is wrong with a trial. `kept`: the same trial with a process that forgets nothing, if that is what it differs from."""

    def __init__(self, trial: CrashTrial, kept: CrashTrial | None) -> None:
        self.trial = trial
        self.kept = kept
        self.wrong = list(self._wrong())

    def _wrong(self) -> Iterator[str]:
        trial = self.trial
        if self.kept is not None:
            yield from _forgotten(trial, self.kept)
            return
        for effects in trial.repeated:
            yield from _repeated(effects)
        for run in trial.runs:
            if run.row.is_open and run.row.status == "failed_task":
                yield f"{run.row.workflow_id} is blocked"
        if trial.error is not None:
            yield f"the test fails: {type(trial.error).__name__}: {trial.error}"


def outcomes(trial: CrashTrial) -> list[tuple[str, int, str, str]]:
    """How the runs of a trial ended."""
    return sorted((run.row.workflow_id, run.row.number, run.row.status, _ending(run.history)) for run in trial.runs)


def _ending(history: Sequence[Recorded]) -> str:
    match history[-1].event if history else None:
        case WorkflowCompleted(output=output):
            return f"result {format.value(output)}"
        case WorkflowFailed(message=message, exception_type=type):
            return f"{type}: {message}"
        case _:
            return ""


def _forgotten(trial: CrashTrial, kept: CrashTrial) -> Iterator[str]:
    before = {(id, number): _told(status, end) for id, number, status, end in outcomes(kept)}
    after = {(id, number): _told(status, end) for id, number, status, end in outcomes(trial)}
    for id, number in sorted({*before, *after}):
        known, now = (runs.get((id, number), "not there") for runs in (before, after))
        if known != now:
            yield f"run {number} of {id} is {now}. With what the killed process remembered it was {known}"
    names = ", ".join(kept.changed[:5])
    yield (
        f"State is kept in {names}. A new process does not have it. Keep it in the workflow, pass it as an argument or a result,"
        " or store it outside"
    )


def _told(status: str, end: str) -> str:
    return f"{status} ({end})" if end else status


def _repeated(effects: list[Effect]) -> Iterator[str]:
    key, last = effects[0].key, effects[-1]
    yield f"{key!r} was done {len(effects)} times: by {', by '.join(effect.told for effect in effects)}"
    attempts = [effect.attempt for effect in effects if effect.attempt is not None]
    if len(attempts) < len(effects):
        yield f"Workflow code does {key!r} itself. It runs again after a crash. Let an activity do it"
    elif len({attempt.id for attempt in attempts}) == 1 and last.attempt is not None:
        yield (
            f"Activity {last.attempt.type!r} needs its idempotency key. An attempt that had acted was killed before its result was"
            " recorded, so another one follows. Pass activity_info().idempotency_key to the system that it calls, and to effects.once()"
            if effects[0].idempotency_key is None
            else f"Activity {last.attempt.type!r} passes another idempotency key with each attempt. Pass"
            " activity_info().idempotency_key, which stays the same"
        )
    else:
        yield "Several calls do the same. An idempotency key of one call does not help: make the key of the thing that is done"


def report(finding: TrialFinding, name: str, number: int) -> str:
    """Return the message of a failed exploration. `number`: of its trials, the one that failed."""
    trial = finding.trial
    schedule = trial.schedule
    lines = [f"{_when(schedule)} (trial {number})", ""]
    lines += [f"  {part}" for wrong in finding.wrong for line in wrong.splitlines() for part in wrap(line, WIDTH)]
    lines += ["", *(f"  {line}" for line in timeline(trial)), ""]
    lines.append(f"  repeat it: {command(name, str(schedule))}")
    return "\n".join(lines)


def _when(schedule: CrashSchedule) -> str:
    if schedule.kills:
        where = ", and its successor at its point ".join(map(str, schedule.kills))
        forgets = " and forgets what it kept outside the store" if schedule.forgets else ""
        return f"this test breaks when its process is killed at point {where}{forgets}"
    if schedule.orders or schedule.late is not None:
        return "this test breaks when what happens at once happens in another order"
    return "this test breaks an invariant without a crash"


def command(name: str, schedule: str) -> str:
    if name.startswith("pytest "):
        return f"{name} --backstay-crash={schedule}"
    return name.replace("only=...", f"only={schedule!r}")


def timeline(trial: CrashTrial) -> list[str]:
    """What happened in a trial: the calls of the test, what was recorded and done, and where the process died."""
    stories: dict[int, Story] = {}
    lines: list[str] = []
    began = trial.notes[0].at if trial.notes else 0
    for note in trial.notes:
        lines += _lines(note, began, stories)
    if len(lines) > LINES:
        dropped = len(lines) - LINES
        lines = [f"... {dropped} lines before", *lines[dropped:]]
    return lines


def _lines(note: Note, began: Micros, stories: dict[int, Story]) -> Iterator[str]:
    at = f"{format.offset(note.at - began):>12}"
    if not isinstance(note.what, str):
        for decision in note.what:
            for text in _recorded(decision, stories):
                yield f"{at}  · {decision.instance.workflow_id}: {text}"
    elif note.kind != "effect":
        yield f"{at}  {MARKS.get(note.kind, '·')} {note.what}"


def _recorded(decision: Decision, stories: dict[int, Story]) -> Iterator[str]:
    story = stories.setdefault(decision.instance.key, Story(format))
    for entry in decision.events:
        phrase = tell(story, entry)
        if phrase.shown:
            yield phrase.text
