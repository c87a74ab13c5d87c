"""The client: starting workflows, talking to them and waiting for their results, with `await` and without."""
