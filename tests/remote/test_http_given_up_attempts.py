"""The stories of `tests/sdk/test_given_up_attempts.py`, over HTTP."""

from ..sdk import test_given_up_attempts as told
from .kit import retold

globals().update(retold(told))
