"""Benchmarks. `scripts/bench NAME` runs `bench/NAME.py`; what they share is in the folders."""
