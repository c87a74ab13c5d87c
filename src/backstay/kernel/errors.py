"""What every error that Backstay raises is, whichever part of it says so."""

from __future__ import annotations


class BackstayError(Exception):
    """The base class of every error that Backstay raises.

    Catch it where any error of Backstay is handled alike.
    """
