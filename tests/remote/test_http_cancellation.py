"""The stories of `tests/sdk/test_cancellation.py`, over HTTP."""

from ..sdk import test_cancellation as told
from .kit import retold

globals().update(retold(told))
