"""`tailrace.aio` for tests that know nothing of tasks: each verb is run to its end by a loop in a
thread of its own. So one suite holds for both sides.

What a test looks into that is not for tasks (settings of a log, the state of a group) it gets from
what the store, queue, consumer or message is a cover of.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tailrace import aio
from tailrace.aio.message import AutoExtend
from tailrace.aio.reading import Reading
from tailrace.aio.receiving import Receiver
from tests.log.helpers import WAIT

__all__ = ["Facade", "Loop", "Store"]


class Loop:
    """A loop that runs until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop of a test")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT)
        self._loop.close()


class Facade:
    def __init__(self, inner: Any, loop: Loop) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def _blocking(self) -> Any:
        """What does the work."""
        inner = self._inner
        if isinstance(inner, Receiver):
            return inner._joined()
        for name in ("_store", "_queue", "_message"):
            if getattr(inner, name, None) is not None:
                return getattr(inner, name)
        raise AttributeError(f"{inner!r} covers nothing")

    def __getattr__(self, name: str) -> Any:
        inner = self._inner
        if name.startswith("_") or not hasattr(inner, name):
            return getattr(self._blocking, name)
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
            return self._each(found)
        covers = (aio.Message, aio.Queue, aio.Stream, Receiver, AutoExtend)
        return Facade(found, self._loop) if isinstance(found, covers) else found

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
        return self._do(self._inner.length)  # type: ignore[no-any-return]

    def __enter__(self) -> Any:
        self._do(self._inner.__aenter__)
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._do(self._inner.__aexit__, *exception)

    def __repr__(self) -> str:
        return repr(self._inner)


def _unwrap(given: Any) -> Any:
    if isinstance(given, Facade):
        return given._inner
    if isinstance(given, (list, tuple)):
        return type(given)(map(_unwrap, given))
    return given


class Store(Facade):
    """Opened when it is made, as the blocking one is."""

    loop: Loop  # where the stores of a test are

    def __init__(self, path: Any, **options: Any) -> None:
        super().__init__(aio.Store(path, **options), self.loop)
        self._do(self._inner.open)
