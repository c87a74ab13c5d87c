"""Tests of workflows: the real engine in memory, on a clock that jumps.

    with TestBackstay(register=[order, charge]) as app:
        receipt = app.fake(charge, returns="receipt")
        assert app.execute(order, "o-1", 42) == "receipt"  # also if it sleeps for a month

It needs no test runner. A plugin for pytest (`backstay.contrib.pytest_plugin`) is installed with Backstay.
"""

from __future__ import annotations

from backstay.sdk.replay.history_files import UnreadableHistory
from backstay.testing.app import AsyncTestBackstay
from backstay.testing.assertions import HistoryAssertion, assert_history
from backstay.testing.crashes.effects import EffectsLog, effects
from backstay.testing.crashes.exploration import CrashFailure, Explored, explore
from backstay.testing.doubles import Fake, FakeCall, MadeToFail
from backstay.testing.histories import replay
from backstay.testing.sync_app import TestBackstay
from backstay.testing.waiting_transport import Stuck

__all__ = [
    "AsyncTestBackstay",
    "CrashFailure",
    "EffectsLog",
    "Explored",
    "Fake",
    "FakeCall",
    "HistoryAssertion",
    "MadeToFail",
    "Stuck",
    "TestBackstay",
    "UnreadableHistory",
    "assert_history",
    "effects",
    "explore",
    "replay",
]
