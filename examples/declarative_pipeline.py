"""Queues in a declarative pipeline of Spark's own: orders are read from one, and what is large goes
to another. `spark-pipelines` finds `format("tailrace")` by itself; nothing is registered.

python examples/declarative_pipeline.py [FOLDER]

Needs `pip install 'pyspark[pipelines]'` beside tailrace[spark], and Java.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tailrace

ORDERS = [("cups", 30), ("plates", 2), ("cups", 4), ("spoons", 120), ("plates", 11)]

SPEC = """\
name: large_orders
storage: file://{project}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  shop.store: {store}
"""

# What a project has in `transformations`. `spark` is there when it runs.
DEFINITIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
store = spark.conf.get("shop.store")

dp.create_sink("large", "tailrace", {"path": store, "queue": "large"})


@dp.temporary_view
def orders():
    reader = spark.readStream.format("tailrace").option("path", store).option("queue", "orders")
    reader = reader.option("startingOffsets", "earliest")
    order = f.from_json(f.col("value").cast("string"), "item STRING, count INT")
    return reader.load().select(order.alias("order")).select("order.*")


@dp.append_flow(target="large")
def large_orders():
    large = spark.readStream.table("orders").where("count > 10")
    return large.selectExpr("item AS key", "string(count) AS value")
"""


def publish(folder: Path) -> None:
    with tailrace.open(folder) as store:
        orders, large = store.stream("orders"), store.stream("large")
        orders.publish_many([json.dumps({"item": item, "count": count}) for item, count in ORDERS])
        print(f"published {len(ORDERS)} orders; {large.name} has {large.log.end_offset} messages")


def write_project(project: Path, store: Path) -> None:
    """As `spark-pipelines init` lays one out."""
    (project / "transformations").mkdir(parents=True, exist_ok=True)
    (project / "storage").mkdir(exist_ok=True)
    (project / "spark-pipeline.yml").write_text(SPEC.format(project=project, store=store))
    (project / "transformations" / "orders.py").write_text(DEFINITIONS)


def run_project(project: Path) -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [home / "bin" / "spark-pipelines", "run", "--spec", "spark-pipeline.yml"],
        cwd=project,
        env={**environment, "TMPDIR": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"spark-pipelines has failed:\n{done.stdout}{done.stderr}")


def show(folder: Path) -> None:
    with tailrace.open(folder) as store:
        for message in store.stream("large").read():
            print(f"{(message.key or b'').decode()}: {(message.value or b'').decode()}")


def run(folder: Path) -> None:
    publish(folder / "data")
    write_project(folder / "project", folder / "data")
    run_project(folder / "project")
    show(folder / "data")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as scratch:
            run(Path(scratch).resolve())
