"""The stories of `tests/sdk/test_async_libraries.py`, over HTTP."""

from ..sdk import test_async_libraries as told
from .kit import retold

globals().update(retold(told))
