"""Checking and repairing logs that nobody writes to."""
