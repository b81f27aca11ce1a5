"""`tailrace.metrics`: what queues do, counted and measured, for whoever wants to know.

    registry = metrics.Registry()
    metrics.subscribe(registry)
    ...
    text = registry.prometheus(store.stats())

Nothing is measured before the first `subscribe`.
"""

from __future__ import annotations

from tailrace.hooks import Listener, subscribe, unsubscribe
from tailrace.metrics.catalogue import COUNTERS, HISTOGRAMS
from tailrace.metrics.prometheus import CONTENT_TYPE, prometheus_text
from tailrace.metrics.registry import Histogram, Registry

__all__ = [
    "CONTENT_TYPE",
    "COUNTERS",
    "HISTOGRAMS",
    "Histogram",
    "Listener",
    "Registry",
    "prometheus_text",
    "subscribe",
    "unsubscribe",
]
