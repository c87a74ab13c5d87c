"""Tests of the kernel: pure functions, so every test is given, when, then and takes microseconds."""
