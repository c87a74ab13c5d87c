"""The stories of `tests/sdk/test_starting.py`, over HTTP."""

from ..sdk import test_starting as told
from .kit import retold

globals().update(retold(told))
