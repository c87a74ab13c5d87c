"""The SDK: what authors import, the replay of their code, the worker that runs it, and the clients that start it."""
