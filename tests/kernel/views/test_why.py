"""Why, from summaries alone: what the clock, the fleet and the limits add, and which causes a history shows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.pause import Pause
from backstay.kernel.features.retry_now import RetryNow
from backstay.kernel.features.signal import OpenSignalWait
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.task import Block
from backstay.kernel.views.causes import chain_of, last_of
from backstay.kernel.views.facts import Facts, ReachedLimit, Takers
from backstay.kernel.views.summary import RunSummary, summarize
from backstay.kernel.views.why import attention, explain, explain_event, short
from backstay.kernel.views.why_open import quoted

from ..given import MACHINE, TALKING, Flow, given, instant, running

HOURLY = RetryPolicy(max_attempts=3, backoff_seconds=[3600])
CHARGE = ScheduleActivity(activity_type="charge", retry_policy=HOURLY)
THREE = Takers(on_queue=3, of_type=3, able=3)


def summary_of(flow: Flow) -> RunSummary:
    return summarize(MACHINE, flow.state)


def failed_once() -> Flow:
    flow = running(HOURLY)
    flow.fail(1, "no answer", at=0)
    return flow


def test_a_retry_whose_time_has_come_waits_for_a_worker() -> None:
    found = summary_of(failed_once())
    assert short(found, Facts(), instant(60)).startswith("Tries again in 59 min: charge has failed 1 of 3 times")
    assert short(found, Facts(takers=THREE), instant(3605)) == (
        "Activity charge waits for 5 s for a free slot of 3 workers on queue 'default'."
    )
    assert attention(found, Facts(takers=Takers()), instant(3605)) == "no_worker"


def test_after_retry_now_it_is_ready() -> None:
    flow = failed_once()
    flow.when(RetryNow(), at=60)
    assert explain(summary_of(flow), Facts(takers=THREE), instant(61)).verb == "queued"


@pytest.mark.parametrize(
    ("changes", "sentence", "verb"),
    [
        ({"steps": 1}, "Waits for child c-1 for 1 min.", "open_child"),
        ({"steps": 3}, "Waits for child c-1 for 1 min; 2 other steps are open.", "open_child"),
        ({"steps": 2, "open_children": 2, "children": 2}, "Waits for 2 children for 1 min.", "open_children"),
        (
            {"steps": 51, "open_children": 50, "children": 200, "child_type": "shop.parcel"},
            "Waits for 50 of 200 children (shop.parcel) for 1 min; 1 other step is open.",
            "open_children",
        ),
    ],
)
def test_a_parent_says_for_how_many_children_it_waits(changes: dict[str, Any], sentence: str, verb: str) -> None:
    waiting = {"wait_kind": "child", "wait_name": "c-1", "children": 1, "open_children": 1} | changes
    found = explain(replace(summary_of(given(OpenSignalWait(signal_name="x"))), **waiting), Facts(), instant(60))
    assert (found.sentence, found.action and found.action.verb) == (sentence, verb)


@pytest.mark.parametrize(
    ("takers", "verb", "words"),
    [
        (Takers(), "needs_worker", "No live worker serves queue 'default'"),
        (Takers(on_queue=2), "needs_worker", "2 workers serve queue 'default', none of them runs activity charge"),
        (Takers(on_queue=2, of_type=1), "needs_worker", "pinned to build"),
        (THREE, "queued", "of 3 workers"),
        (Takers(known=False), "queued", "of a worker"),
    ],
)
def test_what_no_worker_has(takers: Takers, verb: str, words: str) -> None:
    found = explain(summary_of(given(CHARGE)), Facts(takers=takers), instant(30))
    assert found.verb == verb
    assert words in found.sentence
    assert found.attention == ("no_worker" if verb == "needs_worker" else None)


@pytest.mark.parametrize(
    ("limit", "itself"),
    [
        ("max_active_leases_per_queue", "it goes on when one of those leases ends"),
        ("max_dispatches_per_minute", "it goes on when the next minute begins"),
    ],
)
def test_a_limit_says_who_holds_it_and_when_it_ends(limit: str, itself: str) -> None:
    holders = ["a (9)", "b (4)", "c (2)", "d (1)", "e (1)"]
    reached = ReachedLimit(name=limit, allowed=17, used=17, source="settings", holders=holders)
    found = explain(summary_of(given(CHARGE)), Facts(takers=THREE, limit=reached), instant(30))
    assert (found.verb, found.by_itself, found.attention) == ("throttled", itself, "throttled")
    assert found.sentence.endswith(f"reached {limit} (17 of 17, settings); held by a (9), b (4), c (2) and 2 others.")


@pytest.mark.parametrize(
    ("engine", "verb", "words"),
    [
        ("here", "sleeps", "Sleeps for another 30 s"),
        ("elsewhere", "sleeps", "Sleeps for another 30 s"),
        ("none", "needs_engine", "No engine runs this database"),
        ("down", "needs_database", "The database cannot commit now"),
    ],
)
def test_the_explanation_says_whether_an_engine_decides(engine: Any, verb: str, words: str) -> None:
    found = explain(summary_of(given(StartTimer(delay_seconds=60))), Facts(engine=engine), instant(30))
    assert found.verb == verb
    assert words in found.sentence


def test_an_activity_is_not_said_to_run_without_an_engine() -> None:
    found = summary_of(running())
    assert short(found, Facts(), instant(60)).startswith("Activity charge runs for 1 min")
    assert short(found, Facts(engine="none"), instant(60)).startswith("Activity charge was begun 1 min ago at worker-1")


def test_a_wake_that_has_passed_is_overdue() -> None:
    found = summary_of(given(StartTimer(delay_seconds=60)))
    assert explain(found, Facts(), instant(65)).verb == "sleeps", "it may be on its way"
    late = explain(found, Facts(), instant(120))
    assert (late.verb, late.attention) == ("overdue", "overdue")
    assert late.sentence == "Overdue for 1 min: it waits for timer."


def test_a_lease_that_has_ended_is_overdue() -> None:
    found = summary_of(running())
    assert explain(found, Facts(), instant(299)).verb == "runs_activity"
    assert explain(found, Facts(), instant(400)).verb == "overdue"


def test_a_block_says_where_and_for_which_code() -> None:
    flow = given(StartTimer(delay_seconds=60))
    flow.due(61)
    block = Block(
        message="timer, not activity",
        replay_blocked=True,
        reason="history_shape_mismatch",
        workflow_sequence=1,
        fingerprint="sha256:0123456789abcdef",
    )
    flow.break_task(block)
    found = explain(summary_of(flow), Facts(block=block), instant(121))
    assert found.sentence == (
        "Blocked for 1 min by worker worker-1: the code no longer fits the history of the run at step 1: “timer, not activity”."
    )
    assert found.by_itself == "it is retried when a worker with different code connects"
    assert found.action is not None
    assert (found.action.verb, found.action.label, found.action.allowed) == ("deploy", "Deploy code that fits", False)
    nobody = explain(summary_of(flow), Facts(block=block, engine="none"), instant(121))
    assert nobody.action is not None
    assert nobody.action.label == "Start an engine with code that fits", "any other engine would block it again"


def test_other_open_steps_are_counted() -> None:
    flow = given(OpenSignalWait(signal_name="go"), CHARGE, CHARGE, definition=TALKING)
    flow.begin(2)
    assert short(summary_of(flow), Facts(), instant(5)).endswith("; 2 other steps are open.")


def test_the_shortest_sentences_of_a_closed_run() -> None:
    flow = given(CompleteWorkflow(), at=0)
    found = summary_of(flow)
    assert short(found, Facts(), instant(7200)) == "Completed 2 h ago, after less than a second."
    assert explain(found, Facts(), instant(1)).resume_source is None


def test_a_sentence_takes_no_time() -> None:
    from time import perf_counter

    found, facts = summary_of(failed_once()), Facts(takers=THREE)
    began = perf_counter()
    for _ in range(1000):
        short(found, facts, instant(60))
    assert perf_counter() - began < 1, "a list says it a hundred times"


def test_quotes_are_one_short_line() -> None:
    assert quoted("a\n\tb\x1b[0m") == "“a b [0m”"
    assert len(quoted("x" * 10_000)) <= 122
    assert quoted(None) == "“”"


def test_summaries_of_a_pause_keep_its_reason() -> None:
    flow = given(OpenSignalWait(signal_name="go"), definition=TALKING)
    flow.when(Pause(reason="closed"), at=10)
    found = summary_of(flow)
    assert found.pause_reason == "closed"
    facts = Facts(paused_by="ann", pause_reason=found.pause_reason)
    assert short(found, facts, instant(70)) == "Paused 1 min ago by ann: “closed”."
    assert short(replace(found, pause_reason=None), Facts(), instant(70)) == "Paused 1 min ago."


# -- causes


def causes(flow: Flow, sequence: int) -> list[tuple[str, int | None]]:
    return [(cause.type, cause.because) for cause in chain_of(flow.history, sequence).causes]


def test_what_code_decided_follows_from_what_woke_it() -> None:
    flow = given(StartTimer(delay_seconds=5))
    flow.due(6)
    flow.complete(CHARGE)
    flow.begin(2)
    flow.beat(2, at=8)
    flow.fail(2, at=9)
    last = last_of(flow.history, 2)
    assert last is not None
    assert last == len(flow.history)
    found = causes(flow, last)
    assert [type for type, _ in found] == [
        "StartAccepted",
        "WorkflowStarted",
        "TimerScheduled",
        "TimerFired",
        "ActivityScheduled",
        "ActivityStarted",
        "ActivityRetryScheduled",
    ]
    assert found[0][1] is None


def test_a_run_exists_because_a_caller_started_it() -> None:
    chain = chain_of(given(StartTimer(delay_seconds=60)).history, 3)
    assert [(cause.type, cause.outside) for cause in chain.causes] == [
        ("StartAccepted", "the caller that started it"),
        ("WorkflowStarted", None),
        ("TimerScheduled", None),
    ]


def test_the_first_event_of_a_command_came_from_outside_and_the_others_follow_from_it() -> None:
    flow = given(OpenSignalWait(signal_name="go"), definition=TALKING)
    flow.signal("go")
    received = len(flow.history)
    chain = chain_of(flow.history, received)
    assert [cause.type for cause in chain.causes] == ["SignalReceived"]
    assert chain.causes[0].outside == "a command (python)"
    flow.complete(CompleteWorkflow())
    completed = explain_event(summary_of(flow), flow.history[-1], chain_of(flow.history, len(flow.history)).causes)
    assert "SignalReceived go, which came from a command (python)." in completed.sentence


def test_a_part_of_a_history_says_what_it_lacks() -> None:
    flow = given(StartTimer(delay_seconds=5))
    flow.due(6)
    flow.complete(CHARGE)
    tail = flow.history[-1:]
    chain = chain_of(tail, tail[0].sequence)
    assert [cause.type for cause in chain.causes] == ["ActivityScheduled"]
    assert chain.missing == tail[0].sequence - 1
