"""The stories of `tests/sdk/test_wide_gather.py`, over HTTP."""

import pytest

from ..sdk import test_wide_gather as told
from .kit import retold

pytestmark = pytest.mark.full(
    "thousands of members over HTTP; test_http_gather.py has a few, and tests/sdk the thousands"
)

globals().update(retold(told))
