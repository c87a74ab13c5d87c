"""The stories of `tests/sdk/test_wide_gather.py`, over HTTP."""

from ..sdk import test_wide_gather as told
from .kit import retold

globals().update(retold(told))
