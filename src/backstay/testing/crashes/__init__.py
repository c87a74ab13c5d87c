"""Crash exploration: a test runs again and again, and each time its process is killed at another point.

`exploration.py` chooses what each trial does, `trial.py` is one run of the test, `mortal.py` is a process that can be killed.
"""
