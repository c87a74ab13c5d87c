"""The stories of `tests/sdk/test_updates.py`, over HTTP."""

from ..sdk import test_updates as told
from .kit import retold

globals().update(retold(told))
