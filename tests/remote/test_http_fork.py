"""The stories of `tests/sdk/test_fork.py`, over HTTP."""

from ..sdk import test_fork as told
from .kit import retold

globals().update(retold(told))
