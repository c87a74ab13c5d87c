"""`gather`: wait for several durable calls together. `group.py` explains groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, overload

from backstay.sdk.author.group import GroupStep, plan
from backstay.sdk.author.step import Step

T = TypeVar("T")
K = TypeVar("K")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
Thunk = Callable[[], T]
Settled = T | Exception


class Gather:
    """The type of `gather`: `gather(...)` waits for all members; `gather.step(...)` describes the group.

    `limit` bounds how many members are open at a time. With `return_exceptions` the exception of a failed member takes the
    place of its value, and the others go on.
    """

    @overload
    def __call__(
        self, steps: Mapping[K, Thunk[T]], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> dict[K, T]: ...
    @overload
    def __call__(
        self, steps: Iterable[Thunk[T]], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> list[T]: ...
    @overload
    def __call__(
        self, a: Thunk[A], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> tuple[A]: ...
    @overload
    def __call__(
        self, a: Thunk[A], b: Thunk[B], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> tuple[A, B]: ...
    @overload
    def __call__(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[A, B, C]: ...
    @overload
    def __call__(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[A, B, C, D]: ...
    @overload
    def __call__(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[A, B, C, D, E]: ...
    @overload
    def __call__(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        f: Thunk[F],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[A, B, C, D, E, F]: ...
    @overload
    def __call__(
        self, *steps: Thunk[T], limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> tuple[T, ...]: ...
    @overload
    def __call__(
        self, steps: Mapping[K, Thunk[T]], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> dict[K, Settled[T]]: ...
    @overload
    def __call__(
        self, steps: Iterable[Thunk[T]], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> list[Settled[T]]: ...
    @overload
    def __call__(
        self, a: Thunk[A], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> tuple[Settled[A]]: ...
    @overload
    def __call__(
        self, a: Thunk[A], b: Thunk[B], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> tuple[Settled[A], Settled[B]]: ...
    @overload
    def __call__(
        self, a: Thunk[A], b: Thunk[B], c: Thunk[C], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> tuple[Settled[A], Settled[B], Settled[C]]: ...
    @overload
    def __call__(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[Settled[A], Settled[B], Settled[C], Settled[D]]: ...
    @overload
    def __call__(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[Settled[A], Settled[B], Settled[C], Settled[D], Settled[E]]: ...
    @overload
    def __call__(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        f: Thunk[F],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[Settled[A], Settled[B], Settled[C], Settled[D], Settled[E], Settled[F]]: ...
    @overload
    def __call__(
        self, *steps: Thunk[T], limit: int | None = None, return_exceptions: Literal[True]
    ) -> tuple[Settled[T], ...]: ...
    def __call__(self, *steps: Any, limit: int | None = None, return_exceptions: bool = False) -> Any:
        return GroupStep(plan(steps, limit, return_exceptions)).run()

    @overload
    def step(
        self, steps: Mapping[K, Thunk[T]], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> Step[dict[K, T]]: ...
    @overload
    def step(
        self, steps: Iterable[Thunk[T]], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> Step[list[T]]: ...
    @overload
    def step(
        self, a: Thunk[A], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> Step[tuple[A]]: ...
    @overload
    def step(
        self, a: Thunk[A], b: Thunk[B], /, *, limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> Step[tuple[A, B]]: ...
    @overload
    def step(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Step[tuple[A, B, C]]: ...
    @overload
    def step(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Step[tuple[A, B, C, D]]: ...
    @overload
    def step(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Step[tuple[A, B, C, D, E]]: ...
    @overload
    def step(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        f: Thunk[F],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Step[tuple[A, B, C, D, E, F]]: ...
    @overload
    def step(
        self, *steps: Thunk[T], limit: int | None = None, return_exceptions: Literal[False] = False
    ) -> Step[tuple[T, ...]]: ...
    @overload
    def step(
        self, steps: Mapping[K, Thunk[T]], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> Step[dict[K, Settled[T]]]: ...
    @overload
    def step(
        self, steps: Iterable[Thunk[T]], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> Step[list[Settled[T]]]: ...
    @overload
    def step(
        self, a: Thunk[A], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> Step[tuple[Settled[A]]]: ...
    @overload
    def step(
        self, a: Thunk[A], b: Thunk[B], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> Step[tuple[Settled[A], Settled[B]]]: ...
    @overload
    def step(
        self, a: Thunk[A], b: Thunk[B], c: Thunk[C], /, *, limit: int | None = None, return_exceptions: Literal[True]
    ) -> Step[tuple[Settled[A], Settled[B], Settled[C]]]: ...
    @overload
    def step(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[True],
    ) -> Step[tuple[Settled[A], Settled[B], Settled[C], Settled[D]]]: ...
    @overload
    def step(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[True],
    ) -> Step[tuple[Settled[A], Settled[B], Settled[C], Settled[D], Settled[E]]]: ...
    @overload
    def step(
        self,
        a: Thunk[A],
        b: Thunk[B],
        c: Thunk[C],
        d: Thunk[D],
        e: Thunk[E],
        f: Thunk[F],
        /,
        *,
        limit: int | None = None,
        return_exceptions: Literal[True],
    ) -> Step[tuple[Settled[A], Settled[B], Settled[C], Settled[D], Settled[E], Settled[F]]]: ...
    @overload
    def step(
        self, *steps: Thunk[T], limit: int | None = None, return_exceptions: Literal[True]
    ) -> Step[tuple[Settled[T], ...]]: ...
    def step(self, *steps: Any, limit: int | None = None, return_exceptions: bool = False) -> Step[Any]:
        return GroupStep(plan(steps, limit, return_exceptions))


gather = Gather()
"""Wait for several durable calls at the same time and return their values, as a tuple, list or dict like the arguments.

The first failure is raised; with `return_exceptions=True` it takes the place of the value. `limit=` bounds how many run at a time.
"""
