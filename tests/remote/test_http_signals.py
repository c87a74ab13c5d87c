"""The stories of `tests/sdk/test_signals.py`, over HTTP."""

from ..sdk import test_signals as told
from .kit import retold

globals().update(retold(told))
