"""Backstay in a Django project: put `backstay.contrib.django` into `INSTALLED_APPS`.

Workflows and activities stand in the module `flows` of an app. `client()` is the client of the process, `start_on_commit`
starts a workflow when the transaction has been committed, and `manage.py backstay_worker` runs the work. Nothing is opened
before it is used, and in tests nothing but a database in memory.
"""

from __future__ import annotations

from backstay.contrib.django.clients import client, start_on_commit, testing

__all__ = ["client", "start_on_commit", "testing"]
