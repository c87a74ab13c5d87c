"""Tests of the SDK may be coroutines: each runs on an event loop of its own and ends in time, or fails."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

PATIENCE = 10


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), PATIENCE))
    return True
