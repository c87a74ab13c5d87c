"""Tests of the stores: one suite for every dialect, then what is particular to each."""
