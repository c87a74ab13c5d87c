"""A signal that a known contract refuses is rejected by the code, too, if no contract was known when it was sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backstay import AsyncBackstay, RequestRefused, Signal, signal, wait, workflow
from backstay.kernel.features.signal import SignalReceived
from backstay.kernel.features.signal_rejection import SignalRejected

from .kit import eventually, evicting, memory, names


@dataclass
class Note:
    text: str
    stars: int = 0


TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "list": list,
    "numbers": list[int],
    "dict": dict,
    "optional": int | None,
    "either": int | str,
    "note": Note,
    "any": Any,
}
VALUES: list[tuple[Any, ...]] = [
    *((), (None,), (1,), (True,), (1.5,), ("x",), (b"x",), ([],), ([1],), (["x"],), ({},)),
    *(({"text": "a"},), ({"text": 1},), (1, 2), ("x", "y")),
]
CHANNELS = [Signal[of](name) for name, of in TYPES.items()]  # type: ignore[valid-type]
end = Signal[str]("end")


@workflow(type="channels", signals=[*CHANNELS, end])
def channels() -> str:
    return wait(end)


def _handler(name: str, of: Any) -> Any:
    def handle(self: Any, value: Any) -> None: ...

    handle.__annotations__ = {"value": of, "return": None}
    return signal(name=name)(handle)


class _Handlers:
    def __init__(self) -> None:
        self.ended: str | None = None

    def handle(self) -> str | None:
        wait(lambda: self.ended)
        return self.ended


def _end(self: Any, by: str) -> None:
    self.ended = by


_MEMBERS = {f"on_{name}": _handler(name, of) for name, of in TYPES.items()}
handlers = workflow(type="handlers", unchecked=True)(
    type("Handlers", (_Handlers,), {**_MEMBERS, "end": signal(name="end")(_end), "__module__": __name__})
)
CODE = {"channels": channels, "handlers": handlers}


async def send_all(app: AsyncBackstay, run: str) -> set[tuple[str, str]]:
    """Send every value to every signal. Which of them were refused."""
    refused: set[tuple[str, str]] = set()
    for name in TYPES:
        for values in VALUES:
            try:
                await app.handle(None, run).signal(name, *values)
            except RequestRefused:
                refused.add((name, repr(values)))
    await app.handle(None, run).signal("end", "me")
    return refused


async def rejected(app: AsyncBackstay, run: str, refused: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which of the accepted signals the code has rejected."""
    history = [entry.event for entry in await app.history(run)]
    misfits = {event.signal_id for event in history if isinstance(event, SignalRejected)}
    sent = [(name, repr(values)) for name in TYPES for values in VALUES if (name, repr(values)) not in refused]
    received = [event for event in history if isinstance(event, SignalReceived)]
    assert [event.signal_name for event in received] == [*(name for name, _ in sent), "end"]
    return {which for which, event in zip(sent, received, strict=False) if event.signal_id in misfits}


@pytest.mark.contract("SIG-05")
@pytest.mark.parametrize("kind", CODE)
async def test_the_code_rejects_what_its_contract_refuses(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "backstay.db"
    async with AsyncBackstay(file, [CODE[kind]]) as app:
        known = await app.start(CODE[kind], "known")
        await eventually(lambda: _has_begun(app), "its code waits")
        refused = await send_all(app, "known")
        assert await asyncio.wait_for(known.result(), 30) == "me"
        refused |= await rejected(app, "known", refused)
    async with AsyncBackstay(file, client_only=True) as client:
        await client.start(kind, "unknown")
        assert await send_all(client, "unknown") == set(), "nobody knows the contract"
    async with AsyncBackstay(file, [CODE[kind]]) as app:
        assert await asyncio.wait_for(app.handle(CODE[kind], "unknown").result(), 30) == "me"
        assert await rejected(app, "unknown", set()) == refused
    assert len(refused) > 80


@pytest.mark.parametrize("make", [memory, evicting], ids=["live", "evicted after every task"])
async def test_a_channel_that_takes_null_gets_it_if_no_value_is_sent(make: Any) -> None:
    maybe = Signal[str | None]("maybe")

    @workflow(type="maybe", signals=[maybe])
    def values() -> list[str | None]:
        return [wait(maybe) for _ in range(3)]

    async with make(values) as app:
        run = await app.start(values, "m")
        await run.signal(maybe)
        await run.signal(maybe, "text")
        await run.signal("maybe", None)
        assert await asyncio.wait_for(run.result(), 30) == [None, "text", None]


async def _has_begun(app: AsyncBackstay) -> bool:
    return len(names(await app.history("known"))) > 2
