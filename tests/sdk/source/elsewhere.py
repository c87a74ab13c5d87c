"""A library: its functions are its own affair."""

import time


def stamp() -> float:
    return time.time()


class Base:
    def prepare(self) -> float:
        return time.time()
