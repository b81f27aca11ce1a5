"""What a process of a crew does when it follows: threads or tasks that wait for stamped records
(`tailrace.cli.stamps`) in a log, in a queue, in a bare file, or in a peer that has to be asked all
the time.

All are used alike: they follow once they are made, `join` waits until everybody has seen the end,
`seen` has how old each record was for each follower.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from array import array
from pathlib import Path
from time import perf_counter_ns
from typing import Protocol

from bench.support.bare import BareInotify, mark_of
from bench.support.queueing import open_queue
from bench.support.writing import RAW_NAME, peer_named
from tailrace import Log, aio
from tailrace.cli.stamps import END, STAMP, FollowingThreads

__all__ = ["Following", "follow"]

VALUE_SIZE = 256
_POLL_S = 0.001
_LOOK_S = 0.2  # how soon a consumer that has nothing to do notices that it is over
_PATIENCE_S = 30.0
_SETTLE_S = 0.05


class Following(Protocol):
    seen: list[array[int]]

    def join(self) -> None: ...

    def close(self) -> None: ...


def follow(how: str, folder: Path, followers: int) -> Following:
    """`how` is "threads" or "tasks" that follow a log; "consumer" for a queue; "bare threads",
    "bare tasks" or "marked" for a file; or the name of a peer."""
    match how:
        case "threads":
            return _LogThreads(folder, followers)
        case "tasks":
            return _LogTasks(folder, followers)
        case "consumer":
            return _Consuming(folder)
        case "bare threads":
            return _BareThreads(folder / RAW_NAME, folder / RAW_NAME, followers)
        case "marked":
            return _BareThreads(folder / RAW_NAME, mark_of(folder / RAW_NAME), followers)
        case "bare tasks":
            return _BareTasks(folder / RAW_NAME, followers)
        case name:
            return _Polling(name, folder)


def _note(value: bytes, seen: array[int]) -> bool:
    """Note how old a record is; false if it was the last."""
    now = perf_counter_ns()
    (stamp,) = STAMP.unpack_from(value)
    if stamp > 0:
        seen.append(now - stamp)
    return bool(stamp != END)


# --- a log ----------------------------------------------------------------------------------


class _LogThreads(FollowingThreads):
    """A log, open in this process for reading."""

    def __init__(self, folder: Path, followers: int) -> None:
        self._log = Log(folder, read_only=True)
        super().__init__(self._log, followers)

    def close(self) -> None:
        super().close()
        self._log.close()


class _Background:
    """Work in a thread. Whoever has made everything ready calls `_start`."""

    def __init__(self, followers: int) -> None:
        self.seen = [array("q") for _ in range(followers)]
        self._resources = contextlib.ExitStack()
        self._failure: Exception | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  told to whoever joins
            self._failure = error
        finally:
            self._ready.set()

    def _work(self) -> None:
        """Follow to the end."""
        raise NotImplementedError

    def _stop(self) -> None:
        """Have `_work` return."""
        raise NotImplementedError

    def join(self) -> None:
        self._thread.join(_PATIENCE_S)
        is_late = self._thread.is_alive()
        self.close()
        if self._failure is not None:
            raise self._failure
        if is_late:
            raise TimeoutError(f"not everything was seen in {_PATIENCE_S:.0f} s")

    def close(self) -> None:
        if self._thread.is_alive():
            self._stop()
        self._thread.join()
        self._resources.close()


class _InLoop(_Background):
    """Tasks of an event loop in a thread of its own."""

    def _work(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.ensure_future(self._follow_all())
        await asyncio.sleep(_SETTLE_S)  # so that everybody waits
        self._ready.set()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _follow_all(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)


class _LogTasks(_InLoop):
    """A log, and tasks that each follow it."""

    def __init__(self, folder: Path, followers: int) -> None:
        super().__init__(followers)
        self._folder = folder
        self._start()

    async def _follow_all(self) -> None:
        async with aio.Log(self._folder, read_only=True) as log:
            await asyncio.gather(*(self._follow(log, seen) for seen in self.seen))

    async def _follow(self, log: aio.Log, seen: array[int]) -> None:
        # The log is empty by now, and a task that begins late misses nothing.
        async with log.read(follow=True) as reading:
            async for record in reading:
                if not _note(record.value or b"", seen):
                    return


# --- a queue --------------------------------------------------------------------------------


class _Consuming(_Background):
    """A consumer that waits for messages, and acknowledges them when it has seen how old they
    are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(1)
        self._consumer = self._resources.enter_context(open_queue(folder)).consumer
        self._stopped = threading.Event()
        self._start()

    def _work(self) -> None:
        self._ready.set()
        goes_on = True
        while goes_on and not self._stopped.is_set():
            for message in self._consumer.receive(100, wait=_LOOK_S):
                goes_on = _note(message.value, self.seen[0])
                message.ack()

    def _stop(self) -> None:
        self._stopped.set()


# --- a bare file ----------------------------------------------------------------------------


class _Tail:
    """Records of one size, as they come at the end of a file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._position = 0

    def read(self) -> list[bytes]:
        data = os.pread(self._fd, 1 << 16, self._position)
        whole = len(data) // VALUE_SIZE * VALUE_SIZE
        self._position += whole
        return [data[i : i + VALUE_SIZE] for i in range(0, whole, VALUE_SIZE)]

    def close(self) -> None:
        os.close(self._fd)


class _BareThreads(_Background):
    """One thread waits for the file to change. It follows alone, or hands each record on to the
    others, who each wait for it at a queue."""

    def __init__(self, path: Path, watched: Path, followers: int) -> None:
        super().__init__(followers)
        self._tail = self._resources.enter_context(contextlib.closing(_Tail(path)))
        self._inotify = self._resources.enter_context(contextlib.closing(BareInotify(watched)))
        self._mailboxes: list[queue.SimpleQueue[bytes]] = []
        if followers > 1:
            self._mailboxes = [queue.SimpleQueue() for _ in range(followers)]
        self._start()

    def _work(self) -> None:
        pairs = zip(self._mailboxes, self.seen, strict=False)
        others = [threading.Thread(target=_receive, args=pair) for pair in pairs]
        for thread in others:
            thread.start()
        self._ready.set()
        goes_on = True
        while goes_on and self._inotify.wait():
            for value in self._tail.read():
                goes_on = self._hand_on(value) if others else _note(value, self.seen[0])
        if goes_on:
            self._hand_on(STAMP.pack(END))
        for thread in others:
            thread.join()

    def _hand_on(self, value: bytes) -> bool:
        for mailbox in self._mailboxes:
            mailbox.put(value)
        return bool(STAMP.unpack_from(value)[0] != END)

    def _stop(self) -> None:
        self._inotify.stop()


def _receive(mailbox: queue.SimpleQueue[bytes], seen: array[int]) -> None:
    while _note(mailbox.get(), seen):
        continue


class _BareTasks(_InLoop):
    """The loop reads when the file has changed, and hands each record on to every task."""

    def __init__(self, path: Path, followers: int) -> None:
        super().__init__(followers)
        self._tail = self._resources.enter_context(contextlib.closing(_Tail(path)))
        self._inotify = self._resources.enter_context(contextlib.closing(BareInotify(path)))
        self._start()

    async def _follow_all(self) -> None:
        mailboxes: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in self.seen]

        def hand_on() -> None:
            self._inotify.read()
            for value in self._tail.read():
                for mailbox in mailboxes:
                    mailbox.put_nowait(value)

        async def receive(mailbox: asyncio.Queue[bytes], seen: array[int]) -> None:
            while _note(await mailbox.get(), seen):
                continue

        self._loop.add_reader(self._inotify.fd, hand_on)
        try:
            pairs = zip(mailboxes, self.seen, strict=True)
            await asyncio.gather(*(receive(*pair) for pair in pairs))
        finally:
            self._loop.remove_reader(self._inotify.fd)


# --- a peer ---------------------------------------------------------------------------------


class _Polling(_Background):
    """Nothing wakes whoever waits for a peer's records, so it looks every millisecond."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(1)
        session = peer_named(name).open(folder)
        self._resources.callback(session.close)
        assert session.poll is not None
        self._poll = session.poll
        self._stopped = threading.Event()
        self._start()

    def _work(self) -> None:
        self._ready.set()
        goes_on = True
        while goes_on and not self._stopped.wait(_POLL_S):
            for value in self._poll():
                goes_on = _note(value, self.seen[0])

    def _stop(self) -> None:
        self._stopped.set()
