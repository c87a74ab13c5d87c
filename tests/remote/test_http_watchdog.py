"""The stories of `tests/sdk/test_watchdog.py`, over HTTP; and a fleet of worker processes."""

from ..sdk import test_watchdog as told
from .kit import retold

globals().update(retold(told))
