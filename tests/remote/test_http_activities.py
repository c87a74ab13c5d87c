"""The stories of `tests/sdk/test_activities.py`, over HTTP."""

from ..sdk import test_activities as told
from .kit import retold

globals().update(retold(told))
