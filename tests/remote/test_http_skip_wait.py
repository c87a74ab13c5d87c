"""The stories of `tests/sdk/test_skip_wait.py`, over HTTP."""

from ..sdk import test_skip_wait as told
from .kit import retold

globals().update(retold(told))
