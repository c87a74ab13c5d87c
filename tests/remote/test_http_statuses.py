"""The stories of `tests/sdk/test_statuses.py`, over HTTP."""

from ..sdk import test_statuses as told
from .kit import retold

globals().update(retold(told))
