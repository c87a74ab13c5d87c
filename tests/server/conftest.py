"""Tests of the server are coroutines on real HTTP."""

from ..sdk.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
