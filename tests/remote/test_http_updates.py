"""The stories of `tests/sdk/test_updates.py`, over HTTP."""

from ..sdk import test_updates as told
from .kit import retold

globals().update(
    retold(
        told,
        without={
            "test_what_to_wait_for_is_one_of_two",  # the body is refused before anybody reads what it wants
        },
    )
)
