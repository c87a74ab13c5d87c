"""`TestBackstay`: the app of a test without `await`. It runs on a thread of its own; `async with` gives the async one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from backstay.sdk.author.durations import Duration
from backstay.sdk.client.sync import Client
from backstay.sdk.embedded.app import Backstay, BackstayOptions
from backstay.sdk.embedded.thread import EngineThread
from backstay.testing.app import MAX_JUMPS, NEW_YEAR, PATIENCE, AsyncTestBackstay
from backstay.testing.doubles import Behaviour, DoublesState, Fake
from backstay.testing.timelines import RunHistory

T = TypeVar("T")


class TestBackstay(Backstay):
    """The real engine in memory, on virtual time: `with TestBackstay(register=[order, charge]) as app:`.

    Time stands still while activities run and while the test does something else. It jumps when all waits, the test included.

    `at`: when its time begins. `seed`: of its ids and of the random numbers of workflows. A call that is not answered after
    `max_jumps` jumps of the clock raises `Stuck`, and so does one that waits for an activity which takes more than `patience` seconds
    of real time (None: any). The other options are those of `Backstay`. `async with` returns an `AsyncTestBackstay`.
    """

    __test__ = False

    def __init__(
        self,
        register: Iterable[Any] = (),
        *,
        at: datetime | str = NEW_YEAR,
        seed: int | None = None,
        max_jumps: int = MAX_JUMPS,
        patience: Duration | None = PATIENCE,
        **options: Unpack[BackstayOptions],
    ) -> None:
        self._test_app = self._app = AsyncTestBackstay(
            register, at=at, seed=seed, max_jumps=max_jumps, patience=patience, **options
        )
        self._engine_thread = EngineThread()
        Client.__init__(self, self._app, self._engine_thread)

    def __repr__(self) -> str:
        return repr(self._app).replace("<AsyncTestBackstay", "<TestBackstay", 1)

    @property
    def now(self) -> datetime:
        """The time of the test, in UTC."""
        return self._test_app.now

    def advance(self, by: Duration, *, while_running: bool = False) -> None:
        """Let this much time pass, and wait until everything has happened that is due by then.

        Activities that run hold the clock. With `while_running` they do not: so a test sees one time out.
        """
        self._bridge.run(self._test_app.advance(by, while_running=while_running))

    def settle(self) -> None:
        """Wait until everything has happened that needs no time to pass: `advance(0)`."""
        self._bridge.run(self._test_app.settle())

    def run_until(self, true: Callable[[], T], *, within: Duration | None = None) -> T:
        """Let time pass, from one thing that happens to the next, until `true` returns something true. Returns that.

        Raises `Stuck` when nothing happens any more, after `within`, or after `max_jumps` jumps of the clock.
        """
        for limit in self._test_app.jumps(within):
            self.settle()
            if found := true():
                return found
            if not self._bridge.run(self._test_app.jump(limit)):
                break
        raise self._bridge.run(self._test_app.never_true(within))

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Hold the clock inside a `with` block, though somebody waits: while another thread of the test needs real time."""

        async def hold(held: Any, begins: bool) -> None:
            if begins:
                held.__enter__()
            else:
                held.__exit__(None, None, None)

        held = self._test_app.frozen()
        self._bridge.run(hold(held, True))
        try:
            yield
        finally:
            self._bridge.run(hold(held, False))

    def fake(
        self,
        target: Any,
        *,
        returns: Any = Behaviour.NOTHING,
        raises: BaseException | type[BaseException] | None = None,
        calls: Callable[..., Any] | None = None,
        hangs: bool = False,
    ) -> Fake:
        """Let something else stand in for an activity or a child, given as such or by its type. Returns the record of its calls.

        It returns a value (None by default), raises an error, calls a function with the arguments, or hangs until it times out or
        is cancelled. Raises `DefinitionError` for a type that is not known.
        """
        return self._on_its_thread(
            lambda: self._test_app.fake(target, returns=returns, raises=raises, calls=calls, hangs=hangs)
        )

    def fail_next(self, target: Any, times: int = 1, error: BaseException | type[BaseException] | None = None) -> None:
        """Let the next attempts of an activity fail. Those after them do what the activity, or its fake, does."""
        self._on_its_thread(lambda: self._test_app.fail_next(target, times, error))

    def doubles(self) -> DoublesState:
        """Return what stands in for what, for `begin_anew`."""
        return self._test_app.doubles()

    def begin_anew(self, doubles: DoublesState) -> None:
        """Forget what a test has done to an app that is not open: let stand in what stood in then."""
        self._test_app.begin_anew(doubles)

    def timeline(self, id: str) -> str:
        """Return what has happened in a workflow as text, as `dw history` prints it."""
        return self._bridge.run(self._test_app.timeline(id))

    def runs(self) -> list[RunHistory]:
        """Return the histories of all runs that were started here, the oldest first."""
        return self._bridge.run(self._test_app.runs())

    def open(self) -> Self:
        """Open the engine, as `with` does; `close()` ends it."""
        super().open()
        self._test_app.peek = self.runs  # its loop turns in another thread
        return self

    def close(self) -> None:
        """End the engine. What runs on threads gets `grace` seconds to end."""
        vars(self._test_app).pop("peek", None)
        super().close()

    def _on_its_thread(self, call: Callable[[], T]) -> T:
        async def made() -> T:
            return call()

        return self._bridge.run(made()) if self._engine_thread.running else call()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._engine_thread.mine:
            self._bridge.run(self._test_app.add_note(error))
        self.close()

    async def __aenter__(self) -> AsyncTestBackstay:
        return await self._test_app.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._test_app.__aexit__(kind, error, trace)
