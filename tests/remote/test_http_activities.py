"""The stories of `tests/sdk/test_activities.py`, over HTTP."""

from ..sdk import test_activities as told
from .kit import retold

globals().update(
    retold(
        told,
        without={
            "test_an_extern_activity_runs_elsewhere",
            "test_each_of_a_thousand_activities_runs_exactly_once",
            "test_an_async_activity_of_a_closed_run_is_cancelled",
        },
    )
)
