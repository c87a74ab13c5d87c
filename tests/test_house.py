"""The house rules of the source that no linter knows."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src" / "backstay"

PAIRS = {
    "ActivityCancelled": "an event of history, and the error that authors catch",
    "ActivityTimedOut": "an event of history, and the error that authors catch",
    "Command": "a command of workflow code, and what Django asks a command of `manage.py` to be called",
    "WorkflowFailed": "an event of history, and the error that authors catch",
    "WorkflowTimedOut": "an event of history, and the error that authors catch",
}
"""Class names that stand for two things on purpose, and why."""


def places_of_classes() -> dict[str, list[str]]:
    """Every class at the top level of a module, and the modules that define one of its name."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(SOURCES.rglob("*.py")):
        module = ".".join(file.relative_to(SOURCES.parent).with_suffix("").parts).removesuffix(".__init__")
        for statement in ast.parse(file.read_text()).body:
            if isinstance(statement, ast.ClassDef):
                places[statement.name].append(module)
    return places


def test_a_class_name_stands_for_one_thing_in_the_whole_package() -> None:
    taken_twice = {name: modules for name, modules in places_of_classes().items() if len(modules) > 1}
    new = {name: modules for name, modules in taken_twice.items() if name not in PAIRS}
    assert not new, f"these names are taken already, find others: {new}"
    single = sorted(PAIRS.keys() - taken_twice.keys())
    assert not single, f"these names stand for one thing now, take them off the list: {single}"


def test_few_class_names_are_pairs_on_purpose() -> None:
    assert len(PAIRS) < 10


# -- import cycles

CYCLE_AT_RUN_TIME = 4
"""The most modules that may import each other in a circle, imports inside of functions included."""

CYCLE_WITH_TYPES = {
    "cli": 1,
    "codec": 1,
    "engine": 2,
    "kernel": 4,
    "protocol": 1,
    "sdk": 4,
    "server": 5,
    "store": 1,
}
"""The same with imports that only a type checker needs, by package; what is not named here has none. Only ever fewer."""


def imports_of_modules(*, types: bool) -> dict[str, set[str]]:
    """The modules that each module imports. `types`: those that only a type checker needs are imports, too."""
    files = {
        ".".join(file.relative_to(SOURCES.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in sorted(SOURCES.rglob("*.py"))
    }
    return {
        module: {name for name in _imported(ast.parse(file.read_text()), types, files.keys()) if name != module}
        for module, file in files.items()
    }


def _imported(node: ast.AST, types: bool, modules: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom):
        assert node.module is not None, "imports are absolute"
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            yield from (found for found in (name if name in modules else node.module,) if found in modules)
    elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not types:
        return
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imported(child, types, modules)


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other in a circle (the strongly connected components), the largest first."""
    reached = {module: _reached(graph, module) for module in graph}
    found = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return sorted((sorted(cycle) for cycle in found if len(cycle) > 1), key=len, reverse=True)


def _reached(graph: Mapping[str, set[str]], module: str) -> set[str]:
    reached: set[str] = set()
    ahead = [module]
    while ahead:
        for name in graph[ahead.pop()] - reached:
            reached.add(name)
            ahead.append(name)
    return reached


def test_few_modules_import_each_other_in_a_circle_at_run_time() -> None:
    large = [cycle for cycle in cycles(imports_of_modules(types=False)) if len(cycle) > CYCLE_AT_RUN_TIME]
    assert not large, f"these import each other in a circle: {large}"


def test_no_package_has_a_larger_circle_of_imports_for_types_than_it_had() -> None:
    for cycle in cycles(imports_of_modules(types=True)):
        packages = {module.split(".")[1] for module in cycle if "." in module}
        assert len(packages) == 1, f"a circle of imports leads through several packages: {cycle}"
        (package,) = packages
        bound = CYCLE_WITH_TYPES.get(package, 1)
        assert len(cycle) <= bound, f"at most {bound} modules of {package} may import each other in a circle: {cycle}"


def test_circles_of_imports_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert cycles(graph) == [["a", "b", "c"], ["d", "e"]]


# -- words

RIDDLES = {
    "behind": "say `after`",
    "whoever": "name the part or the person",
    "nobody": "name the part or the person: `no caller`, `no process`",
    "anybody": "name the part or the person: `any caller`, `any process`",
    "doings": "say what is done",
}
"""Words that docstrings and comments do without, and what to write instead."""

PLAIN = ("left behind",)
"""Phrases in which such a word means what every reader takes it for."""

GLOSSARY = SOURCES.parent.parent / "docs" / "glossary.md"
MOST_WORDS = 70


def riddles(text: str) -> set[str]:
    """The words of docstrings and comments in a source text that a reader would have to guess at."""
    prose = [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    ]
    statements = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    constants = (value.value for value in statements if isinstance(value, ast.Constant))
    prose += [value for value in constants if isinstance(value, str)]
    found: set[str] = set()
    for piece in prose:
        said = " ".join(piece.lower().split())
        for phrase in PLAIN:
            said = said.replace(phrase, "")
        found |= RIDDLES.keys() & set(re.findall(r"\w+", said))
    return found


def test_docstrings_and_comments_have_no_riddles() -> None:
    found = {str(file.relative_to(SOURCES)): riddles(file.read_text()) for file in sorted(SOURCES.rglob("*.py"))}
    advice = {file: {word: RIDDLES[word] for word in words} for file, words in found.items() if words}
    assert not advice, f"say it plainly: {advice}"


def test_riddles_are_found_in_docstrings_and_comments_and_nowhere_else() -> None:
    assert riddles('"""Whoever\nasks."""\nx = 1  # comes behind it\n') == {"whoever", "behind"}
    assert riddles('said = "behind"  # what was left behind\nbehind = said\n') == set()


def test_the_glossary_has_few_words_and_each_of_them_once() -> None:
    rows = [line.split("|")[1:3] for line in GLOSSARY.read_text().splitlines() if line.startswith("| **")]
    words = [word for first, _ in rows for word in re.findall(r"\*\*(.+?)\*\*", first)]
    defined = Counter(word for row in rows for cell in row for word in re.findall(r"\*\*(.+?)\*\*", cell))
    assert 0 < len(words) <= MOST_WORDS
    assert not [word for word, times in defined.items() if times > 1], "one word, one meaning"


# -- sizes

MOST_LINES = {"file": 500, "class": 420, "function": 80}
"""Lines above which a reader looks for the chapter break."""


def sizes(file: Path) -> Iterator[tuple[str, str, int]]:
    """Kind, name and lines of a file, its classes and its functions."""
    text = file.read_text()
    name = str(file.relative_to(SOURCES.parent))
    yield "file", name, text.count("\n")

    def inside(node: ast.AST, path: str) -> Iterator[tuple[str, str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                kind = "class" if isinstance(child, ast.ClassDef) else "function"
                where = f"{path}{child.name}"
                yield kind, f"{name}:{where}", (child.end_lineno or child.lineno) - child.lineno + 1
                yield from inside(child, f"{where}.")

    yield from inside(ast.parse(text), "")


def test_no_file_class_or_function_grows_too_long() -> None:
    long = {
        name: lines
        for file in sorted(SOURCES.rglob("*.py"))
        for kind, name, lines in sizes(file)
        if lines > MOST_LINES[kind]
    }
    assert not long, f"too long; look for the chapter break: {long}"


PAGE = SOURCES / "waterline" / "static" / "js"
MOST_LINES_OF_A_MODULE = 300
MOST_COLUMNS = 120


def test_no_module_of_the_page_grows_too_long() -> None:
    lines = {str(file.relative_to(PAGE)): file.read_text().count("\n") for file in sorted(PAGE.rglob("*.js"))}
    long = {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_MODULE}
    assert lines
    assert not long, f"too long; look for the chapter break: {long}"


def test_lines_of_the_page_are_as_short_as_its_formatter_makes_them() -> None:
    """`oxfmt` breaks code and leaves comments and texts as they are. A text may be longer, since it is one text."""
    long = [
        f"{file.relative_to(PAGE)}:{number}"
        for file in sorted(PAGE.rglob("*.js"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > MOST_COLUMNS and not re.search(r"""["'`]""", line)
    ]
    assert not long, f"break these comments: {long}"


# -- routes

ROUTES = ("published/**/*.py", "native/client_routes.py", "native/worker_routes.py", "native/call_batches.py")


def test_routes_read_the_database_through_the_api_alone() -> None:
    """`Api.stored` has the reads that a route may ask for, and no way to write."""
    server = SOURCES / "server"
    files = sorted(file for pattern in ROUTES for file in server.glob(pattern))
    others = [
        f"{file.relative_to(server)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "store"
    ]
    assert len(files) > 40
    assert not others, f"ask `server.api.stored` instead: {others}"
