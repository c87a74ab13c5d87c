"""Tests of the server are coroutines on real HTTP, and on a busy machine they take their time."""

from __future__ import annotations

from typing import Any

import pytest

from ..sdk.conftest import run_coroutine

PATIENCE = 60


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    return run_coroutine(pyfuncitem, PATIENCE)
