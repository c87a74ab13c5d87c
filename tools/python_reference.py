"""The Python API as Markdown: of each public name its signature, what its docstring says, and its documented members."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

import backstay

COLUMNS = 100


def entries(*names: str) -> str:
    """The entries of these names: of the package, or with their module."""
    return "\n\n".join(part for name in names for part in _entry(name))


def found(name: str) -> Any:
    """The thing of this name. Raises `AttributeError` if there is none."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module) if module else backstay, last)


def wrapped(text: str) -> str:
    """A docstring as paragraphs of a page. What is indented stays as it is, as a block."""
    parts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("    "):
            parts.append(f"```text\n{textwrap.dedent(paragraph)}\n```")
        else:
            parts.append(
                textwrap.fill(" ".join(paragraph.split()), COLUMNS, break_long_words=False, break_on_hyphens=False)
            )
    return "\n\n".join(parts)


def _entry(name: str) -> Iterator[str]:
    thing, short = found(name), name.rpartition(".")[2]
    yield f"### {short}"
    signature = _signature(thing)
    if signature is not None:
        yield _block(short, signature)
    if inspect.isclass(thing):
        bases = [f"`{base.__name__}`" for base in thing.__bases__ if getattr(backstay, base.__name__, None) is base]
        if bases:
            yield f"It is a {' and a '.join(bases)}, and has what that has."
    yield from _said(thing, short)
    if inspect.isclass(thing) or not inspect.isfunction(thing):
        cls: Any = thing if inspect.isclass(thing) else type(thing)
        for member, said in _members(cls):
            yield from _member(f"{short}.{member}", said)


def _said(thing: Any, name: str) -> Iterator[str]:
    doc = _own_words(thing, name)
    if doc:
        yield wrapped(doc)
    for options in _option_types(thing):
        yield wrapped(f"`{options.__name__}`: {inspect.cleandoc(options.__doc__ or '')}")


def _own_words(thing: Any, name: str) -> str:
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return inspect.cleandoc(thing.__dict__.get("__doc__") or thing.__doc__ or "")
    return _beside(type(thing).__module__, name) or inspect.cleandoc(type(thing).__dict__.get("__doc__") or "")


@cache
def _texts_beside(module: str) -> dict[str, str]:
    """The texts that stand below assignments of a module: what the assigned thing is for."""
    body = ast.parse(inspect.getsource(import_module(module))).body
    texts: dict[str, str] = {}
    for before, after in pairwise(body):
        match before, after:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str() as text)):
                texts[name] = inspect.cleandoc(text)
            case _:
                pass
    return texts


def _beside(module: str, name: str) -> str | None:
    return _texts_beside(module).get(name)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else member
        function = getattr(function, "__func__", function)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, member


def _member(path: str, member: Any) -> Iterator[str]:
    yield f"#### {path}"
    name = path.rpartition(".")[2]
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    signature = _signature(function, method=True)
    assert signature is not None
    if isinstance(member, property):
        yield _block(name, Parameters([], signature.returns), attribute=True)
    else:
        yield _block(name, signature, awaited=inspect.iscoroutinefunction(function))
    yield from _said(function, name)


# -- signatures


class Parameters(NamedTuple):
    each: list[str]
    returns: str


def _block(name: str, signature: Parameters, *, attribute: bool = False, awaited: bool = False) -> str:
    ending = "" if signature.returns in ("", "None") else f" -> {signature.returns}"
    if attribute:
        return f"```text\n{name}: {signature.returns}\n```"
    prefix = "await " if awaited else ""
    line = f"{prefix}{name}({', '.join(signature.each)}){ending}"
    if len(line) > COLUMNS:
        line = f"{prefix}{name}(\n" + "".join(f"    {each},\n" for each in signature.each) + f"){ending}"
    return f"```text\n{line}\n```"


def _signature(thing: Any, *, method: bool = False) -> Parameters | None:
    if inspect.isclass(thing) and issubclass(thing, msgspec.Struct):
        return _of_struct(thing)
    if not callable(thing) or (inspect.isclass(thing) and thing.__init__ is object.__init__):
        return None
    try:
        signature = inspect.signature(thing)
    except ValueError:  # of an exception without a constructor of its own
        return None
    each: list[str] = []
    stars = False
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    for place, parameter in enumerate(parameters):
        hint = _hint(parameter.annotation)
        if hint == "Never":
            continue  # for what is refused
        if parameter.kind is parameter.KEYWORD_ONLY and not stars:
            each.append("*")
            stars = True
        options = _unpacked(thing, hint)
        if options is not None:
            each += ([] if stars else ["*"]) + [
                f"{name}: {_hint(of)} = ..." for name, of in options.__annotations__.items()
            ]
            continue
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        stars = stars or star == "*"
        text = f"{star}{parameter.name}" + (f": {hint}" if hint else "")
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        each.append(text)
        after = parameters[place + 1 : place + 2]
        if parameter.kind is parameter.POSITIONAL_ONLY and (
            not after or after[0].kind is not parameter.POSITIONAL_ONLY
        ):
            each.append("/")
    returns = "" if inspect.isclass(thing) else _hint(signature.return_annotation)
    return Parameters(each, returns)


def _of_struct(cls: type[msgspec.Struct]) -> Parameters:
    fields = {field.name: field for field in msgspec.structs.fields(cls)}
    each = ["*"]
    for name, hint in cls.__annotations__.items():
        field = fields[name]
        given = (
            "" if field.required else f" = {'...' if field.default is msgspec.NODEFAULT else _default(field.default)}"
        )
        each.append(f"{name}: {_hint(hint)}{given}")
    return Parameters(each, "")


def _hint(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    forward = getattr(annotation, "__forward_arg__", None)  # what a TypedDict keeps of an annotation
    return forward if forward is not None else getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    text = repr(value)
    return "..." if text.startswith("<") else text


def _unpacked(thing: Any, hint: str) -> Any:
    """The TypedDict of a `**options: Unpack[Options]`, or None."""
    inner = re.fullmatch(r"Unpack\[(\w+)\]", hint)
    if inner is None:
        return None
    function: Any = thing.__init__ if inspect.isclass(thing) else thing
    return vars(sys.modules[function.__module__])[inner[1]]


def _option_types(thing: Any) -> list[Any]:
    if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, msgspec.Struct)):
        return []
    try:
        parameters = inspect.signature(thing).parameters.values()
    except ValueError:
        return []
    return [options for one in parameters if (options := _unpacked(thing, _hint(one.annotation))) is not None]
