"""Cron by a second opinion: `cronsim`, which does what Debian's cron does, and an expression of ours fire at the same moments.

Thousands of expressions, in zones of every kind of clock, from moments near the changes of those clocks. Left out is what differs on
purpose: cronsim has `L`, `W` and `#`, which are refused here; it refuses a day that no month has, which never fires here; it reads `5-5/2` as `5/2`.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import islice
from random import Random
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError

from backstay.kernel.features.schedule.cron import parse, zone_of
from backstay.kernel.values import SECOND
from tests.selection import rotating

ZONES = [
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Africa/Casablanca", "Europe/Dublin"),
    *("Australia/Sydney", "America/Los_Angeles", "Asia/Kolkata", "Europe/Istanbul", "Africa/Windhoek"),
]
ODD = [
    *("Australia/Lord_Howe", "America/St_Johns", "Antarctica/Troll", "America/Sao_Paulo", "Pacific/Apia"),
    *("Pacific/Chatham", "America/Havana", "Asia/Beirut", "Asia/Gaza", "Asia/Tehran"),
]
"""Changes by half an hour, at a minute past midnight, by two hours, by a whole day, at a quarter to three, at midnight."""

BOUNDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]
BATCHES, BATCH, MOMENTS = 15, 200, 10


def expression(dice: Random) -> str:
    return " ".join(field(dice, *bounds) for bounds in BOUNDS)


def field(dice: Random, low: int, high: int) -> str:
    match dice.randrange(10):
        case 0 | 1 | 2:
            return "*"
        case 3:
            return f"*/{dice.randint(1, high)}"
        case 4 | 5 | 6:
            return str(dice.randint(low, high))
        case 7:
            first = dice.randint(low, high)
            return f"{first}-{dice.randint(first, high)}"
        case 8:
            first = dice.randint(low, high - 1)
            return f"{first}-{dice.randint(first + 1, high)}/{dice.randint(1, max(1, high // 2))}"
        case _:
            return ",".join(str(dice.randint(low, high)) for _ in range(dice.randint(2, 4)))


def moment(dice: Random, zone: ZoneInfo) -> datetime:
    """Some minute, often shortly before the clock changes."""
    at = datetime(1995, 1, 1, tzinfo=UTC) + timedelta(minutes=dice.randrange(40 * 365 * 24 * 60))
    if dice.random() < 0.7:
        for _ in range(400):
            later = at + timedelta(days=1)
            if later.astimezone(zone).utcoffset() != at.astimezone(zone).utcoffset():
                at += timedelta(minutes=dice.randrange(24 * 60)) - timedelta(hours=12)
                break
            at = later
    return at


@pytest.mark.parametrize("batch", rotating(range(BATCHES), 5))
def test_both_fire_at_the_same_moments(batch: int) -> None:
    dice = Random(batch)
    for _ in range(BATCH):
        name, wanted = dice.choice(ZONES), expression(dice)
        at = moment(dice, ZoneInfo(name))
        horizon = at + timedelta(days=8 * 365)
        mine = [
            datetime.fromtimestamp(found // SECOND, UTC)
            for found in islice(parse(wanted).after(round(at.timestamp()) * SECOND, zone_of(name)), MOMENTS)
        ]
        mine = [found for found in mine if found <= horizon]
        assert mine == second_opinion(wanted, at.astimezone(ZoneInfo(name)), horizon), (wanted, name, at.isoformat())


def second_opinion(wanted: str, at: datetime, horizon: datetime) -> list[datetime]:
    found: list[datetime] = []
    try:
        for one in CronSim(wanted, at):
            if one.astimezone(UTC) > horizon or len(found) == MOMENTS:
                break
            found.append(one.astimezone(UTC))
    except CronSimError:
        return []  # it refuses a day that no month has
    return found


@pytest.mark.parametrize("batch", rotating(range(BATCHES), 5))
def test_minute_by_minute_it_is_what_the_guide_says(batch: int) -> None:
    """Also where cronsim is at a loss: it takes every change for one of whole hours, at a full hour, and not at midnight."""
    dice = Random(f"minutes {batch}")
    for _ in range(8):
        name = dice.choice(ODD)
        zone = ZoneInfo(name)
        wanted = " ".join(
            [field(dice, *BOUNDS[0]), field(dice, *BOUNDS[1]), "*", "*", dice.choice(["*", "0-3", "5,6"])]
        )
        at = moment(dice, zone).replace(second=0)
        until = at + timedelta(days=2)
        moments = parse(wanted).after(round(at.timestamp()) * SECOND, zone_of(name))
        mine = [datetime.fromtimestamp(found // SECOND, UTC) for found in islice(moments, 3 * 1440)]
        assert [found for found in mine if found <= until] == by_hand(wanted, at, until, zone), (wanted, name, at)


def by_hand(wanted: str, at: datetime, until: datetime, zone: ZoneInfo) -> list[datetime]:
    """Every minute is looked at, on the clock on the wall."""
    cron = parse(wanted)
    begin = at - timedelta(days=2)
    minutes = [begin + timedelta(minutes=n) for n in range(4 * 1440 + 1)]
    walls = [(minute, minute.astimezone(zone).replace(tzinfo=None)) for minute in minutes]
    named = set(cron.minutes)
    if cron.elapsed:
        due = {m for m, wall in walls if wall.hour * 60 + wall.minute in named and cron.on(wall.date())}
    else:
        due = set()
        for day in sorted({wall.date() for _, wall in walls}):
            for minute in named if cron.on(day) else ():
                reading = datetime.combine(day, time(minute // 60, minute % 60))
                shown = next((m for m, wall in walls if wall >= reading), None)  # at once, or right behind a gap
                if shown is not None and shown > begin:
                    due.add(shown)
    return sorted(m for m in due if at < m <= until)
