"""Stand-ins for the SDK's primitives: only their identity counts."""

from typing import Any


class Primitive:
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def step(self, *args: Any, **kwargs: Any) -> Any: ...


class Activity(Primitive):
    __backstay_activity__ = True
    __backstay_blocks__ = True

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function

    def options(self, **options: Any) -> "Activity":
        return self


class AsyncActivity(Activity):
    __backstay_blocks__ = False
    __backstay_awaited__ = True


sleep = Primitive()
wait = Primitive()
gather = Primitive()
side_effect = Primitive()
spawn = Primitive()


aio_sleep = sleep.step


def activity(function: Any) -> Activity:
    return Activity(function)


def async_activity(function: Any) -> AsyncActivity:
    return AsyncActivity(function)


def marked(function: Any) -> Any:
    function.__backstay_activity__ = True
    return function


def version(change_id: str, max: int = 1) -> int: ...


def patched(change_id: str) -> bool: ...
