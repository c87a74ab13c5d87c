"""The stories of `tests/sdk/test_waits.py`, over HTTP."""

from ..sdk import test_waits as told
from .kit import retold

globals().update(retold(told))
