"""The parts of the reference that are made from the code. `make reference` writes them into the pages.

A page under docs/reference holds `<!-- reference: errors -->` and `<!-- end of reference -->`. What stands between them is
made here; the rest of the page is written by hand. Words after the name of the part are its arguments.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

import backstay
from backstay import BackstayError, Limits
from backstay.cli.main import dw
from backstay.kernel.event import Event
from backstay.kernel.limits import Breach
from backstay.kernel.machine import Machine
from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.kernel.views.timeline import WORDS
from backstay.server.settings import Settings
from backstay.server.settings_reference import SECTIONS, variable
from tools.python_reference import entries, wrapped

SOURCE = Path(backstay.__file__).parent
REFERENCE = SOURCE.parents[1] / "docs" / "reference"
_END = "<!-- end of reference -->"
_MARK = re.compile(rf"(<!-- reference: (\w+)([^>]*?) -->\n).*?{_END}", re.DOTALL)


def filled(markdown: str) -> str:
    """A page with the parts between its marks made anew."""
    return _MARK.sub(lambda mark: f"{mark[1]}\n{PARTS[mark[2]](*mark[3].split())}\n\n{_END}", markdown)


def marks(markdown: str) -> list[tuple[str, list[str]]]:
    """The parts of a page, with their arguments."""
    return [(part, arguments.split()) for _, part, arguments in _MARK.findall(markdown)]


def main() -> None:
    """Write every page whose parts have changed."""
    for page in sorted(REFERENCE.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"changed: docs/reference/{page.name}")


# -- dw


def commands(command: click.Command = dw, path: str = "dw") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before what is in them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from commands(found, f"{path} {name}")


def cli() -> str:
    """Every command: how it is called, what it does, its options. Not the text of `--help`, whose layout is click's."""
    parts: list[str] = []
    for path, command in commands():
        if command is not dw:
            parts += [f"{'##' if path.count(' ') == 1 else '###'} {path}", *_command(path, command)]
    return "\n\n".join(parts)


def _command(path: str, command: click.Command) -> Iterator[str]:
    pieces = [piece for parameter in command.params if (piece := _piece(parameter))]
    more = ["COMMAND ..."] if isinstance(command, click.Group) else []
    options = ["[OPTIONS]"] if any(isinstance(parameter, click.Option) for parameter in command.params) else []
    yield f"```text\n{' '.join([path, *options, *pieces, *more])}\n```"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        yield f"```text\n{kept}\n```" if kept != paragraph else wrapped(paragraph)
    rows = [_option(one) for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])


def _piece(parameter: click.Parameter) -> str:
    """An argument as the line of usage shows it."""
    if not isinstance(parameter, click.Argument):
        return ""
    name = parameter.metavar or (parameter.name or "").upper()
    if name.startswith("["):
        return name
    shown = f"{name}..." if parameter.nargs != 1 else name
    return shown if parameter.required else f"[{shown}]"


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    choices = getattr(option.type, "choices", None)
    value = "" if option.is_flag or option.count else option.metavar or " or ".join(choices or [])
    meaning = " ".join((option.help or "").split())
    if option.show_default:
        meaning = f"{meaning} Default: {option.default}.".strip()
    shown = f" `{value}`" if value else ""
    return f"| {names}{shown} | {meaning} |"


# -- settings


def settings() -> str:
    """Every setting with its variable, its default and what it means."""
    fields = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    parts: list[str] = []
    for section in SECTIONS:
        rows = ["| setting | variable | default | meaning |", "|---|---|---|---|"]
        for name, meaning in section.settings.items():
            empty = {"allowed_hosts": "none"}.get(name, "`{}`")
            default = empty if fields[name] is msgspec.NODEFAULT else _default(fields[name])
            rows.append(f"| `{name}` | `{variable(name)}` | {default} | {meaning} |")
        parts += [f"## {section.title}", *([wrapped(section.intro)] if section.intro else []), "\n".join(rows)]
    return "\n\n".join(parts)


def _default(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return f"`{value}`"
        case _:
            return f"{value:,}" if value >= 10_000 else f"{value}"


# -- errors


def errors() -> list[type[BackstayError]]:
    """Every public error, each after its base class."""
    public = {getattr(backstay, name) for name in backstay.__all__}
    found: list[type[BackstayError]] = []

    def add(cls: type[BackstayError]) -> None:
        if cls in public:
            found.append(cls)
            for sub in sorted(cls.__subclasses__(), key=lambda sub: sub.__name__):
                add(sub)

    add(BackstayError)
    return found


def advice(cls: type[BackstayError]) -> tuple[str, str]:
    """What happened, and what to do: the first two paragraphs of the docstring."""
    what, _, rest = (inspect.cleandoc(cls.__dict__.get("__doc__") or "")).partition("\n\n")
    return _line(what), _line(rest.partition("\n\n")[0])


def error_table() -> str:
    rows = ["| error | what happened | what to do |", "|---|---|---|"]
    for cls in errors():
        what, todo = advice(cls)
        depth = len([base for base in cls.__mro__ if base is not BackstayError and issubclass(base, BackstayError)])
        indent = "&nbsp;" * 4 * (depth - 1) if depth else ""
        rows.append(f"| {indent}`{cls.__name__}` | {what} | {todo} |")
    return "\n".join(rows)


# -- events


def events() -> dict[str, list[type[Event]]]:
    """Every event of a history, by the feature that records it."""
    found: dict[str, list[type[Event]]] = {}
    for kind in Machine().kinds.values():
        found.setdefault(_feature(kind), []).append(kind)
    return dict(sorted(found.items()))


def _feature(kind: type[Event]) -> str:
    return kind.__module__.partition(".features.")[2].partition(".")[0].replace("_", " ")


def event_list() -> str:
    parts: list[str] = []
    for feature, kinds in events().items():
        parts.append(f"## {feature[:1].upper()}{feature[1:]}")
        shared = set(_fields(kinds[0])).intersection(*map(_fields, kinds)) if len(kinds) > 1 else set[str]()
        if shared:
            named = ", ".join(text for text in _fields(kinds[0]) if text in shared)
            parts.append(wrapped(f"All of these have {named}."))
        for kind in sorted(kinds, key=lambda kind: kind.__name__):
            said = _line(inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("\n\n")[0])
            own = [text for text in _fields(kind) if text not in shared]
            about = f"About: {WORDS[kind].about.kind.replace('_', ' ')}."
            fields = f" {'Also' if shared else 'Fields'}: {', '.join(own)}." if own else ""
            parts += [f"### {kind.__name__}", *([wrapped(said)] if said else []), wrapped(about + fields)]
    return "\n\n".join(parts)


def _fields(kind: type[Event]) -> list[str]:
    return [f"`{field.name}` ({_type(field.type)})" for field in msgspec.structs.fields(kind)]


def _type(hint: Any) -> str:
    """An annotation as a reader wants it: without what msgspec needs to know beside it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if part is type(None) else _type(part) for part in inner)
    if origin is typing.Literal:
        return " or ".join(repr(choice) for choice in inner)
    if inner:
        return f"{_type(origin)} of {', '.join(_type(part) for part in inner)}"
    return getattr(hint, "__name__", str(hint))


# -- limits


def limit_table() -> str:
    rows = ["| limit | default | to stay within it |", "|---|---|---|"]
    for field in msgspec.structs.fields(Limits):
        todo = Breach(field.name, 0, 0).message.partition("; ")[2]
        unit = " bytes" if field.name.endswith("_size") and field.name != "command_batch_size" else ""
        rows.append(f"| `{field.name}` | {field.default:,}{unit} | {todo} |")
    return "\n".join(rows)


# -- modules


def modules() -> dict[str, list[tuple[str, str]]]:
    """By package: its modules, each with the first sentence of its docstring."""
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        package = file.parent.relative_to(SOURCE.parent).as_posix()
        found.setdefault(package, []).append((file.stem, _line(re.split(r"(?<=\.)\s|\n\n", said, maxsplit=1)[0])))
    return found


def module_list() -> str:
    parts: list[str] = []
    for package, rows in modules().items():
        parts.append(f"## {package}")
        parts += [wrapped(said) for name, said in rows if name == "__init__" and said]
        table = [f"| `{name}` | {said} |" for name, said in rows if name != "__init__"]
        if table:
            parts.append("\n".join(["| module | what it holds |", "|---|---|", *table]))
    return "\n\n".join(parts)


def _line(text: str) -> str:
    return " ".join(text.split())


# -- operator commands


def command_table() -> str:
    """Every operator command: what it does, its fields, its outcomes and its refusals."""
    rows = ["| command | effect | fields | outcomes | refusals |", "|---|---|---|---|---|"]
    for command in OPERATOR_COMMANDS.values():
        fields = [f"`{field.name}`" for field in command.fields]
        cells = (
            f"`{command.verb}`",
            f"{command.about()} {command.more}".strip(),
            ", ".join([*fields, "`request_id`"]),
            ", ".join(f"`{outcome}`" for outcome in command.outcomes),
            ", ".join(f"`{reason}`" for reason in command.refusals) or "none of its own",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


PARTS: dict[str, Callable[..., str]] = {
    "commands": command_table,
    "dw": cli,
    "errors": error_table,
    "events": event_list,
    "limits": limit_table,
    "modules": module_list,
    "python": entries,
    "settings": settings,
}

if __name__ == "__main__":
    main()
