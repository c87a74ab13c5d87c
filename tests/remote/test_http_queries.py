"""The stories of `tests/sdk/test_queries.py`, over HTTP."""

from ..sdk import test_queries as told
from .kit import retold

globals().update(retold(told, without={"test_a_handle_of_one_run_is_about_that_run_alone"}))
