# ruff: noqa
"""Workflows whose offences are in helpers."""

from casebook import helpers
from casebook.primitives import spawn


def order():
    return helpers.price()


def fulfil(parcels):
    return [spawn(helpers.follow, p) for p in parcels]
