"""The native protocol: the messages between clients, workers and server of the same release of Backstay."""
