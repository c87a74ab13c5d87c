"""The stories of `tests/sdk/test_queries.py`, over HTTP."""

from ..sdk import test_queries as told
from .kit import retold

globals().update(retold(told))
