"""asyncio's tools and anyio in workflow code: durable, the same in every replay, or refused with what to do instead."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import math
import socket
import threading
from collections.abc import Awaitable, Callable
from signal import Signals
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_process
import anyio.to_thread
import httpx
import pytest

from backstay import AsyncBackstay, WorkflowFailed, activity, workflow
from backstay.sdk.errors import DurableCallRefused, NonDeterminismError

from .kit import StillWorld, events, eventually, evicting, memory, names, settle


@activity(type="double")
def double(n: int) -> int:
    return 2 * n


@activity(type="after")
async def after(n: int) -> int:
    await asyncio.sleep(n / 1000)
    return n


@activity(type="undo")
def undo(name: str) -> str:
    return name


def run_of(code: Callable[[], Awaitable[Any]], *, unchecked: bool = True) -> Any:
    """A workflow of this code."""

    async def run() -> Any:
        return await code()

    return workflow(type="run", unchecked=unchecked)(run)


async def both(code: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The results of this code, live, and with a replay before each task."""
    found: list[Any] = []
    for made in (memory, evicting):
        run = run_of(code)
        async with made(run, double, after, undo) as app:
            found.append(await app.execute(run, "r"))
    return found


# -- what works


async def task_group() -> Any:
    out: list[int] = []

    async def go(n: int) -> None:
        out.append(await double.step(n))

    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(go, n)
    return sorted(out)


async def started() -> Any:
    async def serve(*, task_status: anyio.abc.TaskStatus[int]) -> None:
        task_status.started(await double.step(4))
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        found = await group.start(serve)
        group.cancel_scope.cancel()
    return found


async def moved_on() -> Any:
    with anyio.move_on_after(0.01) as scope:
        await anyio.sleep(3600)
    return scope.cancelled_caught


async def failed_after() -> Any:
    try:
        with anyio.fail_after(0.01):
            await anyio.sleep_forever()
    except TimeoutError:
        return "late"


async def shielded() -> Any:
    with anyio.move_on_after(0.01):
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                found = await undo.step("x")
    return found


async def streams() -> Any:
    send, receive = anyio.create_memory_object_stream[int](1)

    async def produce() -> None:
        async with send:
            for n in range(4):
                await send.send(await double.step(n))

    async with anyio.create_task_group() as group, receive:
        group.start_soon(produce)
        return [item async for item in receive]


async def locks() -> Any:
    lock, event, limit, room = anyio.Lock(), anyio.Event(), anyio.CapacityLimiter(1), anyio.Semaphore(1)
    ready = anyio.Condition()
    out: list[int] = []

    async def go(n: int) -> None:
        await event.wait()
        async with lock, limit, room:
            out.append(await double.step(n))
        async with ready:
            ready.notify_all()

    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(go, n)
        event.set()
        async with ready:
            while len(out) < 3:
                await ready.wait()
    return out


async def anyio_concurrency() -> Any:
    if not hasattr(anyio, "amap"):
        pytest.skip("of a newer anyio")
    return await anyio.amap(double.step, [1, 2, 3])


async def asyncio_group() -> Any:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        tasks = [group.create_task(double.step(n)) for n in range(3)]
    return [task.result() for task in tasks]


async def timed_out() -> Any:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(math.inf)
    except TimeoutError:
        return "late"


async def queued() -> Any:
    queue: asyncio.Queue[int] = asyncio.Queue(1)

    async def produce() -> None:
        for n in range(3):
            await queue.put(await double.step(n))

    task = asyncio.create_task(produce())
    found = [await queue.get() for _ in range(3)]
    await task
    return found


async def conditions() -> Any:
    room, event, ready = asyncio.Semaphore(2), asyncio.Event(), asyncio.Condition()
    out: list[int] = []

    async def go(n: int) -> None:
        await event.wait()
        async with room:
            value = await double.step(n)
        async with ready:
            out.append(value)
            ready.notify_all()

    tasks = [asyncio.create_task(go(n)) for n in range(3)]
    event.set()
    async with ready:
        await ready.wait_for(lambda: len(out) == 3)
    await asyncio.gather(*tasks)
    return sorted(out)


async def waited() -> Any:
    tasks = [asyncio.create_task(double.step(n)) for n in range(3)]
    done, pending = await asyncio.wait(tasks)
    return [len(done), len(pending), await asyncio.shield(tasks[2])]


async def completed() -> Any:
    return sorted([await each for each in asyncio.as_completed([double.step(n) for n in range(8)])])


async def threadless_httpx() -> Any:
    """What a library that has httpx inside needs: its types, and a client whose answers do not come from a socket."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"path": request.url.path}))
    async with httpx.AsyncClient(transport=transport, verify=False, trust_env=False) as client:
        return (await client.get("http://x/y")).json()


WORKS: list[tuple[Callable[[], Awaitable[Any]], Any]] = [
    (task_group, [0, 2, 4]),
    (started, 8),
    (moved_on, True),
    (failed_after, "late"),
    (shielded, "x"),
    (streams, [0, 2, 4, 6]),
    (locks, [0, 2, 4]),
    (anyio_concurrency, [2, 4, 6]),
    (asyncio_group, [0, 2, 4]),
    (timed_out, "late"),
    (queued, [0, 2, 4]),
    (conditions, [0, 2, 4]),
    (waited, [3, 0, 4]),
    (completed, [0, 2, 4, 6, 8, 10, 12, 14]),
    (threadless_httpx, {"path": "/y"}),
]


@pytest.mark.parametrize(("code", "result"), WORKS, ids=lambda value: getattr(value, "__name__", ""))
async def test_it_works_live_and_replayed(code: Any, result: Any) -> None:
    assert await both(code) == [result, result]


# -- a replay in another process finds objects at other addresses: nothing may depend on them


async def test_as_completed_starts_coroutines_in_their_order() -> None:
    async def code() -> list[int]:
        out: list[int] = []

        async def go(n: int) -> None:
            out.append(n)
            await double.step(n)

        made = {n * 7 % 40: go(n * 7 % 40) for n in range(40)}
        for each in asyncio.as_completed([made[n] for n in range(40)]):
            await each
        await asyncio.wait([asyncio.ensure_future(go(40))])
        return out

    assert await both(code) == [list(range(41))] * 2


async def test_a_cancel_scope_wakes_its_tasks_in_the_order_of_their_creation() -> None:
    out: list[int] = []

    async def code() -> list[int]:
        out.clear()
        held = [object() for _ in range(1000)]

        async def go(n: int) -> None:
            del held[: n * 13 % 97]  # so that the scopes have addresses in no order
            with anyio.CancelScope():
                try:
                    await anyio.sleep(3600)
                finally:
                    out.append(n)

        async with anyio.create_task_group() as group:
            for n in range(60):
                group.start_soon(go, n)
            await double.step(1)
            group.cancel_scope.cancel()
        return list(out)

    assert await both(code) == [list(range(60))] * 2


@pytest.mark.embedded("its clock is the test's")
async def test_a_deadline_has_passed_when_its_timer_fires() -> None:
    delays = [n / 7 for n in range(1, 60)]

    async def code() -> None:
        for delay in delays:
            with anyio.move_on_after(delay):
                await anyio.sleep_forever()

    world = StillWorld()
    run = run_of(code)
    async with memory(run, world=lambda: world) as app:
        handle = await app.start(run, "r")
        for delay in delays:
            await settle()
            await world.advance(delay)
        await handle.result()
        history = names(await app.history("r"))
    assert history.count("TimerScheduled") == len(delays)


# -- the story: activities in a task group, some of them given up, and code that is dropped after each of its tasks


@workflow(type="fan out")
async def fan_out(patience: float) -> list[Any]:
    out: list[Any] = []

    async def one(n: int) -> None:
        try:
            out.append(await after.step(n))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                out.append(await undo.step(f"undo {n}"))
            raise

    with anyio.move_on_after(patience) as scope:
        async with anyio.create_task_group() as group:
            for n in (1, 600_000, 700_000):
                group.start_soon(one, n)
    return [scope.cancelled_caught, *out]


async def test_activities_of_a_task_group_are_given_up_in_time_and_replayed_alike() -> None:
    for made in (memory, evicting):
        async with made(fan_out, after, undo) as app:
            found = await app.execute(fan_out, "r", 0.3)
            history = names(await app.history("r"))
        gc.collect()
        assert found == [True, 1, "undo 600000", "undo 700000"]
        assert history.count("ActivityCancelled") == 2
        assert history.count("ActivityCompleted") == 3


async def test_a_cancelled_run_leaves_its_task_groups_and_cleans_up() -> None:
    @workflow(type="long", handles_cancel="1m")
    async def long() -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 3600)
                await after.step(3_600_000)
        finally:
            await undo.step("main")

    for made in (memory, evicting):
        async with made(long, after, undo) as app:
            handle = await app.start(long, "r")
            await eventually(lambda: scheduled(app, "r"), "the activity was scheduled")
            await handle.cancel()
            with pytest.raises(Exception, match="cancel"):
                await handle.result()
            assert [event.activity_type for event in events(await app.history("r"), "ActivityCompleted")] == ["undo"]


async def scheduled(app: AsyncBackstay, id: str) -> bool:
    return "ActivityScheduled" in names(await app.history(id))


# -- every public name: it works, or it is refused with what to do instead

ACTIVITY = "activity"

LOOP_REFUSES = {
    "run_in_executor set_default_executor": ACTIVITY,
    "create_connection create_server create_datagram_endpoint create_unix_connection create_unix_server": ACTIVITY,
    "connect_accepted_socket start_tls sendfile getaddrinfo getnameinfo": ACTIVITY,
    "sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into": ACTIVITY,
    "sock_sendall sock_sendfile sock_sendto": ACTIVITY,
    "add_reader remove_reader add_writer remove_writer connect_read_pipe connect_write_pipe": ACTIVITY,
    "subprocess_exec subprocess_shell": ACTIVITY,
    "call_soon_threadsafe": "signal or an update",
    "run_forever run_until_complete stop close": "await it",
    "add_signal_handler remove_signal_handler": "cancel the run",
    "set_task_factory": "create_task",
    "set_exception_handler": "where it is awaited",
    "set_debug": "dw debug",
}
LOOP_WORKS: dict[str, Callable[[Any], Any]] = {
    "call_soon": lambda loop: loop.call_soon(print).cancel(),
    "call_later": lambda loop: loop.call_later(5, print).cancel(),
    "call_at": lambda loop: loop.call_at(loop.time() + 5, print).cancel(),
    "time": lambda loop: loop.time(),
    "create_future": lambda loop: loop.create_future().cancel(),
    "create_task": lambda loop: loop.create_task(asyncio.sleep(0)),
    "get_task_factory": lambda loop: loop.get_task_factory(),
    "get_exception_handler": lambda loop: loop.get_exception_handler(),
    "default_exception_handler": lambda loop: loop.default_exception_handler({"message": "told"}),
    "call_exception_handler": lambda loop: loop.call_exception_handler({"message": "told"}),
    "get_debug": lambda loop: loop.get_debug(),
    "is_running": lambda loop: loop.is_running(),
    "is_closed": lambda loop: loop.is_closed(),
    "shutdown_asyncgens": lambda loop: loop.shutdown_asyncgens(),
    "shutdown_default_executor": lambda loop: loop.shutdown_default_executor(),
}

ANYIO_REFUSES: dict[str, Callable[[], Any]] = {
    "connect_tcp": lambda: anyio.connect_tcp("127.0.0.1", 1),
    "create_tcp_listener": lambda: anyio.create_tcp_listener(local_host="localhost"),
    "getaddrinfo": lambda: anyio.getaddrinfo("localhost", 1),
    "getnameinfo": lambda: anyio.getnameinfo(("127.0.0.1", 1)),
    "create_udp_socket": lambda: anyio.create_udp_socket(local_host="127.0.0.1"),
    "create_connected_udp_socket": lambda: anyio.create_connected_udp_socket("127.0.0.1", 1),
    "create_unix_listener": lambda: anyio.create_unix_listener("/nowhere/at/all"),
    "create_unix_datagram_socket": lambda: anyio.create_unix_datagram_socket(local_path="/nowhere/at/all"),
    "open_file": lambda: anyio.open_file("x"),
    "Path": lambda: anyio.Path("x").read_text(),
    "wrap_file": lambda: anyio.wrap_file(io.StringIO("x")).read(),
    "AsyncFile": lambda: anyio.AsyncFile(io.StringIO("x")).read(),
    "TemporaryFile": lambda: anyio.TemporaryFile().__aenter__(),
    "NamedTemporaryFile": lambda: anyio.NamedTemporaryFile().__aenter__(),
    "TemporaryDirectory": lambda: anyio.TemporaryDirectory().__aenter__(),
    "SpooledTemporaryFile": lambda: anyio.SpooledTemporaryFile(max_size=1).rollover(),
    "mkstemp": lambda: anyio.mkstemp(),
    "mkdtemp": lambda: anyio.mkdtemp(),
    "gettempdir": lambda: anyio.gettempdir(),
    "gettempdirb": lambda: anyio.gettempdirb(),
    "open_process": lambda: anyio.open_process("ls"),
    "run_process": lambda: anyio.run_process("ls"),
    "wait_readable": lambda: anyio.wait_readable(0),
    "wait_writable": lambda: anyio.wait_writable(1),
    "wait_socket_readable": lambda: anyio.wait_socket_readable(socket.socket.__new__(socket.socket)),
    "wait_socket_writable": lambda: anyio.wait_socket_writable(socket.socket.__new__(socket.socket)),
    "as_connectable": lambda: anyio.as_connectable(("127.0.0.1", 1)).connect(),
    "TCPConnectable": lambda: anyio.TCPConnectable("127.0.0.1", 1).connect(),
    "to_thread.run_sync": lambda: anyio.to_thread.run_sync(print, "a thread ran"),
    "to_process.run_sync": lambda: anyio.to_process.run_sync(print, "a process ran"),
}

ANYIO_WORKS: dict[str, Callable[[], Any]] = {
    "sleep": lambda: anyio.sleep(0.001),
    "sleep_until": lambda: anyio.sleep_until(anyio.current_time() + 0.001),
    "sleep_forever": lambda: _given_up(anyio.sleep_forever()),
    "current_time": anyio.current_time,
    "current_effective_deadline": anyio.current_effective_deadline,
    "CancelScope": anyio.CancelScope,
    "move_on_after": lambda: _within(anyio.move_on_after(1)),
    "move_on_at": lambda: _within(anyio.move_on_at(anyio.current_time() + 1)),
    "fail_after": lambda: _within(anyio.fail_after(1)),
    "fail_at": lambda: _within(anyio.fail_at(anyio.current_time() + 1)),
    "create_task_group": lambda: task_group(),
    "create_memory_object_stream": lambda: streams(),
    "Event": lambda: anyio.Event().set(),
    "Lock": lambda: locks(),
    "Condition": lambda: anyio.Condition().acquire(),
    "Semaphore": lambda: anyio.Semaphore(1).acquire(),
    "CapacityLimiter": lambda: anyio.CapacityLimiter(1).acquire(),
    "ResourceGuard": lambda: anyio.ResourceGuard().__enter__(),
    "get_current_task": anyio.get_current_task,
    "get_running_tasks": anyio.get_running_tasks,
    "wait_all_tasks_blocked": anyio.wait_all_tasks_blocked,
    "get_cancelled_exc_class": anyio.get_cancelled_exc_class,
    "get_all_backends": anyio.get_all_backends,
    "get_available_backends": anyio.get_available_backends,
    "aclose_forcefully": lambda: _closed(),
    "notify_closing": lambda: anyio.notify_closing(0),
    "typed_attribute": anyio.typed_attribute,
    "amap": lambda: anyio.amap(double.step, [1]),
    "gather": lambda: anyio.gather(double.step(1), double.step(2)),
    "as_completed": lambda: _first_of(anyio.as_completed(double.step(1), double.step(2))),
    "lowlevel.checkpoint": anyio.lowlevel.checkpoint,
    "Future": lambda: anyio.Future[int]().cancel(),
}
# These connect before they ask the loop for anything; the guard sees the socket.
ANYIO_GUARDED: dict[str, Callable[[], Any]] = {
    "connect_unix": lambda: anyio.connect_unix("/nowhere"),
    "create_connected_unix_datagram_socket": lambda: anyio.create_connected_unix_datagram_socket("/nowhere"),
    "UNIXConnectable": lambda: anyio.UNIXConnectable("/nowhere").connect(),
}
ANYIO_REFUSES_ELSEWHERE = {
    "run": (lambda: anyio.run(anyio.sleep, 0), RuntimeError, "Already running"),
    "open_signal_receiver": (
        lambda: anyio.open_signal_receiver(Signals.SIGINT).__enter__(),
        DurableCallRefused,
        "cancel the run",
    ),
}
# Exceptions, records and base classes: nothing of them asks the loop for anything.
ANYIO_VALUES = set(
    "AsyncContextManagerMixin ContextManagerMixin TASK_STATUS_IGNORED TaskHandle TaskInfo TypedAttributeProvider"  # noqa: SIM905
    " TypedAttributeSet CapacityLimiterStatistics ConditionStatistics EventStatistics LockStatistics SemaphoreStatistics"
    " BrokenResourceError BrokenWorkerInterpreter BrokenWorkerProcess BusyResourceError ClosedResourceError"
    " ConnectionFailed DelimiterNotFound EndOfStream FutureAlreadyFinished FutureCancelled FutureFailed FutureNotFinished"
    " IncompleteRead NoEventLoopError RunFinishedError TaskCancelled TaskFailed TaskNotFinished"
    " TypedAttributeLookupError WouldBlock".split()
)


async def _given_up(never: Any) -> None:
    with anyio.move_on_after(0.001):
        await never


async def _closed() -> None:
    for stream in anyio.create_memory_object_stream[int]():
        await anyio.aclose_forcefully(stream)


async def _within(scope: Any) -> None:
    with scope:
        await anyio.lowlevel.checkpoint()


async def _first_of(completed: Any) -> Any:
    async with completed as handles:
        return (await handles.receive()).return_value


async def ends_of(calls: dict[str, Callable[[], Any]], guard: Any = "off") -> dict[str, Any]:
    """How each of these calls ends in a workflow: None, or its exception."""
    found: dict[str, Any] = {}

    async def code() -> None:
        for name, call in calls.items():
            found[name] = None
            try:
                answer = call()
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:
                while isinstance(error, ExceptionGroup):  # `connect_tcp` tries addresses in a task group
                    (error,) = error.exceptions
                found[name] = error

    run = run_of(code, unchecked=guard == "off")
    async with memory(run, double, after, undo, guard=guard) as app:
        await app.execute(run, "r")
    return found


def there(calls: dict[str, Any]) -> dict[str, Any]:
    """Those of the calls whose name the installed anyio has."""
    return {name: call for name, call in calls.items() if hasattr(anyio, name.partition(".")[0])}


@pytest.mark.embedded("the loop is the same under a worker")
async def test_every_name_of_an_event_loop_works_or_is_refused_with_what_to_do_instead() -> None:
    public = {
        name for kind in (asyncio.AbstractEventLoop, asyncio.BaseEventLoop) for name in dir(kind) if name[0] != "_"
    }
    refused = {name: advice for names, advice in LOOP_REFUSES.items() for name in names.split()}
    assert public - {"slow_callback_duration"} == set(refused) | set(LOOP_WORKS)
    ends = await ends_of(
        {name: lambda name=name: getattr(asyncio.get_running_loop(), name) for name in refused}
        | {name: lambda call=call: call(asyncio.get_running_loop()) for name, call in LOOP_WORKS.items()}
    )
    for name, error in ends.items():
        if name in LOOP_WORKS:
            assert error is None, name
        else:
            assert isinstance(error, DurableCallRefused), name
            assert f"loop.{name}() has no place in a workflow; " in str(error)
            assert refused[name] in str(error)


@pytest.mark.embedded("the loop is the same under a worker")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_every_name_of_anyio_works_or_is_refused_with_what_to_do_instead(capfd: Any) -> None:
    public = {name for name in dir(anyio) if name[0] != "_" and not inspect.ismodule(getattr(anyio, name))}
    told = set(ANYIO_WORKS) | set(ANYIO_REFUSES) | set(ANYIO_GUARDED) | set(ANYIO_REFUSES_ELSEWHERE) | ANYIO_VALUES
    assert public - told == set()
    threads = threading.active_count()
    for name, error in (await ends_of(there(ANYIO_WORKS))).items():
        assert error is None, (name, error)
    for name, error in (await ends_of(there(ANYIO_REFUSES))).items():
        assert isinstance(error, DurableCallRefused), (name, error)
        assert "activity" in str(error)
    for name, error in (await ends_of(there(ANYIO_GUARDED), guard="error")).items():
        assert isinstance(error, NonDeterminismError), (name, error)
        assert "use an activity" in str(error)
    for name, (call, kind, words) in ANYIO_REFUSES_ELSEWHERE.items():
        error = (await ends_of({name: call}))[name]
        assert isinstance(error, kind), (name, error)
        assert words in str(error)
    assert threading.active_count() <= threads + 1  # of activities: no thread of anyio
    assert capfd.readouterr().out == ""


async def test_work_for_a_thread_is_refused_before_it_begins() -> None:
    ran: list[int] = []
    run = run_of(lambda: anyio.to_thread.run_sync(ran.append, 1))
    async with memory(run) as app:
        with pytest.raises(WorkflowFailed, match="a thread has no place in a workflow; make it an activity"):
            await app.execute(run, "r")
    assert ran == []


async def test_http_from_workflow_code_is_refused_before_it_begins() -> None:
    async def code() -> None:
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            await client.get("http://shop.example/")

    run = run_of(code)
    async with memory(run) as app:
        with pytest.raises(WorkflowFailed, match="do it in an activity"):
            await app.execute(run, "r")
