"""Views of a run for people and programs: pure functions of its state and history, never stored."""
