"""The stories of `tests/sdk/test_updates.py`, over HTTP."""

from ..sdk import test_updates as told
from .kit import retold

globals().update(
    retold(
        told,
        without={
            "test_a_bounded_wait_falls_back_to_where_the_update_stands",
            "test_code_on_its_own_thread_is_talked_to_like_any_other",
            "test_an_accepted_update_goes_on_with_the_next_run",
        },
    )
)
