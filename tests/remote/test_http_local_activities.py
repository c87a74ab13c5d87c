"""The stories of `tests/sdk/test_local_activities.py`, over HTTP."""

from ..sdk import test_local_activities as told
from .kit import retold

globals().update(
    retold(
        told,
        without={
            "test_code_that_was_given_up_while_its_local_activity_ran_reports_nothing",  # code elsewhere is not the engine's to give up
        },
    )
)
