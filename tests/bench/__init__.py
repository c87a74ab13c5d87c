"""The scripts of `bench/`: that each of them runs, and what the hot path costs."""
