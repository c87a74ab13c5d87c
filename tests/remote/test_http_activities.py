"""The stories of `tests/sdk/test_activities.py`, over HTTP."""

from ..sdk import test_activities as told
from .kit import retold

globals().update(
    retold(
        told,
        without={
            "test_what_ends_behind_the_close_of_its_app_is_not_reported",  # the server is open
            "test_an_extern_activity_runs_elsewhere",  # asks with verbs of workers, which a client has not
        },
    )
)
