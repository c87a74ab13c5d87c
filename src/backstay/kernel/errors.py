"""The base class of all errors that Backstay raises."""

from __future__ import annotations


class BackstayError(Exception):
    """The base class of every error that Backstay raises.

    Catch it where any error of Backstay is handled alike.
    """
