"""The stories of `tests/sdk/test_gather.py`, over HTTP."""

from ..sdk import test_gather as told
from .kit import retold

globals().update(retold(told))
