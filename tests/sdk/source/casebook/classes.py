# ruff: noqa
"""Class workflows: every method is workflow code, a library's ancestor is not."""

import time
from datetime import datetime

import elsewhere
from casebook.primitives import activity, patched, version
from casebook import primitives as hf


class Member:
    """What a decorator makes of a method without saying what it wrapped."""

    def __init__(self, function):
        pass


class Ancestor:
    def inherited(self):
        return time.time()  #: clock


class Approval(Ancestor, elsewhere.Base):
    by = None

    def __init__(self):
        self.since = datetime.now()  #: clock

    @Member
    def approve(self, by):
        self.by = time.time()  #: clock

    @property
    def age(self):
        return time.time()  #: clock

    @staticmethod
    def tick():
        return time.time()  #: clock

    @activity
    def ship(self):
        return time.time()

    def handle(self):
        if patched("second"):
            return version("first", max=2)
        return hf.version("third")


class Streaming:
    def handle(self):  #: generator
        yield 1
