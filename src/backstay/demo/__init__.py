"""The program of `dw demo`: an order whose process is killed three times, and the proof that nothing was lost."""
