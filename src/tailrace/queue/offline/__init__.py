"""Checking stores that nobody uses, and what their files say."""
