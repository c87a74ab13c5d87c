"""Poll, claim, lease and redelivery, told again of a server that leaves sweeping to a dedicated process."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from .kit import serving
from .test_activity_tasks import test_a_silent_worker_loses_its_attempt as test_redelivery_of_an_activity
from .test_polls import test_a_queue_at_its_limit_of_leases_throttles as test_backpressure
from .test_polls import test_a_repeated_poll_gets_the_same_task_again as test_a_repeated_poll
from .test_polls import test_a_task_that_becomes_ready_goes_to_one_parked_poll_at_once as test_long_polls
from .test_polls import test_an_empty_poll_is_held_as_long_as_was_asked_and_no_longer as test_empty_polls
from .test_polls import test_one_poll_leases_one_task as test_leases
from .test_polls import test_ready_means_everything_fits as test_readiness
from .test_workflow_tasks import test_a_task_can_be_claimed_by_its_id as test_claims
from .test_workflow_tasks import (
    test_an_expired_lease_is_delivered_again_and_late_reports_change_nothing as test_redelivery,
)
from .test_workflow_tasks import test_only_the_holder_of_the_lease_is_heard as test_fencing

pytestmark = pytest.mark.contract("TOPO-05")

__all__ = [
    "test_a_repeated_poll",
    "test_backpressure",
    "test_claims",
    "test_empty_polls",
    "test_fencing",
    "test_leases",
    "test_long_polls",
    "test_readiness",
    "test_redelivery",
    "test_redelivery_of_an_activity",
]


@pytest.fixture(autouse=True)
def _dedicated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    told_in = sys.modules[request.function.__module__]
    monkeypatch.setattr(told_in, "serving", partial(serving, v2_matching_role_queue_wake=False))
