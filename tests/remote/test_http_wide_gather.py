"""The stories of `tests/sdk/test_wide_gather.py`, over HTTP. There the limits are the server's own."""

from ..sdk import test_wide_gather as told
from .kit import retold

globals().update(
    retold(
        told,
        without=(
            "test_code_that_asks_for_another_group_than_history_has_is_blocked_in_a_later_window",
            "test_what_is_too_much_for_a_run_says_what_to_do",
        ),
    )
)
