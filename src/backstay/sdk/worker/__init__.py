"""The worker: what it has registered, and how it runs workflow tasks and activities, embedded or against a server."""
