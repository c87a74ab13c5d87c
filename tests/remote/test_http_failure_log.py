"""The stories of `tests/sdk/test_failure_log.py`, over HTTP."""

from ..sdk import test_failure_log as told
from .kit import retold

globals().update(retold(told))
