"""Types for the operator's page, made of the server's own: `python -m tools.js_types FILE`.

The modules of Waterline are JavaScript with types in comments. What they ask the server for has the shapes that its handlers say
they return (`Route.answer_types`), and what they send has those that requests are decoded into. Both are written here as
TypeScript, for the check of the page's code, which is made where it is needed and kept nowhere. An answer whose handler says no
shape is `any`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import inspect as shapes

from backstay.server.http.router import Route

PLANES = ("control", "discovery", "sign_in")  # what the page asks; these answers say when they were made
_PLAIN: dict[type[shapes.Type], str] = {
    shapes.AnyType: "any",
    shapes.RawType: "any",
    shapes.NoneType: "null",
    shapes.BoolType: "boolean",
    shapes.IntType: "number",
    shapes.FloatType: "number",
    shapes.StrType: "string",
    shapes.BytesType: "string",
}


class Declarations:
    """The interfaces that some types need. `of` gives a type in TypeScript, and notes what it refers to."""

    def __init__(self) -> None:
        self.interfaces: dict[str, str] = {}
        self._known: dict[str, object] = {}

    def of(self, kind: shapes.Type) -> str:
        plain = _PLAIN.get(type(kind))
        if plain is not None:
            return plain
        match kind:
            case shapes.Metadata():
                return self.of(kind.type)
            case shapes.LiteralType():
                return " | ".join(json.dumps(value) for value in kind.values)
            case shapes.UnionType():
                return " | ".join(dict.fromkeys(self.of(one) for one in kind.types))
            case shapes.ListType() | shapes.VarTupleType() | shapes.SetType() | shapes.FrozenSetType():
                return f"Array<{self.of(kind.item_type)}>"
            case shapes.TupleType():
                return f"[{', '.join(self.of(one) for one in kind.item_types)}]"
            case shapes.DictType():
                return f"Record<string, {self.of(kind.value_type)}>"
            case shapes.StructType() | shapes.TypedDictType():
                return self._interface(kind)
            case _:
                raise TypeError(f"there is no TypeScript for {kind}; add it to {__name__}")

    def _interface(self, kind: shapes.StructType | shapes.TypedDictType) -> str:
        name = kind.cls.__name__
        if name not in self._known:
            self._known[name] = kind.cls
            fields = [
                f"    {json.dumps(field.encode_name)}{'' if field.required else '?'}: {self.of(field.type)};"
                for field in kind.fields
            ]
            self.interfaces[name] = "\n".join([f"  interface {name} {{", *fields, "  }"])
        if self._known[name] is not kind.cls:
            raise TypeError(f"two types are called {name}; give one of them another name")
        return name


def declarations(routes: Iterable[Route]) -> str:
    """Everything as a file of TypeScript: the namespace `Api`, with `Api.Get<path>`, `Api.Post<path>` and so on for answers."""
    found = Declarations()
    answers: dict[str, list[tuple[str, str]]] = {}
    bodies: dict[str, list[tuple[str, str]]] = {}
    for route in sorted((route for route in routes if route.plane in PLANES), key=_place):
        # A handler with a dry run of its own answers two shapes.
        types = () if route.own_dry_run else route.answer_types
        method, path = route.method.capitalize(), _pattern(route.path)
        # A route that says nothing is listed, too, or a shorter path would be taken for it.
        shown = " | ".join(found.of(shapes.type_info(kind)) for kind in types)
        told = "any" if not types else f"Stamped & ({shown})" if len(types) > 1 else f"Stamped & {shown}"
        answers.setdefault(method, []).append((path, told))
        if route.body is not None:
            bodies.setdefault(f"{method}Body", []).append((path, found.of(shapes.type_info(route.body))))
    return "\n".join(
        [
            "// Made of the server's own types by tools/js_types.py.",
            "declare namespace Api {",
            "  interface Stamped {\n    generated_at: string;\n  }",
            *found.interfaces.values(),
            *_choices(answers | bodies),
            "}",
            "",
        ]
    )


def _place(route: Route) -> tuple[int, int, str]:
    """Long paths come first, and of equal ones those with more words: a parameter of TypeScript takes slashes, too."""
    return -route.path.count("/"), route.path.count("{"), route.path


def _pattern(path: str) -> str:
    return "`" + re.sub(r"\{[^}]*\}", "${string}", path) + "`"


def _choices(found: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    for name, routes in found.items():
        choices = "\n".join(f"    Path extends {pattern} ? {shape} :" for pattern, shape in routes)
        yield f"  type {name}<Path extends string> =\n{choices}\n    any;"


def main() -> None:
    from backstay.server.routes import ROUTES

    Path(sys.argv[1]).write_text(declarations(ROUTES))


if __name__ == "__main__":
    main()
