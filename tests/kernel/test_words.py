"""The words of the features: every event says what it is about and has a line, and a story keeps the open steps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.kernel.event import NO_CONTEXT, Event, record
from backstay.kernel.feature_list import FEATURES
from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.condition import CancelConditionWait, OpenConditionWait
from backstay.kernel.features.signal import CancelSignalWait, OpenSignalWait
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.values import SECOND
from backstay.kernel.views.timeline import WORDS, tell
from backstay.kernel.words import Story

from .given import MACHINE, T0, TALKING, Flow, given, running
from .telling import PLAIN

EVENTS = sorted(MACHINE.kinds.values(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_has_words(kind: type[Event]) -> None:
    assert kind in WORDS, f"{kind.__name__} has no words: add them to its feature"
    phrase = tell(Story(PLAIN), record(1, 1, T0, example(kind), NO_CONTEXT, b"", 0))
    assert phrase.text.strip()
    assert "\n" not in phrase.text
    assert len(phrase.mark) == 1
    about = WORDS[kind].about
    assert about.kind
    assert about.source


def test_a_feature_has_words_for_its_own_events_and_no_others() -> None:
    for feature in FEATURES:
        assert set(feature.words) == set(feature.history.evolve), feature.name


def test_the_subject_of_an_event_is_one_of_its_fields() -> None:
    for about in {words.about for words in WORDS.values()}:
        fields = {field for kind, words in WORDS.items() if words.about == about for field in kind.__struct_fields__}
        assert {about.id, *about.name} - {None} <= fields, about


def test_a_story_begins_with_the_first_event_and_ends_with_the_run() -> None:
    flow = given(StartTimer(delay_seconds=3.0))
    story = Story(PLAIN)
    assert lines(story, flow) == ["order() started", "timer set for 3 s"]
    assert (story.began, story.workflow_type, story.closed) == (T0, "order", False)
    flow.due(10.0)
    flow.complete(CompleteWorkflow(result=b"ok"), at=11.0)
    story = Story(PLAIN)
    assert lines(story, flow)[2:] == ["timer fired, 7 s late", "order completed in 11 s → b'ok'"]
    assert story.closed
    assert not story.open


def test_an_open_step_says_what_it_waits_for() -> None:
    assert waits(running()) == ["activity charge, attempt 1 running for 0 s"]
    assert waits(given(ScheduleActivity(activity_type="charge"))) == ["activity charge, waiting for a worker for 0 s"]
    (timer,) = waits(given(StartTimer(delay_seconds=3.0)))
    assert timer == f"timer of 3 s, due in 3 s ({PLAIN.moment(T0 + 3 * SECOND)})"
    (signal,) = waits(given(OpenSignalWait(signal_name="go", timeout_seconds=9.0), definition=TALKING))
    assert signal == f"signal go, for 0 s, until {PLAIN.moment(T0 + 9 * SECOND)}"


def test_a_wait_that_the_code_gives_up_is_no_longer_open() -> None:
    flow = given(OpenSignalWait(signal_name="go"), OpenConditionWait(), definition=TALKING)
    assert waits(flow) == ["signal go, for 0 s", "a condition, for 0 s"]
    flow.signal("note")
    flow.complete(CancelSignalWait(step=1), CancelConditionWait(step=2), StartTimer(delay_seconds=3.0))
    assert len(waits(flow)) == 1
    said = lines(Story(PLAIN), flow)
    assert "no longer waits for signal go" in said
    assert "no longer waits for a condition" in said


def test_a_retry_says_how_long_the_attempt_took_and_is_remembered_as_the_last_failure() -> None:
    flow = running(RetryPolicy(max_attempts=3, backoff_seconds=[5.0]))
    flow.fail(1, at=2.0)
    story = Story(PLAIN)
    assert lines(story, flow)[-1] == "charge attempt 1 of 3 failed in 2 s: boom; again in 5 s"
    assert waits(flow) == ["activity charge, attempt 2 in 5 s"]
    assert story.last_failure == (flow.now, "charge: boom")
    assert story.failed is flow.history[-1].event


def test_news_is_what_a_watcher_wants_to_see_at_once() -> None:
    flow = running(RetryPolicy(max_attempts=2, backoff_seconds=[0.0]))
    flow.fail(1)
    flow.begin(1)
    flow.finish(1)
    flow.complete(StartTimer(delay_seconds=0.5), StartTimer(delay_seconds=1.0))
    story = Story(PLAIN)
    assert [phrase.text for entry in flow.history if (phrase := tell(story, entry)).news] == [
        "charge attempt 1 started",
        "charge attempt 1 of 2 failed in 0 s: boom; again in 0 s",
        "timer set for 1 s",
    ]


def example(kind: type[Event]) -> Event:
    """An event of this type with something in every field that must have a value."""
    return msgspec.convert(_value(msgspec.inspect.type_info(kind)), kind)


def _value(info: msgspec.inspect.Type) -> Any:
    match info:
        case msgspec.inspect.StructType():
            return {field.encode_name: _value(field.type) for field in info.fields if field.required}
        case msgspec.inspect.UnionType():
            return _value(info.types[0])
        case msgspec.inspect.LiteralType():
            return info.values[0]
        case msgspec.inspect.StrType():
            return "some_text"
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 2
        case msgspec.inspect.BytesType():
            return "AAAA"
        case msgspec.inspect.DictType():
            return {}
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return []
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.Metadata():
            return _value(info.type)
        case _:
            raise AssertionError(f"no example of {info}")


def lines(story: Story, flow: Flow) -> list[str]:
    return [phrase.text for entry in flow.history if (phrase := tell(story, entry)).shown]


def waits(flow: Flow) -> list[str]:
    story = Story(PLAIN)
    lines(story, flow)
    return [step.waits(PLAIN, flow.now) for step in story.open.values()]
