# ruff: noqa
"""One offence or a few per workflow, each on a line that says so."""

import asyncio
import concurrent.futures
import datetime as dt
import multiprocessing
import os
import pathlib
import random
import secrets
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.request
import uuid
from datetime import date, datetime
from pathlib import Path
from random import choice
from subprocess import run as sh
from time import time as t

import anyio
import anyio.to_process
import anyio.to_thread
from casebook import primitives as hf
from casebook.primitives import activity, async_activity, gather, side_effect, sleep, spawn, wait

LOCK = threading.Lock()
DICE = random.Random(6)
ROOT = Path("/etc")
counter = 0


class Later(datetime):
    pass


class Warehouse:
    @activity
    def ship(self, sku): ...

    @async_activity
    async def send(self, sku): ...


@activity
def charge(x): ...


@async_activity
async def send(x): ...


def clocks(when):
    time.time()  #: clock
    t()  #: clock
    time.monotonic_ns()  #: clock
    datetime.now()  #: clock
    dt.datetime.utcnow()  #: clock
    Later.now()  #: clock
    date.today()  #: clock
    time.localtime()  #: clock
    time.strftime("%Y")  #: clock
    time.localtime(when)
    time.strftime("%Y", when)


def sleeps():
    time.sleep(1)  #: sleep


def chance():
    random.random()  #: random
    choice([1, 2])  #: random
    DICE.randint(1, 6)  #: random
    DICE.random()  #: random
    random.Random()  #: random
    random.SystemRandom()  #: random
    secrets.token_hex()  #: random
    secrets.choice([1])  #: random
    uuid.uuid4()  #: random
    os.urandom(3)  #: random


def io():
    open("x")  #: io
    input()  #: io
    os.system("ls")  #: io
    os.listdir(".")  #: io
    os.path.exists("x")  #: io
    subprocess.run(["ls"])  #: io
    sh(["ls"])  #: io
    socket.socket()  #: io
    socket.gethostname()  #: io
    Path("x").read_text()  #: io
    pathlib.Path.home()  #: io
    (ROOT).exists()  #: io
    urllib.request.urlopen("http://x")  #: io
    sqlite3.connect("x")  #: io


def imports_of_its_own():
    import requests
    import time as clock
    from datetime import datetime

    import backstay_has_no_such.thing

    requests.get("x")  #: io
    clock.time()  #: clock
    datetime.now()  #: clock
    backstay_has_no_such.thing()


def environment():
    os.getenv("X")  #: environment
    os.environ["X"]  #: environment
    os.environ.get("X")  #: environment
    dict(os.environ)  #: environment


def threads():
    threading.Thread(target=print).start()  #: thread
    threading.Lock()  #: thread
    multiprocessing.Queue()  #: thread
    concurrent.futures.ThreadPoolExecutor()  #: thread
    LOCK.acquire()  #: thread
    with LOCK:  #: thread
        pass


async def loops(loop):
    asyncio.run(print())  #: asyncio
    await asyncio.to_thread(print)  #: asyncio
    await loop.run_in_executor(None, print)  #: asyncio
    anyio.run(print)  #: asyncio
    await anyio.to_thread.run_sync(print)  #: asyncio
    await anyio.to_process.run_sync(print)  #: asyncio
    await anyio.run_process("ls")  #: io
    await anyio.connect_tcp("localhost", 80)  #: io


def sets(xs):
    for x in {"a", "b"}:  #: set-order
        charge(x)
    for x in set(xs) - {"a"}:  #: set-order
        charge(x)
    gather([charge.step(x) for x in frozenset(xs)])  #: set-order
    gather(charge.step(x) for x in set(xs))  #: set-order
    gather(*{charge.step(x) for x in xs})  #: set-order
    list(set(xs))  #: set-order
    return ", ".join(set(xs))  #: set-order


def globals_():
    global counter  #: global
    counter += 1


def swallows():
    try:
        charge(1)
    except BaseException:  #: swallowed
        pass
    try:
        charge(1)
    except (ValueError, BaseException) as e:  #: swallowed
        print(e)
    try:
        charge(1)
    except:  #: swallowed
        return 1


def drops(self, x):
    charge.step(x)  #: dropped-step
    Warehouse.ship.step(x)  #: dropped-step
    hf.sleep.step(3)  #: dropped-step
    self.activity.step(x)  #: dropped-step
    charge.options(retries=3).step(x)  #: dropped-step


async def forgets(self, x):
    send(x)  #: not-awaited
    hf.aio_sleep(3)  #: not-awaited
    send.options(retries=3)(x)  #: not-awaited
    Warehouse.send(x)  #: not-awaited
    asyncio.sleep(1)  #: not-awaited
    if await send(x):
        send(x)  #: not-awaited

    async def inner():
        send(x)  #: not-awaited

    await inner()


async def awaits():
    await sleep(3)  #: awaited-blocking
    await hf.gather(charge.step(1))  #: awaited-blocking
    if await wait(lambda: True):  #: awaited-blocking
        pass
    await charge(1)  #: awaited-blocking
    return [await charge.options(retries=2)(x) for x in "ab"]  #: awaited-blocking


def late(items):
    gather(lambda: charge(i) for i in items)  #: late-binding
    gather([(i, lambda: charge(i)) for i in items])  #: late-binding
    gather({k: (lambda: charge(v)) for k, v in items})  #: late-binding
    [spawn(lambda: charge(i)) for i in items]  #: late-binding
    gather(gather.step(lambda: charge(i)) for i in items)  #: late-binding


def bound():
    Warehouse("dsn").ship("sku")  #: bound-activity


def closures():
    def inner():
        return time.time()  #: clock

    side_effect(len([random.random()]))  #: random
    wait(lambda: datetime.now() > 3)  #: clock
    return [time.time() for _ in range(3)]  #: clock


def defaults():
    return lambda at=time.time(): at  #: clock


def yields():  #: generator
    yield 1


async def yields_too():  #: generator
    yield 1
