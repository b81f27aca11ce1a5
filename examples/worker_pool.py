"""A pool of worker processes: one of them is killed in the middle of a job, and nothing is lost.

There is no server, and the workers know nothing of each other: each opens the store by its path,
and joins the group "workers". What a worker had not settled when it died goes to the others.

    python examples/worker_pool.py [FOLDER]
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time

import tailrace

JOBS = 30
WORKERS = ("anna", "ben", "carla")


def work(folder: str, name: str) -> None:
    """A worker. It runs for ever, and may be stopped or killed at any moment."""
    with tailrace.open(folder) as store:
        jobs, done = store.queue("jobs"), store.queue("done")
        for message in jobs.consume(group="workers", id=name):
            time.sleep(3600 if name == "ben" else 0.02)  # the work; ben hangs
            # One step settles the job and publishes its result. A job that is delivered twice,
            # because somebody died with it, has one result all the same.
            message.ack(publish=[(done, f"{text(message)} by {name}")])


def run(folder: str) -> None:
    with tailrace.open(folder) as store:
        jobs, done = store.queue("jobs"), store.queue("done")
        jobs.publish_many([b"job %d" % number for number in range(JOBS)])

        context = multiprocessing.get_context("spawn")
        anna, ben, carla = (
            context.Process(target=work, args=(folder, name), daemon=True) for name in WORKERS
        )
        ben.start()
        while not (held := jobs.pending("workers")):
            time.sleep(0.01)
        [job] = jobs.read(held[0].offset, held[0].offset + 1)
        print(f"{JOBS} jobs, and {held[0].consumer} hangs with {text(job)}")
        anna.start()
        carla.start()
        ben.kill()  # SIGKILL: he can neither settle his job nor give it back
        print("ben is killed; anna and carla go on")

        results: dict[str, str] = {}
        consumer = done.consumer(group="boss")
        while len(results) < JOBS:
            for message in consumer.receive(JOBS, wait=60.0):
                what, _, who = text(message).partition(" by ")
                assert what not in results, "each job is done once"
                results[what] = who
                message.ack()
        print(f"{text(job)} was done by {results[text(job)]}")
        while jobs.pending("workers"):  # a result is published before its job is settled
            time.sleep(0.01)
        print(f"{len(results)} jobs are done, {jobs.stats().ready} are left")

        for worker in (anna, carla):
            worker.terminate()
        for worker in (anna, ben, carla):
            worker.join()


def text(message: tailrace.Message) -> str:
    return (message.value or b"").decode()


def main() -> None:
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(folder)


if __name__ == "__main__":
    main()
