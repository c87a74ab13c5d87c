"""Some of the stories over HTTP, with every request sent to any of three nodes; some of these without links between them.

`make test-nodes` tells all of them so.
"""

from __future__ import annotations

import pytest

from ..many_nodes import Chosen, Shape
from ..sdk import test_cancellation, test_children, test_queries, test_signals, test_skip_wait, test_updates, test_waits
from .kit import retold

TOLD = {
    test_cancellation: ["test_a_running_activity_hears_of_it"],
    test_children: [
        "test_calling_a_workflow_in_a_workflow_is_a_child",
        "test_the_failure_of_a_child_is_raised_and_can_be_caught",
        "test_a_failed_child_is_tried_again",
    ],
    test_queries: ["test_many_at_once_beside_a_run_that_moves", "test_a_handle_of_one_run_is_about_that_run_alone"],
    test_signals: [
        "test_a_signal_that_is_sent_again_is_taken_once",
        "test_signal_with_start_starts_once_and_signals_before_any_code_runs",
    ],
    test_skip_wait: ["test_a_run_is_skipped_through_three_waits"],
    test_updates: [
        "test_behind_a_signal_that_was_acknowledged_an_update_and_its_validator_see_it",
        "test_submit_returns_at_once_and_its_answer_is_there_later",
        "test_an_accepted_update_goes_on_with_the_next_run",
    ],
    test_waits: ["test_a_deadline_that_has_passed_is_due_at_once"],
}

WITHOUT_LINKS = {
    "test_a_failed_child_is_tried_again",
    "test_a_signal_that_is_sent_again_is_taken_once",
    "test_signal_with_start_starts_once_and_signals_before_any_code_runs",
    "test_submit_returns_at_once_and_its_answer_is_there_later",
}
"""These are told without links, too: such a worker has tasks of other nodes a second later, and is asked by its own alone."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    links = ["links", "no links"] if metafunc.function.__name__ in WITHOUT_LINKS else ["links"]
    metafunc.parametrize("_three_nodes", links, indirect=True)


@pytest.fixture(autouse=True)
def _three_nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chosen, "shape", Shape(3, links=request.param == "links"))


for module, names in TOLD.items():
    stories = retold(module)
    globals().update({name: stories[name] for name in names})
