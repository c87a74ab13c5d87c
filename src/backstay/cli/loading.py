"""A Python file as a program of workflows: imported as its module, with everything in it that can be registered.

Errors name the file and its line; frames of Backstay are left out of tracebacks.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeGuard

from backstay.cli.problems import CliError
from backstay.sdk.author.activity import ActivityDefinition as ActivityDefinition
from backstay.sdk.author.workflow import WorkflowFn, definition_of
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.errors import DefinitionError
from backstay.sdk.replay.replayer import Judge
from backstay.sdk.worker.registry import Registry, Types, activity_methods

DEFAULT_QUEUE = "default"


class Program(NamedTuple):
    """The definitions of a file. `things` are registered with the worker."""

    file: Path
    things: list[Any]
    types: Types | None
    workflows: dict[str, WorkflowDefinition]
    names: dict[str, Any]  # workflows by their names in the file
    activities: list[str]
    queues: frozenset[str]
    hints: list[str]

    def workflow(self, name: str) -> Any:
        """The workflow called `name`, by its name in the file or its durable type."""
        if name in self.names:
            return self.names[name]
        if name in self.workflows:
            wanted = self.workflows[name]
            return next(thing for thing in self.names.values() if definition_of(thing) is wanted)
        known = ", ".join(sorted(self.names)) or "none"
        raise CliError(f"{near(self.file)} has no workflow {name!r}; it has: {known}")


def near(file: str | os.PathLike[str]) -> str:
    """A path as the reader would type it."""
    relative = os.path.relpath(file)
    return os.fspath(file) if relative.startswith("..") else relative


def check(file: Path) -> None:
    if not file.exists():
        module = Path(*str(file).split(".")).with_suffix(".py")
        hint = f"; it takes a file, so write {module}" if module.exists() else "; it takes a file, such as shop.py"
        raise CliError(f"there is no file {near(file)}{hint if file.suffix != '.py' else ''}")
    if not file.is_file() or file.suffix != ".py":
        raise CliError(f"{near(file)} is not a Python file")


def load(file: Path) -> Program:
    """Import the file and find its definitions. `CliError` if it cannot be imported or defines something wrongly."""
    check(file)
    name, root = module_name(file)
    with _errors_of(file, root):
        module = _import(file, name, root)
        program = collect(file, module)
        _register(program)
    return program


def registry_of(program: Program) -> Registry:
    """What a program registers. Its code was checked when it was loaded."""
    registry = Registry(program.types, "off")
    registry.register(program.things)
    return registry


def judge_of(program: Program) -> Judge:
    """A judge that replays histories with the code of a program."""
    return Judge(registry_of(program))


def module_name(file: Path) -> tuple[str, Path]:
    """The dotted name a file is imported by, and the directory that its top package lives in."""
    file = file.resolve()
    parts = [file.stem] if file.stem != "__init__" else []
    root = file.parent
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    return ".".join(parts) or file.stem, root


def _import(file: Path, name: str, root: Path) -> ModuleType:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "backstay":
        raise CliError(f"{near(file)} has the name of another module, {top!r}; rename it")
    if os.fspath(root) not in sys.path:
        sys.path.insert(0, os.fspath(root))
    spec = spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise CliError(f"{near(file)} is not a Python file")
    module = module_from_spec(spec)
    # By its own name, so that exceptions and classes are found again by the name that history keeps.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def collect(file: Path, module: ModuleType) -> Program:
    """Find what an imported module defines."""
    program = Program(file, [], None, {}, {}, [], frozenset(), [])
    queues = {DEFAULT_QUEUE}
    types: list[Types] = []
    members: dict[str, Any] = {name: thing for name, thing in vars(module).items() if not name.startswith("__")}
    for name, thing in members.items():
        if isinstance(thing, Types):
            types.append(thing)
        elif _is_workflow(thing):
            definition = definition_of(thing)
            program.names[name] = thing
            program.workflows[definition.type] = definition
            queues.add(definition.queue or DEFAULT_QUEUE)
            program.things.append(thing)
        elif _is_activity(thing):
            if not thing.method and not thing.extern:
                program.things.append(thing)
                _note(program, queues, thing)
        elif isinstance(thing, type):
            if issubclass(thing, Exception) and _is_theirs(thing):
                program.things.append(thing)
        elif methods := activity_methods(_class_of(thing)):
            program.things.append(thing)
            for method in methods:
                _note(program, queues, method)
    if len(types) > 1:
        raise CliError(f"{near(file)} has {len(types)} type maps; keep one")
    served = {_class_of(thing) for thing in program.things}
    hints = [
        f"{thing.__name__} has activity methods but no instance at module level; assign one to serve them"
        for thing in members.values()
        if isinstance(thing, type)
        and thing.__module__ == module.__name__
        and not _is_workflow(thing)
        and activity_methods(thing)
        and not any(issubclass(kind, thing) for kind in served)
    ]
    return program._replace(types=types[0] if types else None, queues=frozenset(queues), hints=hints)


def _note(program: Program, queues: set[str], definition: ActivityDefinition[Any, Any]) -> None:
    if definition.type not in program.activities:
        program.activities.append(definition.type)
    queues.add(definition.queue or DEFAULT_QUEUE)


def _register(program: Program) -> None:
    """Register everything once to find mistakes early; warnings become hints."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Registry(program.types).register(program.things)
    program.hints.extend(f"{near(warning.filename)}:{warning.lineno}: {warning.message}" for warning in caught)


def _is_workflow(thing: object) -> bool:
    return isinstance(thing, WorkflowFn) or (isinstance(thing, type) and "__backstay_workflow__" in vars(thing))


def _is_activity(thing: Any) -> TypeGuard[ActivityDefinition[Any, Any]]:
    return isinstance(thing, ActivityDefinition)


def _class_of(thing: object) -> type[Any]:
    return type(thing)


def _is_theirs(cls: type) -> bool:
    """Not an exception of Python or of Backstay that the file has only imported."""
    top = cls.__module__.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in ("builtins", "backstay")


@contextmanager
def _errors_of(file: Path, root: Path) -> Generator[None]:
    """Report an error as `file:line: what`, at the innermost line of the user's own code."""
    linecache.checkcache()
    try:
        yield
    except CliError:
        raise
    except SyntaxError as error:
        where = f"{near(error.filename or file)}:{error.lineno or 1}"
        line = (error.text or "").strip()
        raise CliError(f"{where}: SyntaxError: {error.msg}" + (f"\n    {line}" if line else "")) from None
    except SystemExit:
        raise CliError(
            f"{near(file)} exits while it is imported; put that under `if __name__ == '__main__':`"
        ) from None
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _within(f.filename, root)]
        if isinstance(error, DefinitionError) and not frames:
            text = str(error)
            located = text.startswith((near(file), os.fspath(file)))
            raise CliError(text if located else f"{near(file)}: {text}") from None
        if not frames:
            raise CliError(f"{near(file)}: {type(error).__name__}: {error}") from None
        frame = frames[-1]
        kind = "" if isinstance(error, DefinitionError) else f"{type(error).__name__}: "
        shown = f"\n    {frame.line}" if frame.line else ""
        raise CliError(f"{near(frame.filename)}:{frame.lineno}: {kind}{error}{shown}") from None


def _within(filename: str, root: Path) -> bool:
    path = Path(filename)
    own = Path(__file__).resolve().parents[1]
    if not path.exists():
        return False
    path = path.resolve()
    return path.is_relative_to(root) and not path.is_relative_to(own) and "site-packages" not in path.parts
