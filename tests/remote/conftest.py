"""Tests over HTTP are coroutines, too. Stories of `tests/sdk` that are told again here get a server in between."""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import Any

import pytest

from .kit import forgetful, no_threads, remote

PATIENCE = 60  # some of them start processes


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), PATIENCE))
    return True


@pytest.fixture(autouse=True)
def _over_http(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    told_in = sys.modules[request.function.__module__]
    if told_in.__name__.startswith("tests.sdk."):
        monkeypatch.setattr(told_in, "memory", remote)
        monkeypatch.setattr(told_in, "evicting", forgetful, raising=False)
        monkeypatch.setattr(told_in, "no_threads", no_threads, raising=False)
