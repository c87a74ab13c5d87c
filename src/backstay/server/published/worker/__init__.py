"""The worker plane: registration, polls, and the verbs of leased tasks."""
