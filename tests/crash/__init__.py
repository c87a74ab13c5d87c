"""Real processes, killed at every commit boundary: the outcome is the same, and what was recorded once ran once."""
