"""Peers that are queues in a server: a Redis stream and its group, a NATS pull consumer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.base import Peer, Session, installed, missing, version_of
from bench.peers.servers import (
    NatsConnection,
    Servers,
    nats_command,
    nats_server,
    redis_command,
    redis_server,
    version_said_by,
)

__all__ = ["queue_server_peers"]

_CAN = frozenset({"put", "put_batch", "claim", "claim_batch"})
_WAIT_S = 1.0
_LEASE_S = 30
_KEY, _GROUP, _CONSUMER = "queue", "workers", "one"

_REDIS_PROMISES = (
    "a server: XREADGROUP and XACK, a round trip each. No leases: another consumer takes over what "
    "has been idle for long (XAUTOCLAIM). "
)
_REDIS_POLICIES = {
    "everysec": "An fsync a second: compared with async",
    "always": "An fsync before each answer: compared with sync",
}
_NATS_PROMISES = (
    "a server: a pull consumer with explicit acknowledgement, leases (ack_wait) and delivery "
    "counts. One message is acknowledged with an answer, a batch with one flush for all. "
)
_NATS_INTERVALS = {
    "2m": "An fsync every two minutes: compared with async",
    "always": "An fsync for each message published; acknowledgements are written by a background "
    "task, so they promise less than sync, with which they are compared",
}


def queue_server_peers(servers: Servers) -> Iterator[Peer]:
    redis, binary = installed("redis"), redis_server()
    for policy, durable in (("everysec", False), ("always", True)):
        name = f"Redis stream, {policy}"
        if redis is None or binary is None:
            yield missing(name, durable=durable, can=_CAN, embedded=False)
            continue
        yield Peer(
            name,
            f"{version_said_by(binary)} (redis-py {version_of('redis')})",
            durable,
            _CAN,
            partial(_open_redis, redis, binary, policy, servers),
            embedded=False,
            promises=_REDIS_PROMISES + _REDIS_POLICIES[policy],
        )
    nats, binary = installed("nats"), nats_server()
    for interval, durable in (("2m", False), ("always", True)):
        name = f"NATS JetStream, sync {interval}"
        if nats is None or binary is None:
            yield missing(name, durable=durable, can=_CAN, embedded=False)
            continue
        yield Peer(
            name,
            f"{version_said_by(binary)} (nats-py {version_of('nats-py')})",
            durable,
            _CAN,
            partial(_open_nats, nats, binary, interval, servers),
            embedded=False,
            promises=_NATS_PROMISES + _NATS_INTERVALS[interval],
        )


def _open_redis(redis: Any, binary: str, policy: str, servers: Servers, _: Path) -> Session:
    port = servers.port(f"redis-{policy}", partial(redis_command, binary, policy))
    client = redis.Redis(host="127.0.0.1", port=port)
    client.delete(_KEY)
    client.xgroup_create(_KEY, _GROUP, id="0", mkstream=True)

    def put(value: bytes) -> None:
        client.xadd(_KEY, {"v": value})

    def put_batch(values: list[bytes]) -> None:
        pipeline = client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(_KEY, {"v": value})
        pipeline.execute()

    def claim(most: int) -> list[Any]:
        answer = client.xreadgroup(_GROUP, _CONSUMER, {_KEY: ">"}, count=most)
        if not answer:
            return []
        # RESP2 answers with pairs of a key and its entries, RESP3 with a mapping of lists.
        entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
        return list(entries)

    def settle(claimed: list[Any]) -> None:
        client.xack(_KEY, _GROUP, *(entry[0] for entry in claimed))

    def close() -> None:
        client.unlink(_KEY)
        client.close()

    return Session(put, put_batch, claim=claim, settle=settle, close=close)


class _NatsQueue(NatsConnection):
    """The stream of a connection, with one consumer that pulls."""

    def __init__(self, nats: Any, port: int) -> None:
        super().__init__(nats, port)
        self._empty: type[Exception] = nats.errors.TimeoutError
        self.new_stream()
        settings = nats.js.api.ConsumerConfig(ack_wait=_LEASE_S, max_ack_pending=-1)
        self._pull = self.run(self.jetstream.pull_subscribe("log", durable=_GROUP, config=settings))

    def claim(self, most: int) -> list[Any]:
        try:
            return list(self.run(self._pull.fetch(most, timeout=_WAIT_S)))
        except self._empty:
            return []

    def settle(self, claimed: list[Any]) -> None:
        self.run(self._settle(claimed))

    async def _settle(self, claimed: list[Any]) -> None:
        if len(claimed) == 1:
            await claimed[0].ack_sync()
            return
        for message in claimed:
            await message.ack()
        await self._client.flush()


def _open_nats(nats: Any, binary: str, interval: str, servers: Servers, _: Path) -> Session:
    port = servers.port(f"nats-{interval}", partial(nats_command, binary, interval))
    queue = _NatsQueue(nats, port)
    return Session(
        queue.put,
        queue.put_batch,
        claim=queue.claim,
        settle=queue.settle,
        close=queue.close,
    )
