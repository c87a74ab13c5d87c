"""The worker: its registry, and the execution of workflow tasks and activities, embedded or against a server."""
