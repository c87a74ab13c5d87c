"""The stories of `tests/sdk/test_local_activities.py`, over HTTP."""

from ..sdk import test_local_activities as told
from .kit import retold

globals().update(retold(told))
