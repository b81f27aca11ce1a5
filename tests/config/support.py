"""What the tests of configuration share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config import Config, check, load
from tests.project import ROOT

SEEDS = ROOT.parent / "shared" / "seeds"
FLUXMQ = SEEDS / "003_22cb1cb5de886d01.txt"

# What FluxMQ's documentation has, by its keys.
SMALL = """\
queues:
  - name: "tasks"
    topics: ["$queue/tasks/#"]
    limits:
      message_ttl: "30m"
"""
WHOLE = """\
queue_manager:
  auto_commit_interval: "5s"

queues:
  - name: "orders"
    topics: ["$queue/orders/#"]
    type: "classic"
    primary_group: ""

    replication:
      enabled: false
      group: ""
      mode: "sync"
      ack_timeout: "5s"
      replication_factor: 3
      min_in_sync_replicas: 2

    limits:
      max_message_size: 10485760
      max_depth: 100000
      message_ttl: "168h"

    retry:
      max_retries: 10
      initial_backoff: "5s"
      max_backoff: "5m"
      multiplier: 2.0

    dlq:
      enabled: true
      topic: ""

    retention:
      max_age: "168h"
      max_length_bytes: 0
      max_length_messages: 0
"""
# Every section, and every kind of value.
EVERYTHING = """\
x-common: &common
  visibility_timeout: 45s
  retry: {max_retries: unlimited, multiplier: 1.5}
storage:
  badger_dir: store
  flush: async
  flush_interval: 250ms
  segment_bytes: 8MiB
  retention_check_interval: 1m
  disk: {max_used_ratio: 0.8, refuse_ratio: 0.95, force: true, delete_when: "04;16"}
listeners: {mqtt: "127.0.0.1:1883", ws: "[::1]:8083"}
queue_manager: {auto_commit_interval: 2s}
queues:
  - name: jobs
    <<: *common
    flush: sync
    limits: {max_depth: 10, on_full: block}
  - name: events
    type: stream
    topics: ["$queue/events/#", "shop/+/paid"]
    retention: {max_age: 7d, max_length_bytes: 1GiB}
pipelines:
  - {name: revenue, from: jobs, sql: "SELECT 1", to: events}
  - name: lake
    from: jobs
    format: csv
    schema: id long, at timestamp
    delimiter: ";"
    watermark: {column: at, delay: 1h}
    start: 2026-01-31T12:00:00Z
    max_offsets_per_trigger: 1000
    on_loss: skip
    dead_letters: refused
    sql_file: lake.sql
    tables:
      prices: prices.csv
      others: {path: others, format: parquet}
      events: {queue: events, stream: true, start: 17, watermark: {column: timestamp}}
    to: {path: lake, format: json, partition_by: [day]}
    trigger: once
    checkpoint: checkpoints/lake
    conf: ["spark.sql.shuffle.partitions=4"]
cluster: {enabled: false, node: here}
"""


def write(folder: Path, text: str, name: str = "tailrace.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, text: str, name: str = "tailrace.yaml") -> Config:
    return load(write(folder, text, name))


def problems(folder: Path, text: str, name: str = "tailrace.yaml") -> list[str]:
    """What is said of a file, which is left out."""
    path = write(folder, text, name)
    found = [str(problem) for problem in check(path)]
    assert all(each.startswith(f"{path}:") for each in found)
    return [each.removeprefix(f"{path}:") for each in found]


def needs_seeds() -> None:
    if not FLUXMQ.exists():
        pytest.skip("the documents that the keys come from are not here")
