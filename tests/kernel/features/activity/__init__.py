"""Activities, chapter by chapter."""
