"""The stories of `tests/sdk/test_children.py`, over HTTP."""

from ..sdk import test_children as told
from .kit import retold

globals().update(retold(told))
