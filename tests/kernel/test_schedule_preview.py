"""The next fires of a schedule in its time zone, with notes where local time jumps."""

from __future__ import annotations

from datetime import UTC, datetime

from backstay.kernel.features.schedule.preview import next_times, preview
from backstay.kernel.features.schedule.spec import Fire, Interval, Spec
from backstay.kernel.values import SECOND


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def shown(spec: Spec, after: str, count: int = 3) -> list[tuple[str, str | None]]:
    return [(fire.local.isoformat(), fire.note) for fire in preview(spec, "s", 0, at(after), count)]


def test_fires_are_told_in_the_zone_of_the_schedule() -> None:
    spec = Spec(cron_expressions=["0 9 * * 1"], timezone="America/New_York")
    assert shown(spec, "2027-01-01T00:00:00", 2) == [
        ("2027-01-04T09:00:00-05:00", None),
        ("2027-01-11T09:00:00-05:00", None),
    ]


def test_a_time_of_day_that_is_left_out_says_so() -> None:
    spec = Spec(cron_expressions=["30 2 * * *"], timezone="Europe/Berlin")
    assert shown(spec, "2027-03-27T12:00:00", 2) == [
        (
            "2027-03-28T03:00:00+02:00",
            "The clock of Europe/Berlin goes forward by 1 h before this fire."
            " This time of day does not exist on this day: it fires right after the gap.",
        ),
        ("2027-03-29T02:30:00+02:00", None),
    ]


def test_a_time_of_day_that_comes_twice_fires_once_and_says_so() -> None:
    spec = Spec(cron_expressions=["30 2 * * *"], timezone="Europe/Berlin")
    first, second = shown(spec, "2027-10-30T12:00:00", 2)
    assert first == (
        "2027-10-31T02:30:00+02:00",
        "This time of day occurs twice on this day: it fires the first time only.",
    )
    assert second == ("2027-11-01T02:30:00+01:00", "The clock of Europe/Berlin goes back by 1 h before this fire.")


def test_an_expression_that_goes_by_elapsed_time_fires_both_times() -> None:
    spec = Spec(cron_expressions=["30 * * * *"], timezone="Europe/Berlin")
    found = shown(spec, "2027-10-31T00:00:00", 3)
    assert [local for local, _ in found] == [
        "2027-10-31T02:30:00+02:00",
        "2027-10-31T02:30:00+01:00",
        "2027-10-31T03:30:00+01:00",
    ]
    assert found[0][1] == "This time of day occurs twice on this day: it fires both times."


def test_intervals_and_jitter_are_previewed_as_they_will_fire() -> None:
    spec = Spec(intervals=[Interval(every="PT30M")])
    (one, two) = preview(spec, "s", 60, at("2027-01-01T00:00:00"), 2)
    assert (one.occurrence, two.occurrence) == (at("2027-01-01T00:30:00"), at("2027-01-01T01:00:00"))
    assert one.occurrence <= one.at < one.occurrence + 60 * SECOND
    assert next_times(spec, "s", 60, Fire(occurrence=one.occurrence, at=one.at), 2) == [one.at, two.at]
