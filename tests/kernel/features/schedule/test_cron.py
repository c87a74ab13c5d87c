"""Cron expressions: what they say, and what they mean where the clock on the wall jumps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.kernel.features.schedule.cron import Cron, CronError, parse, zone_of
from backstay.kernel.values import SECOND, Micros

from .scheduling import utc

ZONES = [
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Chatham"),
    *("America/Santiago", "Africa/Casablanca", "Pacific/Apia", "Asia/Beirut", "America/Havana"),
]


def some(expression: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """The next few moments, as the clock on the wall shows them."""
    found = islice(parse(expression).after(utc(after), zone_of(zone)), count)
    return [datetime.fromtimestamp(at // SECOND, zone_of(zone)).strftime("%a %d %b %Y %H:%M %Z") for at in found]


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2027-01-15T08:00:30", ["Fri 15 Jan 2027 08:01 UTC", "Fri 15 Jan 2027 08:02 UTC"]),
        ("0 2 * * *", "2027-01-15T02:00:00", ["Sat 16 Jan 2027 02:00 UTC", "Sun 17 Jan 2027 02:00 UTC"]),
        ("0 2 * * *", "2027-01-15T01:59:59", ["Fri 15 Jan 2027 02:00 UTC"]),
        ("*/20 9-10 * * *", "2027-01-15T09:30:00", ["Fri 15 Jan 2027 09:40 UTC", "Fri 15 Jan 2027 10:00 UTC"]),
        ("5/25 * * * *", "2027-01-15T08:05:00", ["Fri 15 Jan 2027 08:30 UTC", "Fri 15 Jan 2027 08:55 UTC"]),
        ("0 0 * * mon-fri", "2027-01-15T08:00:00", ["Mon 18 Jan 2027 00:00 UTC"]),
        ("0 0 * * 7", "2027-01-15T08:00:00", ["Sun 17 Jan 2027 00:00 UTC"]),
        ("0 0 1 JAN,Jul *", "2027-01-15T08:00:00", ["Thu 01 Jul 2027 00:00 UTC", "Sat 01 Jan 2028 00:00 UTC"]),
        ("0 0 13 * 5", "2027-01-15T08:00:00", ["Fri 22 Jan 2027 00:00 UTC"]),
        ("0 0 20 * 5", "2027-01-15T08:00:00", ["Wed 20 Jan 2027 00:00 UTC"]),
        ("0 0 */2 * 5", "2027-01-15T08:00:00", ["Fri 29 Jan 2027 00:00 UTC"]),
        ("0 0 31 * *", "2027-02-01T00:00:00", ["Wed 31 Mar 2027 00:00 UTC", "Mon 31 May 2027 00:00 UTC"]),
        ("0 0 29 2 *", "2096-03-01T00:00:00", ["Fri 29 Feb 2104 00:00 UTC"]),
        ("@daily", "2027-01-15T08:00:00", ["Sat 16 Jan 2027 00:00 UTC"]),
        ("@Hourly", "2027-01-15T08:00:00", ["Fri 15 Jan 2027 09:00 UTC"]),
        ("@yearly", "2027-01-15T08:00:00", ["Sat 01 Jan 2028 00:00 UTC"]),
    ],
)
def test_a_cron_expression_gives_its_times(expression: str, after: str, expected: list[str]) -> None:
    assert some(expression, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("0 0 2 * * *", "6 fields"),
        ("60 * * * *", "minute is 0 to 59"),
        ("* 24 * * *", "hour is 0 to 23"),
        ("* * 0 * *", "day of month is 1 to 31"),
        ("* * * 13 *", "month is 1 to 12"),
        ("* * * * 8", "day of week is 0 to 7"),
        ("* * * * moo", "not 'moo'"),
        ("*/0 * * * *", "step"),
        ("*/ * * * *", "step"),
        ("1,,2 * * * *", "not ''"),
        ("-5 * * * *", "not ''"),
        ("9-5 * * * *", "backwards"),
        ("* * L * *", "not 'L'"),
        ("٣ * * * *", "minute"),
        ("@sometimes", "1 fields"),
    ],
)
def test_a_malformed_cron_expression_is_refused(expression: str, said: str) -> None:
    with pytest.raises(CronError, match=said):
        parse(expression)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc/passwd", "Europe"])
def test_a_zone_that_is_not_known(name: str) -> None:
    with pytest.raises(CronError, match="time zone"):
        zone_of(name)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "* * 31 4,6,9,11 *"])
def test_a_day_that_never_comes(expression: str) -> None:
    assert next(parse(expression).after(utc("2027-01-15T08:00:00"), zone_of("Europe/Berlin")), None) is None


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # Berlin goes from 02:00 to 03:00: a time of day that is left out comes right behind the gap, once
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2027-03-27T00:00:00",
            ["Sat 27 Mar 2027 02:30 CET", "Sun 28 Mar 2027 03:00 CEST", "Mon 29 Mar 2027 02:30 CEST"],
        ),
        (
            "0,20,40 2-3 * * *",
            "Europe/Berlin",
            "2027-03-28T00:00:00",
            ["Sun 28 Mar 2027 03:00 CEST", "Sun 28 Mar 2027 03:20 CEST", "Sun 28 Mar 2027 03:40 CEST"],
        ),
        # what goes by elapsed time is not made up for
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2027-03-28T00:29:00",
            ["Sun 28 Mar 2027 01:30 CET", "Sun 28 Mar 2027 03:00 CEST", "Sun 28 Mar 2027 03:30 CEST"],
        ),
        ("* 2 * * *", "Europe/Berlin", "2027-03-27T01:59:00", ["Mon 29 Mar 2027 02:00 CEST"]),
        # and from 03:00 to 02:00: a time of day comes at its first reading only
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2027-10-30T12:00:00",
            ["Sun 31 Oct 2027 02:30 CEST", "Mon 01 Nov 2027 02:30 CET"],
        ),
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2027-10-31T00:00:00",
            ["Sun 31 Oct 2027 02:30 CEST", "Sun 31 Oct 2027 02:00 CET", "Sun 31 Oct 2027 02:30 CET"],
        ),
        # asked in the middle of the repeated hour
        ("30 2 * * *", "Europe/Berlin", "2027-10-31T01:10:00", ["Mon 01 Nov 2027 02:30 CET"]),
        # a gap at midnight: the day begins at 01:00
        (
            "0 0 * * *",
            "America/Santiago",
            "2027-09-04T12:00:00",
            ["Sun 05 Sep 2027 01:00 -03", "Mon 06 Sep 2027 00:00 -03"],
        ),
        # half an hour, at Lord Howe
        ("15 2 * * *", "Australia/Lord_Howe", "2027-10-02T12:00:00", ["Sun 03 Oct 2027 02:30 +11"]),
        # Samoa once left out a whole day
        (
            "0 12 * * *",
            "Pacific/Apia",
            "2011-12-29T23:00:00",
            ["Sat 31 Dec 2011 00:00 +14", "Sat 31 Dec 2011 12:00 +14"],
        ),
    ],
)
def test_where_the_clock_on_the_wall_jumps(expression: str, zone: str, after: str, expected: list[str]) -> None:
    assert some(expression, after, len(expected), zone) == expected


# -- laws


def brute_force(cron: Cron, zone: tzinfo, start: Micros, minutes: int) -> list[Micros]:
    """Look at the clock on the wall every minute."""
    found: list[Micros] = []
    before = datetime.fromtimestamp(start // SECOND, zone)
    times = set(cron.minutes)
    for at in range(start + 60 * SECOND, start + (minutes + 1) * 60 * SECOND, 60 * SECOND):
        there = datetime.fromtimestamp(at // SECOND, zone)
        shown = [there] if cron.elapsed or not repeats(there) else []
        if not cron.elapsed:
            # what the clock has left out since the last look
            left_out = before.replace(tzinfo=None, fold=0) + timedelta(minutes=1)
            while left_out < there.replace(tzinfo=None, fold=0):
                shown.append(left_out)
                left_out += timedelta(minutes=1)
        if any(time.hour * 60 + time.minute in times and cron.on(time.date()) for time in shown):
            found.append(at)
        before = there
    return found


def repeats(there: datetime) -> bool:
    """Whether the clock has shown this before."""
    return there.fold == 1 and there.replace(fold=0).utcoffset() != there.utcoffset()


def part(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        number.map(str),
        st.builds(lambda a, b: f"{min(a, b)}-{max(a, b)}", number, number),
        st.builds(lambda step: f"*/{step}", st.integers(1, high)),
        st.builds(lambda a, b: f"{a},{b}", number, number),
    )


EXPRESSIONS = st.builds(
    lambda *parts: " ".join(parts),
    part(0, 59),
    part(0, 23),
    st.one_of(st.just("*"), part(1, 28)),
    st.one_of(st.just("*"), st.just("*"), part(1, 12)),
    st.one_of(st.just("*"), part(0, 7)),
)
JUMPS = [
    *(
        "2027-03-14T00:00:00",
        "2027-03-27T20:00:00",
        "2027-04-03T08:00:00",
        "2027-10-02T08:00:00",
        "2027-10-30T20:00:00",
    ),
    *(
        "2027-11-06T20:00:00",
        "2027-09-04T20:00:00",
        "2027-04-03T20:00:00",
        "2027-09-25T06:00:00",
        "2028-02-28T10:00:00",
    ),
]
STARTS = st.one_of(
    st.sampled_from(JUMPS).map(utc),
    st.integers(utc("2020-01-01T00:00:00") // 60 // SECOND, utc("2040-01-01T00:00:00") // 60 // SECOND).map(
        lambda minute: minute * 60 * SECOND
    ),
)


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, st.sampled_from(ZONES), STARTS)
def test_the_same_as_looking_at_the_clock_every_minute(expression: str, zone: str, start: Micros) -> None:
    minutes = 36 * 60
    end = start + minutes * 60 * SECOND
    cron = parse(expression)
    found = list(takewhile(lambda at: at <= end, cron.after(start, zone_of(zone))))
    assert found == brute_force(cron, zone_of(zone), start, minutes)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, st.sampled_from(ZONES), STARTS, st.integers(0, 59))
def test_the_next_is_always_later_and_the_same_wherever_one_begins(
    expression: str, zone: str, start: Micros, seconds: int
) -> None:
    cron, where = parse(expression), zone_of(zone)
    start += seconds * SECOND
    found = list(islice(cron.after(start, where), 5))
    assert all(a < b for a, b in zip([start, *found], found, strict=False))
    for at, following in pairwise(found):
        assert next(cron.after(at, where)) == following
        assert next(cron.after(following - 1, where)) == following


def test_utc_needs_no_zone_data() -> None:
    assert zone_of("UTC") is UTC
