# ruff: noqa
"""Workflows that look wrong to a search for words and are right."""

import asyncio
import logging
import os
import random
import time
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from subprocess import CalledProcessError
from urllib.parse import quote

import elsewhere
from casebook.helpers import ship
from casebook.primitives import activity, async_activity, gather, side_effect, sleep, spawn, wait


class Motor:
    def step(self, n): ...


MOTOR = Motor()
turn = MOTOR.step


@activity
def stamp():
    return time.time()


@async_activity
async def send(x): ...


def parameter_named_datetime(datetime, open):
    return datetime.now(), open("x")


def shadowed_by_assignment(x):
    time = x
    return time.time()


def shadowed_in_a_comprehension(clocks):
    return [time.time() for time in clocks]


def shadowed_in_a_lambda(clocks):
    return map(lambda time: time.time(), clocks)


def shadowed_by_a_loop_an_except_and_a_match(xs):
    for open in xs:
        open()
    match xs:
        case [random, *time]:
            random.random()
            time.time()


def shadowed_by_an_inner_function():
    def open(x):
        return x

    return open("x")


def captured_as_default(clock=time.time):
    return clock()


def arithmetic_on_dates(then: datetime = datetime.min):
    return then + timedelta(days=1), datetime.fromisoformat("2026-01-01"), time.gmtime(0)


def seeded():
    return random.Random(42).random() + random.Random(42).randint(1, 6)


def pure_paths():
    return PurePath("x").name, Path("x").with_suffix(".y"), os.path.join("a", "b"), quote("x")


def raises_a_librarys_error():
    raise CalledProcessError(1, "x")


def prints_and_logs():
    print("x")
    logging.getLogger(__name__).info("x")


def recorded():
    side_effect(lambda: random.random())
    side_effect(time.time)
    return side_effect.step(lambda: open("x").read()).run()


def calls_activities():
    return stamp(), ship(), elsewhere.stamp()


def sorted_sets(xs):
    for x in sorted(set(xs)):
        print(x)
    return sum(x for x in set(xs)), {x for x in {1, 2}}, len({1}), 3 in {1, 2}


def lambdas_that_are_bound_in_time(items):
    gather(lambda i=i: stamp(i) for i in items)
    [wait(lambda: items[i]) for i in items]
    return [sorted(items, key=lambda x: x[i]) for i in items]


def cleans_up():
    try:
        stamp()
    except BaseException as e:
        if e.args:
            print(e)
        raise
    except Exception:
        pass


def uses_its_steps(x):
    a = stamp.step(x)
    stamp.step(x).run()
    MOTOR.step(1)
    Motor().step(1)
    return a


async def uses_asyncio():
    await asyncio.sleep(1)
    await sleep.step(1)
    await asyncio.gather(stamp.step(1))
    stamp(1)
    await send(1)
    sent = send(2)
    await sent
    asyncio.create_task(send(3))
    turn(3)
    async with asyncio.TaskGroup() as group:
        group.create_task(stamp.step(1))


def holds_a_generator(xs):
    def numbers():
        yield from xs

    return list(numbers())


def decorates_inside():
    @activity
    def local():
        return time.time()

    return local()


def annotates(x: "open('x')" = 1) -> "time.time()":
    y: time.time() = x
    return y
