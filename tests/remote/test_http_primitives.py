"""The stories of `tests/sdk/test_primitives.py`, over HTTP."""

from ..sdk import test_primitives as told
from .kit import retold

globals().update(
    retold(
        told,
        without={
            "test_the_logger_is_silent_while_a_run_replays",  # code that ran ahead says its line again when that was not taken
        },
    )
)
