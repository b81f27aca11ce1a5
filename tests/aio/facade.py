"""`tailrace.aio` for tests that know nothing of tasks: each verb is run to its end by a loop in a
thread of its own. So one suite holds for both sides.

What a test looks into that is not for tasks (settings of a log, the state of a group) it gets from
what the store, queue, consumer or message is a cover of.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tailrace import Outgoing, TailraceError, aio
from tailrace.aio.message import AutoExtend
from tailrace.aio.reading import Reading
from tailrace.aio.receiving import Receiver
from tailrace.queue.extending import AutoExtend as BlockingAutoExtend
from tailrace.queue.store import Store as BlockingStore
from tailrace.testing.faults import SimulatedCrash
from tests.log.helpers import WAIT

__all__ = ["Facade", "Loop", "Store"]


class Loop:
    """A loop that runs until it is closed."""

    def __init__(self) -> None:
        self.stores: weakref.WeakSet[aio.Store] = weakref.WeakSet()
        self.facades: weakref.WeakSet[Facade] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop of a test")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT)

    def close(self) -> None:
        """Also what a test has left open that killed a machine: its threads are still there. And
        nothing holds what was open, though pytest has the test's fixtures a little longer."""
        for store in list(self.stores):
            with suppress(TailraceError, OSError, SimulatedCrash):
                self.run(store.close())
        for each in list(self.facades):
            vars(each).clear()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class Facade:
    def __init__(self, inner: Any, loop: Loop) -> None:
        vars(self).update(_inner=inner, _loop=loop)
        loop.facades.add(self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """To `isinstance` it is what it stands for."""
        if isinstance(self._inner, AutoExtend):
            return BlockingAutoExtend
        return type(self._blocking)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._blocking, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._blocking, name)

    def __reduce__(self) -> Any:
        return self._inner.__reduce__()

    @property
    def _blocking(self) -> Any:
        """What does the work."""
        inner = self._inner
        if isinstance(inner, Receiver):
            return inner._joined()
        names = ("_store", "_queue", "_message")
        covered = (getattr(inner, name, None) for name in names)
        return next((each for each in covered if each is not None), inner)

    def __getattr__(self, name: str) -> Any:
        inner = self._inner
        if name.startswith("_") or not hasattr(inner, name):
            found = getattr(self._blocking, name)
            if not inspect.ismethod(found):
                return found
            return lambda *given: found(*_unwrap(given, "_blocking"))
        found = getattr(inner, name)
        if not callable(found):
            return self._wrap(found)
        if isinstance(inspect.getattr_static(type(self._blocking), name, None), property):
            return self._do(found)
        return lambda *given, **named: self._do(found, *given, **named)

    def _do(self, verb: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """In the loop, also what is no coroutine: it may want to know in which loop it is."""
        arguments = [_unwrap(each) for each in given]
        keywords = {name: _unwrap(each) for name, each in named.items()}

        async def do() -> Any:
            found = verb(*arguments, **keywords)
            if inspect.isawaitable(found) and not isinstance(found, asyncio.Future):
                found = await found
            return found

        return self._wrap(self._loop.run(do()))

    def _wrap(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._wrap(each) for each in found]
        if isinstance(found, Reading):
            self._begin(found)
            return self._each(found)
        if isinstance(found, AutoExtend):
            self._do(found._message._keep)  # tasks wait for the block to do so
        covers = (aio.Message, aio.Queue, aio.Stream, Receiver, AutoExtend)
        return Facade(found, self._loop) if isinstance(found, covers) else found

    def _begin(self, found: Any) -> None:
        """At once: if it cannot, the blocking side says so when it is asked to read."""
        self._loop.run(found.__aenter__())
        if found._portion.error is not None and not found._portion.items:
            self._do(found.__anext__)

    def _each(self, found: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._do(found.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            self._do(found.aclose)

    def __iter__(self) -> Facade:
        return self

    def __next__(self) -> Any:
        try:
            return self._do(self._inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __len__(self) -> int:
        if not hasattr(self._inner, "length"):
            raise TypeError(f"{self!r} has no length")
        return self._do(self._inner.length)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return not hasattr(self._inner, "length") or len(self) > 0

    def __enter__(self) -> Any:
        self._do(self._inner.__aenter__)
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._do(self._inner.__aexit__, *exception)

    def __repr__(self) -> str:
        return repr(self._inner)


def _unwrap(given: Any, part: str = "_inner") -> Any:
    if isinstance(given, Facade):
        return getattr(given, part)
    if type(given) in (list, tuple):
        return type(given)(_unwrap(each, part) for each in given)
    if inspect.isgenerator(given):
        return (_unwrap(each, part) for each in given)
    if isinstance(given, Outgoing):
        return replace(given, queue=_unwrap(given.queue, part))
    return given


class Store(Facade):
    """Opened when it is made, as the blocking one is."""

    loop: Loop  # where the stores of a test are

    def __init__(self, path: Any, **options: Any) -> None:
        super().__init__(aio.Store(path, **options), self.loop)
        self._do(self._inner.open)
        self._loop.stores.add(self._inner)
        self._blocking.bury = self._bury

    def _bury(self, *given: Any) -> Any:
        return self.bury(*given)

    def bury(self, *given: Any) -> Any:
        """Here, for tests that replace it for all stores."""
        return BlockingStore.bury(self._blocking, *given)
