"""The source check of one function: it finds every place that would make a replay differ or that must be a mistake.

It sees what is written in this body, closures and inner functions included; functions of the same home that the body
mentions are handed back to be read in their turn. Closures given to a recording primitive run outside the rules.
"""
# ruff: noqa: N802  # a visitor's methods are named after the nodes

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from inspect import iscoroutinefunction
from types import FunctionType, MethodType

from msgspec import Struct

from backstay.sdk.replay.source.locate import FunctionNode, Source, statements
from backstay.sdk.replay.source.names import InstanceOf, KnownValue, Ref, ScopeVisitor, member, targets
from backstay.sdk.replay.source.rules import ENVIRONMENT, EXECUTOR, Rule, Table

SET_ORDER = Rule("set-order", "the order of a set differs between processes; use sorted(...)")
GLOBAL = Rule("global", "runs share the module; keep state in a local or on the workflow's self")
SWALLOWED = Rule("swallowed", "it also catches cancellation and eviction; catch Exception, or raise at the end")
DROPPED = Rule("dropped-step", "the step never runs; call it without .step, or .run() or await it")
UNAWAITED = Rule("not-awaited", "it does not run until it is awaited; await it, or make a task of it")
AWAITED = Rule("awaited-blocking", "it blocks and returns a plain value; drop the await, or await its .step(...)")
AWAITED_CALL = Rule(
    "awaited-blocking",
    "its code is a `def`, so the call blocks and returns a plain value; drop the await, or await its .step(...)",
)
LATE = Rule("late-binding", "every lambda will see the last value; use .step(...), or bind it: lambda x=x: ...")
BOUND_ACTIVITY = Rule(
    "bound-activity", "the instance does not travel; call it on the class, the worker supplies its own"
)

_BUILDS_SEQUENCE = (list, tuple, enumerate, iter, zip, map)
_IGNORES_ORDER = (sorted, set, frozenset, min, max, sum, any, all, len)
_SET_OPERATORS = ast.Sub | ast.BitOr | ast.BitAnd | ast.BitXor


class Primitives(Struct, frozen=True):
    """The SDK's own functions that a rule is about, by identity."""

    blocking: frozenset[int]  # return a plain value, never to be awaited
    recording: frozenset[int]  # run a closure once and record what it gave
    deferring: frozenset[int]  # run a closure later


class Offence(Struct, frozen=True):
    rule: Rule
    what: str
    line: int


class Visit(ScopeVisitor):
    def __init__(self, source: Source, table: Table, primitives: Primitives) -> None:
        super().__init__(source)
        self.offences: list[Offence] = []
        self.mentioned: list[FunctionType] = []
        self._table = table
        self._primitives = primitives
        self._unordered: set[ast.AST] = set()  # generators whose consumer does not care for order
        self._in_async = False

    def visit_Name(self, node: ast.Name) -> None:
        self._mention(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._mention(node)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        ref = self.scope.resolve(node.func)
        rule = self._table.calling(ref, len(node.args) + len(node.keywords))
        if rule:
            self._offend(rule, self._call_text(node, ref), node)
        elif isinstance(node.func, ast.Attribute):
            self._method_call(node, node.func, ref)
        self._consume(node, ref)
        self.visit(node.func)
        recorded = self._records(node.func)
        self._each(a for a in node.args if not (recorded and _is_closure(a)))
        self._each(k for k in node.keywords if not (recorded and _is_closure(k.value)))

    def visit_Await(self, node: ast.Await) -> None:
        if isinstance(node.value, ast.Call):
            if self._known(node.value.func, self._primitives.blocking):
                self._offend(AWAITED, f"await {_text(node.value)}", node)
            elif self._gives_its_value(node.value.func):
                self._offend(AWAITED_CALL, f"await {_text(node.value)}", node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        match node.value:
            case ast.Call(func=ast.Attribute(value=base, attr="step")) if self._may_be_durable(base):
                self._offend(DROPPED, _text(node.value), node)
            case ast.Call(func=func) as call if self._only_describes(func):
                self._offend(UNAWAITED, _text(call), node)
            case _:
                pass
        self.generic_visit(node)

    def _body(self, node: FunctionNode) -> None:
        outer, self._in_async = self._in_async, isinstance(node, ast.AsyncFunctionDef)
        super()._body(node)
        self._in_async = outer

    def visit_For(self, node: ast.For) -> None:
        self._iterate(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._iterate(node.value)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._iterate_all(node.generators)
        super().visit_ListComp(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._iterate_all(node.generators)
        super().visit_DictComp(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        if node not in self._unordered:
            self._iterate_all(node.generators)
        super().visit_GeneratorExp(node)

    def visit_Global(self, node: ast.Global) -> None:
        self._offend(GLOBAL, f"global {', '.join(node.names)}", node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if self._catches_everything(node.type) and not _raises(node.body):
            self._offend(SWALLOWED, f"except {ast.unparse(node.type)}" if node.type else "a bare except", node)
        self.generic_visit(node)

    def visit_withitem(self, node: ast.withitem) -> None:
        rule = self._table.entering(self.scope.resolve(node.context_expr))
        if rule:
            self._offend(rule, f"with {_text(node.context_expr)}", node.context_expr)
        self.generic_visit(node)

    def _comprehension(self, generators: list[ast.comprehension], elements: list[ast.expr]) -> None:
        variables = targets(generators)
        for closure in self._kept(elements):
            if _reads(closure, variables):
                self._offend(LATE, _text(closure), closure)
        super()._comprehension(generators, elements)

    def _mention(self, node: ast.Name | ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        match self.scope.resolve(node):
            case KnownValue(value=FunctionType() as function):
                self.mentioned.append(function)
            case ref if self._table.path(ref) in ("os.environ", "os.environb"):
                self._offend(ENVIRONMENT, _text(node), node)
            case _:
                pass

    def _method_call(self, node: ast.Call, func: ast.Attribute, ref: Ref | None) -> None:
        owner = self.scope.resolve(func.value)
        rule = self._table.asking(owner)
        if func.attr == "run_in_executor":
            rule = EXECUTOR
        elif isinstance(ref, KnownValue) and is_activity(ref.value) and isinstance(owner, InstanceOf):
            rule = BOUND_ACTIVITY
        if rule:
            self._offend(rule, _text(node), node)

    def _consume(self, node: ast.Call, ref: Ref | None) -> None:
        """Note whether a call depends on the order of its arguments."""
        if isinstance(ref, KnownValue) and any(ref.value is f for f in _IGNORES_ORDER):
            self._unordered.update(arg for arg in node.args if isinstance(arg, ast.GeneratorExp))
        elif (isinstance(ref, KnownValue) and any(ref.value is f for f in _BUILDS_SEQUENCE)) or _joins(node.func):
            for arg in node.args:
                self._iterate(arg)

    def _iterate_all(self, generators: Iterable[ast.comprehension]) -> None:
        for generator in generators:
            self._iterate(generator.iter)

    def _iterate(self, node: ast.expr) -> None:
        if self._is_set(node):
            self._offend(SET_ORDER, f"iterating {_text(node)}", node)

    def _is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _SET_OPERATORS):
                return self._is_set(left) or self._is_set(right)
            case ast.Call():
                ref = self.scope.resolve(node)
                return isinstance(ref, InstanceOf) and issubclass(ref.cls, set | frozenset)
            case _:
                return False

    def _catches_everything(self, node: ast.expr | None) -> bool:
        match node:
            case None:
                return True
            case ast.Tuple(elts=kinds):
                return any(self._catches_everything(kind) for kind in kinds)
            case _:
                ref = self.scope.resolve(node)
                return isinstance(ref, KnownValue) and ref.value is BaseException

    def _may_be_durable(self, base: ast.expr) -> bool:
        """Whether `.step` can be ours: what we know and cannot be called (a motor, a state machine) has its own."""
        match self.scope.resolve(base):
            case KnownValue(value=value):
                return callable(value)
            case InstanceOf() as made:
                return member(made, "__call__") is not None
            case _:
                return True

    def _gives_its_value(self, func: ast.expr) -> bool:
        """Whether this is an activity or a workflow that is a `def`: calling it does it."""
        match self.scope.resolve(_without_options(func)):
            case KnownValue(value=value):
                return getattr(type(value), "__backstay_blocks__", False) is True
            case _:
                return False

    def _only_describes(self, func: ast.expr) -> bool:
        """Whether calling this does nothing but give back what is to be awaited."""
        match self.scope.resolve(_without_options(func)):
            case KnownValue(value=MethodType() as bound):  # `pause = sleep.step`, and `pause("1h")`
                return bound.__name__ == "step" and callable(bound.__self__)
            case KnownValue(value=value):
                return self._in_async and _gives_coroutine(value)
            case _:
                return False

    def _records(self, func: ast.expr) -> bool:
        primitive = func.value if isinstance(func, ast.Attribute) and _is_step(func) else func
        return self._known(primitive, self._primitives.recording)

    def _kept(self, elements: Iterable[ast.AST]) -> Iterator[ast.Lambda]:
        """The lambdas that outlive their turn of a comprehension: its elements, or what is described or deferred."""
        for node in elements:
            match node:
                case ast.Lambda():
                    yield node
                case ast.Tuple() | ast.List() | ast.Dict() | ast.IfExp() | ast.Starred() | ast.keyword():
                    yield from self._kept(ast.iter_child_nodes(node))
                case ast.Call(func=func) if _is_step(func) or self._known(func, self._primitives.deferring):
                    yield from self._kept([*node.args, *node.keywords])
                case _:
                    pass

    def _known(self, node: ast.expr, group: frozenset[int]) -> bool:
        ref = self.scope.resolve(node)
        return isinstance(ref, KnownValue) and id(ref.value) in group

    def _offend(self, rule: Rule, what: str, node: ast.expr | ast.stmt | ast.excepthandler) -> None:
        self.offences.append(Offence(rule, what, node.lineno))

    def _call_text(self, node: ast.Call, ref: Ref | None) -> str:
        """The call as written, with its real name where an alias hides it."""
        path = self._table.path(ref)
        written = ast.unparse(node.func)
        hidden = path and path.rpartition(".")[2] != written.rpartition(".")[2]
        return f"{_text(node)} ({path})" if hidden else _text(node)


def is_activity(value: object) -> bool:
    return getattr(value, "__backstay_activity__", False) is True


def _gives_coroutine(value: object) -> bool:
    """An `async def`, or an activity or a workflow that is one: called in `async def` code, they wait to be awaited."""
    return iscoroutinefunction(value) or getattr(type(value), "__backstay_awaited__", False) is True


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    if len(text) > 50 and isinstance(node, ast.Call):
        text = f"{ast.unparse(node.func)}(...)"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _without_options(func: ast.expr) -> ast.expr:
    match func:
        case ast.Call(func=ast.Attribute(value=base, attr="options")):
            return base
        case _:
            return func


def _is_closure(node: ast.expr) -> bool:
    return isinstance(node, ast.Lambda | ast.Name | ast.Attribute)


def _is_step(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and func.attr == "step"


def _joins(func: ast.expr) -> bool:
    match func:
        case ast.Attribute(value=ast.Constant(value=str()), attr="join"):
            return True
        case _:
            return False


def _raises(body: Iterable[ast.stmt]) -> bool:
    return any(isinstance(statement, ast.Raise) for statement in statements(body))


def _reads(closure: ast.Lambda, variables: set[str]) -> bool:
    args = closure.args
    own = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    return any(isinstance(n, ast.Name) and n.id in variables - own for n in ast.walk(closure.body))
