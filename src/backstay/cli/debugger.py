"""The prompt of `dw debug`: pdb on code that stands still. `next`, `back` and `goto` replay the history up to another event.

Whatever is typed runs on a greenlet of the replayed run that may make no durable calls, so an activity that is called at the
prompt is refused.
"""

from __future__ import annotations

from collections.abc import Generator
from pdb import Pdb
from types import FrameType, FunctionType, GeneratorType
from typing import Any

from backstay.cli import format
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.machine import Machine
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story
from backstay.protocol.recorded_run import RecordedRun
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.replay.standing_code import StandingCode
from backstay.sdk.worker.registry import Registry

MOVES = {"next", "n", "back", "goto", "quit", "q", "exit", "EOF"}
"""Commands that leave this stop."""

STILL = {
    *("step", "s", "continue", "c", "cont", "return", "r", "until", "unt", "jump", "j", "run", "restart", "interact"),
    *(
        "break",
        "b",
        "tbreak",
        "clear",
        "cl",
        "condition",
        "ignore",
        "enable",
        "disable",
        "commands",
        "debug",
        "display",
    ),
}
"""Commands of pdb for code that runs."""


class RunDebugger(Pdb):
    def __init__(self, machine: Machine, registry: Registry, definition: WorkflowDefinition, run: RecordedRun) -> None:
        super().__init__(readrc=False, nosigint=True)
        self.prompt = "(dw) "
        self._machine = machine
        self._registry = registry
        self._definition = definition
        self._run = run
        self._code: StandingCode | None = None
        self._event = 0
        self._goes_to: int | None = None
        started = (number for number, entry in enumerate(run.history, 1) if isinstance(entry.event, WorkflowStarted))
        self._first = next(started, 1)  # before it there is no code
        self._last = len(run.history)

    def debug(self, event: int) -> None:
        """Stop after this event, and after others as they are asked for, until the end of input."""
        to: int | None = min(max(event, self._first), self._last)
        while to is not None:
            self._code = StandingCode(self._machine, self._registry, self._definition, self._run, to)
            self._event = to
            self._goes_to = None
            try:
                self._stand(self._code)
            finally:
                self._code.close()
                self._code = None
                self.forget()
            to = self._goes_to

    def _stand(self, code: StandingCode) -> None:
        self.message(self._heading())
        if code.problem is not None:
            self.message(f"the code does not fit: {code.problem}")
        self.reset()
        self.setup(None, None)
        if code.frames():
            self.print_stack_entry(self.stack[self.curindex])
        else:
            self.message("the code has ended")
        self._cmdloop()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]

    def _heading(self) -> str:
        story = Story(format)
        text = ""
        for entry in self._run.history[: self._event]:
            phrase = tell(story, entry)
            text = f"{phrase.mark} {phrase.text}" if phrase.shown else entry.type
        last = self._run.history[self._event - 1]
        return f"event {self._event} of {self._last}, {format.offset(last.at - story.began)}: {text}"

    # -- pdb

    def get_stack(self, f: FrameType | None, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """The stack of the workflow code, which is not that of this process."""
        assert self._code is not None
        stack = [(frame, frame.f_lineno) for frame in self._code.frames()] or [(_nothing(), 1)]
        return stack, len(stack) - 1

    def onecmd(self, line: str) -> bool:
        word = line.strip().partition(" ")[0]
        if word in STILL:
            self.error(f"{word}: this code stands still; use next, back or goto N")
            return False
        if word in MOVES or self._code is None:
            return bool(super().onecmd(line))
        handle = super().onecmd
        return bool(self._code.ask(lambda: handle(line), "what is typed here"))

    def do_next(self, arg: str) -> bool:
        """n(ext): go to the event after this one."""
        return self._go(self._event + 1)

    do_n = do_next

    def do_back(self, arg: str) -> bool:
        """back: go to the event before this one, which replays the history up to there."""
        return self._go(self._event - 1)

    def do_goto(self, arg: str) -> bool:
        """goto N: go to event N."""
        if not arg.strip().isdecimal():
            self.error(f"goto takes the number of an event, from {self._first} to {self._last}")
            return False
        return self._go(int(arg))

    def do_quit(self, arg: str) -> bool:
        """q(uit): end the session."""
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool:  # noqa: N802 - as pdb names it
        self.message("")
        return True

    def _go(self, event: int) -> bool:
        if not self._first <= event <= self._last:
            self.error(f"the code of this run stands at events {self._first} to {self._last}")
            return False
        self._goes_to = event
        return True


def _nothing() -> FrameType:
    """The frame of code that is not there: no locals, and no globals of ours."""
    made: GeneratorType[None, None, None] = FunctionType(_empty.__code__, {})()
    frame = made.gi_frame
    assert frame is not None, "it has not begun"
    return frame


def _empty() -> Generator[None]:
    yield
