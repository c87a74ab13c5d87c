"""The stories of `tests/sdk/test_workflows.py`, over HTTP."""

from ..sdk import test_workflows as told
from .kit import retold

globals().update(retold(told))
