"""Tests of the SDK may be coroutines: each runs on an event loop of its own and ends in time, or fails."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

PATIENCE = 60  # seconds until a test that hangs is given up; a loaded machine is slow, not broken


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    return run_coroutine(pyfuncitem, PATIENCE)


def run_coroutine(pyfuncitem: Any, patience: float) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), patience))
    return True
