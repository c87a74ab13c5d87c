"""The engine's API: requests of clients and workers become messages and replies."""
