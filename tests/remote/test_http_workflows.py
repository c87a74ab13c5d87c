"""The stories of `tests/sdk/test_workflows.py`, over HTTP."""

from ..sdk import test_workflows as told
from .kit import retold

globals().update(retold(told, without={"test_an_argument_of_the_wrong_kind_blocks_the_run_until_the_code_fits"}))
