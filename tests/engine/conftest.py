"""Tests of the engine may be coroutines, as those of the SDK."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sdk.conftest import PATIENCE, run_coroutine


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    return run_coroutine(pyfuncitem, PATIENCE)
