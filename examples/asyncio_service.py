"""An asyncio service: tasks publish and consume orders, and it stops gracefully.

It stops after two seconds, on Ctrl-C, or on SIGTERM: no new order is begun, those that are being
worked on are finished, and the rest stays in the queue. Start it again with the same folder, and it
goes on with them.

    python examples/asyncio_service.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile

import tailrace

ORDERS = 100
SECONDS = 2.0


async def take_orders(orders: tailrace.aio.Queue) -> None:
    """What the requests to a web server would do: publish, and answer when the order is on the
    disk. Those that come at the same time share a flush."""
    await asyncio.gather(*(orders.publish(b"order %d" % number) for number in range(ORDERS)))
    print(f"{ORDERS} orders were taken")


async def ship(consumer: tailrace.aio.Consumer, shipped: list[bytes | None]) -> None:
    """One of several tasks that share a consumer: each order goes to one of them."""
    async for message in consumer:  # until the consumer is closed
        async with message:  # acks; nacks after an error; gives it back if the task is cancelled
            await asyncio.sleep(0.1)  # the work
            shipped.append(message.value)


async def serve(folder: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    shipped: list[bytes | None] = []
    async with tailrace.aio.open(folder) as store:
        orders = await store.queue("orders")
        consumer = await orders.consumer(group="shipping")
        loop.call_later(SECONDS, stop.set)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(take_orders(orders))
            for _ in range(4):
                tasks.create_task(ship(consumer, shipped))
            await stop.wait()
            print("stopping")
            await consumer.close()  # the loops end, each after the order that it has
        print(f"{len(shipped)} orders were shipped")

        left = await orders.stats(exact=True)
        print(f"{left.ready} orders wait for the next start")


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(serve(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(serve(folder))


if __name__ == "__main__":
    main()
