"""The stories of `tests/sdk/test_local_activities.py`, over HTTP."""

from ..sdk import test_local_activities as told
from .kit import retold

globals().update(
    retold(
        told,
        without={
            "test_code_that_was_given_up_while_its_local_activity_ran_reports_nothing",  # code elsewhere is not the engine's to give up
            "test_what_is_kept_for_a_local_activity_goes_with_it_not_with_its_timeout",  # it looks into the engine
            "test_a_pause_may_be_longer_than_a_day",  # the clock is not the worker's
            # A server tells of an end those that run activities; who holds a task hears of it when the task is reported.
            "test_nothing_is_tried_again_for_a_run_that_was_terminated",
            "test_a_local_activity_of_a_closed_run_hears_so_at_its_heartbeat",
            "test_code_that_is_busy_on_its_thread_when_its_run_is_closed_begins_no_local_activity",
        },
    )
)
