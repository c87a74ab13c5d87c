"""The stories of `tests/sdk/test_slow_code.py`, over HTTP."""

from ..sdk import test_slow_code as told
from .kit import retold

globals().update(retold(told))
