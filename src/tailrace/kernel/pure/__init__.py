"""The kernel in plain Python: the same functions and the same bytes as the compiled twin."""
