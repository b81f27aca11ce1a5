"""Spark looks for packages of this name, and finds `format("tailrace")` without registration."""

from tailrace.spark.provider import TailraceSource as DefaultSource

__all__ = ["DefaultSource"]
