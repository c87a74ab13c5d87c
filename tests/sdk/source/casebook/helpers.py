"""Helpers of the same package, one of them two steps away from the workflow that mentions it."""

import functools
import time
from datetime import datetime

from casebook.primitives import marked


def price():
    return rate() * 2


def rate():
    price  # a cycle  # noqa: B018
    return datetime.now().day  #: clock


@marked
def ship():
    return time.time()


def timed(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@timed
def follow(parcel):
    time.sleep(1)  #: sleep
    return parcel
