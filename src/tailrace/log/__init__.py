"""Bytes on disk: append, read, roll, recover."""
