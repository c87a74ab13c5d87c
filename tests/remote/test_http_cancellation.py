"""The stories of `tests/sdk/test_cancellation.py`, over HTTP."""

from ..sdk import test_cancellation as told
from .kit import retold

globals().update(
    retold(
        told,
        without={
            "test_the_deadline_closes_what_does_not_end",
            "test_a_second_cancel_closes_at_once",
            "test_a_request_before_the_first_wait_is_met_there",
        },
    )
)
