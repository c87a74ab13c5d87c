"""Fingerprints stay through what a formatter, a reviewer or another Python changes, and follow what runs."""

import functools
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from casebook import classes, primitives

from backstay.sdk.replay.source import change_ids, definition_fingerprint, predicate_fingerprint

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    monkeypatch.syspath_prepend(tmp_path)
    numbers = itertools.count()
    names: list[str] = []

    def from_text(text: str) -> ModuleType:
        name = f"definition_{next(numbers)}"
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield from_text
    for name in names:
        del sys.modules[name]


WRITTEN = """
def order(id, lines, note=None):
    total = sum([line['price'] for line in lines])
    if total > 0x10 and not note:
        del (lines, note)
        return f'{id}: {total:>{10}}' "!"
    left, right = (1, 2)
    try: pass
    except (ValueError, TypeError): raise
    return {'a': -1.50, **{}}, b'x', None
"""

FORMATTED = '''
# A comment.


def order(
    id: str,
    lines: "list[dict[str, int]]",
    note: "str | None" = None,
) -> object:
    """Says what it does."""
    unused: int
    total: int = sum(
        [line["price"] for line in lines],  # in cents
    )
    if total > 0x10 and not note:
        del lines, note
        return f"{id}: {total:>{10}}!"
    (left, right) = 1, 2
    try:
        ...
    except (
        ValueError,
        TypeError,
    ):
        raise
    return {"a": -1.5, **{}}, b"x", None
'''


def test_formatting_comments_docstrings_and_annotations_do_not_count(load: Load) -> None:
    assert definition_fingerprint(load(WRITTEN).order) == definition_fingerprint(load(FORMATTED).order)


def test_a_fingerprint_is_the_same_on_every_python(load: Load) -> None:
    # Written down, so that the same test on another version compares with this one.
    golden = "sha256:4f9f566813e15aed274ce102c0dca21ccb3586043b6a118006afabef28204c64"
    assert definition_fingerprint(load(WRITTEN).order) == golden


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a(1)", "a(2)"),
        ("a(1)", "a(1.0)"),
        ("a(1)", "a(True)"),
        ("a('x')", "a(b'x')"),
        ("a(None)", "a(...)"),
        ("a(); b()", "b(); a()"),
        ("a(b, c)", "a(c, b)"),
        ("a(b)", "a(*b)"),
        ("a(b=1)", "a(c=1)"),
        ("a < b", "a > b"),
        ("return a", "return"),
        ("if a: b()", "if a: pass\n    else: b()"),
        ("match a:\n        case None: b()", "match a:\n        case False: b()"),
        ("a(x for x in b)", "a([x for x in b])"),
        ("f'{a}'", "f'{a!r}'"),
        ("a({**b, 1: c})", "a({1: c, **b})"),
        ("a(f'{b}')", "a(f'{b:>3}')"),
        ("global a; a = 1", "a = 1"),
        ("x = a[1:]", "x = a[:1]"),
        ("import a", "import a as b"),
        ("from a import b", "from .a import b"),
    ],
)
def test_a_change_of_code_that_runs_changes_the_fingerprint(load: Load, before: str, after: str) -> None:
    one, other = (definition_fingerprint(load(f"def f():\n    {body}\n").f) for body in (before, after))
    assert one
    assert one != other


def test_defaults_and_decorators_of_the_author_count(load: Load) -> None:
    texts = [
        "def f(x=1): return x",
        "def f(x=2): return x",
        "@staticmethod\ndef f(x=1): return x",
        "async def f(x=1): return x",
    ]
    assert len({definition_fingerprint(load(text).f) for text in texts}) == len(texts)


def test_a_class_counts_with_its_ancestors_of_the_same_package(load: Load) -> None:
    text = (
        "from elsewhere import Base\n"
        "class A:\n    def step(self): return {}\n"
        "class B(A, Base):\n    {}\n    def handle(self): return 1\n"
    )
    one = definition_fingerprint(load(text.format(1, "x: int")).B)
    assert one
    assert definition_fingerprint(load(text.format(1, "'doc'")).B) == one
    assert definition_fingerprint(load(text.format(1, "x = 1")).B) != one
    assert definition_fingerprint(load(text.format(2, "x: int")).B) != one


def test_of_two_classes_of_one_name_the_live_one_counts(load: Load) -> None:
    module = load("class A:\n    def f(self): return 1\nFirst = A\nclass A:\n    def f(self): return 2\n")
    assert definition_fingerprint(module.First) != definition_fingerprint(module.A)


def test_a_class_without_methods_and_a_local_class_have_fingerprints(load: Load) -> None:
    module = load("class A:\n    x = 1\ndef make():\n    class B:\n        def f(self): return 1\n    return B\n")
    assert definition_fingerprint(module.A)
    assert definition_fingerprint(module.make())


def test_two_lambdas_on_one_line_differ() -> None:
    # fmt: off
    one, two, same = (lambda: 1), (lambda: 2), (lambda: 1)
    [inner] = [(lambda x: (lambda: x))]
    # fmt: on
    assert predicate_fingerprint(one) != predicate_fingerprint(two)
    assert predicate_fingerprint(one) == predicate_fingerprint(same)
    assert predicate_fingerprint(inner) != predicate_fingerprint(inner(1))
    assert None not in (predicate_fingerprint(one), predicate_fingerprint(inner), predicate_fingerprint(inner(1)))


def test_a_lambda_counts_alone_wherever_it_stands(load: Load) -> None:
    here = load("def wait(p): return p\nx = wait(lambda: wait.by and 'é' and wait.at > 3)\n").x
    there = load(
        "def wait(p, **k): return p\n"
        "x = wait(\n    lambda: (\n        wait.by and 'é'\n        and wait.at > 3\n    ), key='k'\n)\n"
    ).x
    assert predicate_fingerprint(here) == predicate_fingerprint(there)
    assert predicate_fingerprint(here)


def test_lambdas_after_letters_of_several_bytes_are_told_apart(load: Load) -> None:
    module = load("a, b = [('é€𝄞', lambda: 'é')], [('é', lambda: 'è')]\n")
    assert predicate_fingerprint(module.a[0][1]) != predicate_fingerprint(module.b[0][1])


def test_methods_partials_wrappers_and_callable_objects_count_as_their_function(load: Load) -> None:
    module = load(
        "import functools\ndef ready(x=0): return x\n"
        "@functools.wraps(ready)\ndef wrapper(): return ready()\n"
        "class C:\n    def __call__(self): return 1\n    def m(self): return 1\n"
    )
    ready = predicate_fingerprint(module.ready)
    assert predicate_fingerprint(functools.partial(module.ready, 1)) == ready
    assert predicate_fingerprint(module.wrapper) == ready
    assert predicate_fingerprint(module.C().m) == predicate_fingerprint(module.C.m)
    assert predicate_fingerprint(module.C()) == predicate_fingerprint(module.C.__call__)


def test_without_source_there_is_no_fingerprint() -> None:
    namespace: dict[str, object] = {"__name__": "nowhere"}
    exec("def f(): return 1\nclass C: pass\ng = lambda: 1", namespace)
    assert definition_fingerprint(namespace["f"]) is None
    assert definition_fingerprint(namespace["C"]) is None
    assert predicate_fingerprint(namespace["g"]) is None
    assert predicate_fingerprint(print) is None
    assert definition_fingerprint(int) is None


def test_a_file_edited_after_it_was_read_does_not_change_what_is_loaded(load: Load) -> None:
    module = load("def f(): return 1\ng = lambda: 1\n")
    before = definition_fingerprint(module.f)
    Path(module.__file__ or "").write_text("def f(): return 2\ng = lambda: 2\n")
    assert definition_fingerprint(module.f) == before
    assert predicate_fingerprint(module.g) == predicate_fingerprint(load("g = lambda: 1").g)


def test_a_reloaded_module_is_read_again(load: Load) -> None:
    module = load("def f(): return 1\n")
    before = definition_fingerprint(module.f)
    Path(module.__file__ or "").write_text("# moved down\n\ndef f(): return 2\n")
    importlib.reload(module)
    assert definition_fingerprint(module.f) not in (None, before)


def test_the_literal_change_ids_of_a_class_are_those_of_all_its_methods() -> None:
    markers = [primitives.version, primitives.patched]
    assert change_ids(classes.Approval, markers) == ["first", "second", "third"]


MENTIONS = """
from importlib.metadata import version
from casebook.primitives import patched as p, version as v
def order(hf, name):
    version("a-package")
    v("one", max=2)
    if p("two"): hf.version("three")
    hf.deprecate_patch("four"); hf.other("five"); v(name); v()
    return lambda: v("one") or v("six")
"""


def test_a_change_id_is_known_by_its_marker_and_by_name_where_nothing_is_known(load: Load) -> None:
    order = load(MENTIONS).order
    assert change_ids(order, [primitives.version, primitives.patched]) == ["four", "one", "six", "three", "two"]
    assert change_ids(order) == ["a-package", "four", "three"]


def test_without_source_there_are_no_change_ids() -> None:
    assert change_ids(print) == []
    assert change_ids(int) == []
