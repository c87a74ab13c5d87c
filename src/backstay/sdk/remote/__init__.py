"""The SDK against a server: the same code as embedded, over HTTP."""
