"""The rules of the source check: what must not be called inside a workflow, and what to call instead.

A thing is forbidden by name (`time.time`), by the module it comes from (`subprocess`), or as a method of a shared
random generator. Names become objects when a check begins, so that an alias is caught and a namesake is not.
"""

from __future__ import annotations

import random
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    WrapperDescriptorType,
)

from msgspec import Struct

from backstay.sdk.replay.source.names import InstanceOf, KnownValue, Ref, Unloaded, member, module


class Rule(Struct, frozen=True):
    name: str
    advice: str


CLOCK = Rule("clock", "use backstay.now()")
SLEEP = Rule("sleep", "use backstay.sleep()")
RANDOM = Rule("random", "use backstay.rng()")
UUID = Rule("random", "use backstay.uuid4()")
IO = Rule("io", "use an activity")
ENVIRONMENT = Rule("environment", "pass it as an argument, or read it in backstay.side_effect()")
THREAD = Rule("thread", "use backstay.spawn(), or an activity for blocking work")
EVENT_LOOP = Rule("asyncio", "await it; the run is already on an event loop")
EXECUTOR = Rule("asyncio", "use an activity")

_BY_NAME: tuple[tuple[Rule, str, str], ...] = (
    (CLOCK, "time", "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns"),
    (CLOCK, "time", "thread_time thread_time_ns localtime gmtime ctime asctime strftime"),
    (CLOCK, "datetime.datetime", "now utcnow today"),
    (CLOCK, "datetime.date", "today"),
    (SLEEP, "time", "sleep"),
    (RANDOM, "random", "Random SystemRandom"),
    (RANDOM, "os", "urandom getrandom"),
    (UUID, "uuid", "uuid1 uuid4 uuid6 uuid7 getnode"),
    (IO, "builtins", "open input"),
    (
        IO,
        "os",
        "system popen open read write listdir scandir walk stat lstat access remove unlink rename renames replace",
    ),
    (IO, "os", "mkdir makedirs rmdir removedirs link symlink readlink chmod chown truncate utime chdir getcwd"),
    (IO, "os.path", "exists lexists isfile isdir islink getsize getmtime getatime getctime"),
    (
        IO,
        "pathlib.Path",
        "open read_text read_bytes write_text write_bytes exists is_file is_dir is_symlink stat lstat",
    ),
    (IO, "pathlib.Path", "iterdir glob rglob walk mkdir rmdir unlink touch rename replace chmod resolve cwd home"),
    (IO, "sqlite3", "connect"),
    (IO, "asyncio", "open_connection start_server create_subprocess_exec create_subprocess_shell"),
    (ENVIRONMENT, "os", "environ environb getenv getenvb putenv unsetenv getpid getppid getlogin"),
    (THREAD, "os", "fork forkpty kill posix_spawn"),
    (
        IO,
        "anyio",
        "open_file open_process run_process connect_tcp connect_unix create_tcp_listener create_unix_listener",
    ),
    (EVENT_LOOP, "asyncio", "run"),
    (EVENT_LOOP, "anyio", "run"),
    (EXECUTOR, "asyncio", "to_thread run_coroutine_threadsafe"),
    (EXECUTOR, "anyio.to_thread", "run_sync"),
    (EXECUTOR, "anyio.to_process", "run_sync"),
)
NAMED = {f"{owner}.{name}": rule for rule, owner, names in _BY_NAME for name in names.split()}

# Forbidden only with fewer arguments than this: with them, the answer depends on nothing else.
PURE_FROM = {
    "time.localtime": 1,
    "time.gmtime": 1,
    "time.ctime": 1,
    "time.asctime": 1,
    "time.strftime": 2,
    "random.Random": 1,
}

MODULES = {
    "random": RANDOM,
    "secrets": RANDOM,
    "subprocess": IO,
    "socket": IO,
    "_socket": IO,
    "shutil": IO,
    "tempfile": IO,
    "glob": IO,
    "urllib.request": IO,
    "http.client": IO,
    "requests": IO,
    "httpx": IO,
    "aiohttp": IO,
    "urllib3": IO,
    "threading": THREAD,
    "_thread": THREAD,
    "multiprocessing": THREAD,
    "concurrent.futures": THREAD,
}


class Table:
    """The rules as objects, for the modules that are loaded now; others cannot be reached by any global name."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        for path in NAMED:
            ref = _reach(path)
            if isinstance(ref, KnownValue):
                self._paths[id(ref.value)] = path

    def path(self, ref: Ref | None) -> str | None:
        """Return the name of a forbidden object in its own module."""
        match ref:
            case KnownValue(value=value):
                return self._paths.get(id(value))
            case Unloaded(path=path) if path in NAMED:
                return path
            case _:
                return None

    def calling(self, ref: Ref | None, arguments: int) -> Rule | None:
        """Return the rule that a call with this many arguments breaks."""
        path = self.path(ref)
        if path is not None:
            return None if arguments >= PURE_FROM.get(path, arguments + 1) else NAMED[path]
        match ref:
            case KnownValue(value=type() as cls) if issubclass(cls, BaseException):
                return None
            case KnownValue(value=FunctionType() as method) if vars(random.Random).get(method.__name__) is method:
                return None  # of a generator that the author made: with a seed, or that was the offence
            case KnownValue(value=value):
                return RANDOM if _draws(value) else _of_module(_module_of(value))
            case Unloaded(path=path):
                return _of_module(path)
            case InstanceOf() | None:
                return None

    def asking(self, ref: Ref | None) -> Rule | None:
        """Return the rule that any method of this object breaks: a random generator of a module, which all runs share."""
        return RANDOM if isinstance(ref, KnownValue) and isinstance(ref.value, random.Random) else None

    def entering(self, ref: Ref | None) -> Rule | None:
        """Return the rule that `with` on this object breaks: a lock of a module, a client, a pool."""
        return _of_module(_module_of(ref.value)) if isinstance(ref, KnownValue) else None


def _reach(path: str) -> Ref | None:
    top, *rest = path.split(".")
    ref: Ref | None = module(top)
    for attr in rest:
        ref = member(ref, attr) if ref else None
    return ref


def _draws(value: object) -> bool:
    """A method of a generator that all runs share: `random.choice`, `secrets.choice`, one kept by a module."""
    owner = getattr(value, "__self__", None) if isinstance(value, BuiltinFunctionType | MethodType) else None
    return isinstance(owner, random.Random)


def _module_of(value: object) -> str:
    match value:
        case BuiltinFunctionType():
            own: str | None = value.__module__  # a bound method of a C type has none
            return own or type(value.__self__).__module__
        case FunctionType() | MethodType() | type():
            return value.__module__
        case MethodDescriptorType() | ClassMethodDescriptorType() | WrapperDescriptorType():
            return value.__objclass__.__module__
        case _:
            return type(value).__module__


def _of_module(path: str) -> Rule | None:
    while path:
        if path in MODULES:
            return MODULES[path]
        path = path.rpartition(".")[0]
    return None
