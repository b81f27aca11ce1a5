"""Orders are summed up with Spark, and the sums go to another queue: once, however often it is run.

python examples/spark_pipeline.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
import tempfile

import tailrace
from tailrace.spark import local_session, table

ORDERS = [("cups", 3), ("plates", 2), ("cups", 4), ("spoons", 12), ("plates", 1)]


def publish(folder: str) -> int:
    """Where the orders of this run begin."""
    with tailrace.open(folder) as store:
        orders, totals = store.queue("orders"), store.queue("totals")
        values = [(item, json.dumps({"item": item, "count": count})) for item, count in ORDERS]
        first = orders.publish_many(values).offset
        print(f"published {len(values)} orders; {totals.name} has {totals.log.end_offset} messages")
        return first


def sum_up(folder: str, first: int) -> None:
    """Each order has a place in the log, so what this job read has a name, and so has its result:
    whoever writes it again, because he cannot know whether he had, changes nothing."""
    spark = local_session()
    orders = table(spark, folder, "orders").offsets(first, first + len(ORDERS)).columns("value")
    orders.df().createOrReplaceTempView("orders")
    totals = spark.sql("""
        SELECT item AS key, string(sum(count)) AS value
        FROM (SELECT from_json(string(value), 'item STRING, count INT') AS o FROM orders)
             LATERAL VIEW inline(array(o)) AS item, count
        GROUP BY item
    """)
    for _ in range(2):
        totals.write.format("tailrace").mode("append").save(
            folder, queue="totals", txnId=f"totals-{first}"
        )
    spark.stop()


def consume(folder: str) -> None:
    with tailrace.open(folder) as store:
        messages = store.queue("totals").consumer(group="report").receive(100, wait=1.0)
        for message in sorted(messages, key=lambda message: message.key or b""):
            with message:
                print(f"{(message.key or b'').decode()}: {(message.value or b'').decode()}")


def run(folder: str) -> None:
    first = publish(folder)
    try:
        sum_up(folder, first)
    except tailrace.TailraceError as error:  # Spark, or its Java, is missing
        raise SystemExit(str(error)) from None
    consume(folder)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            run(scratch)
