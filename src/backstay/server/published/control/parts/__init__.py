"""Parts of a run: a long run is read page by page, whatever its length, and the engine never waits for a reader."""
