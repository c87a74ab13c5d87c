"""The stories of `tests/sdk/test_primitives.py`, over HTTP."""

from ..sdk import test_primitives as told
from .kit import retold

globals().update(retold(told))
