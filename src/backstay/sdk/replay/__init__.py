"""Replay: workflow code is run from its history, and runs on from there. Also what checks that it can be replayed."""
