"""The stories of `tests/sdk/test_refused_completions.py`, over HTTP."""

from ..sdk import test_refused_completions as told
from .kit import retold

globals().update(retold(told))
