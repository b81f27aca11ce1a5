"""Queues on the log: routing, claims, acknowledgements, dead letters."""
