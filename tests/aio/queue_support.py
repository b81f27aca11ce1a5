"""One way to write a test of queues for both APIs: the blocking one is presented as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import tailrace
from tailrace import aio

__all__ = ["APIS", "Api", "offsets", "settle", "values"]

# Properties of the blocking API that have to be awaited: they look at files.
_ASKED = {"committed", "properties", "settings"}
# What is made when it is awaited, entered or iterated.
_LATER = {"auto_extend", "consume", "consumer", "read"}
_WRAPPED = (
    tailrace.Consumer,
    tailrace.Message,
    tailrace.Queue,
    tailrace.Store,
    tailrace.Stream,
    tailrace.StreamConsumer,
)


class Api(Protocol):
    """What a test gets: `async with api.open(path) as store:`."""

    def open(self, path: Path, **options: Any) -> Any: ...


class Asyncio:
    def open(self, path: Path, **options: Any) -> Any:
        return aio.open(path, **options)


class Blocking:
    def open(self, path: Path, **options: Any) -> Any:
        return _Later(partial(tailrace.open, path, **options))


APIS: dict[str, Api] = {"blocking": Blocking(), "asyncio": Asyncio()}


def _wrap(found: Any) -> Any:
    if isinstance(found, _WRAPPED):
        return _Awaited(found)
    return [_wrap(each) for each in found] if type(found) is list else found


def _unwrap(given: Any) -> Any:
    if isinstance(given, _Awaited):
        return given._inner
    if type(given) in (list, tuple):
        return type(given)(_unwrap(each) for each in given)
    return given


class _Awaited:
    """A blocking object whose verbs are coroutines, each of which works in a thread."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        if isinstance(inner, tailrace.StreamConsumer):  # which belongs to one thread
            self._receiver = ThreadPoolExecutor(1)

    def __getattr__(self, name: str) -> Any:
        if name == "receive" and isinstance(self._inner, tailrace.StreamConsumer):
            return partial(self._receive, self._inner.receive)
        if name == "length":
            return partial(self._call, self._inner.__len__)
        if name in _ASKED:
            return partial(self._call, partial(getattr, self._inner, name))
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        if name in _LATER and not isinstance(self._inner, tailrace.Store):
            return lambda *a, **kw: _Later(partial(found, *_unwrap(a), **kw))
        return partial(self._call, found)

    async def _call(self, verb: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        options = {name: _unwrap(value) for name, value in options.items()}
        return _wrap(await asyncio.to_thread(verb, *_unwrap(arguments), **options))

    async def _receive(self, receive: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        run = asyncio.get_running_loop().run_in_executor
        return _wrap(await run(self._receiver, partial(receive, *arguments, **options)))

    def __repr__(self) -> str:
        return repr(self._inner)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if isinstance(self._inner, tailrace.StreamConsumer):
            found = await self._receive(next, self._inner, self)
        else:
            found = await asyncio.to_thread(next, self._inner, self)
        if found is self:
            raise StopAsyncIteration
        return _wrap(found)

    async def __aenter__(self) -> Any:
        await asyncio.to_thread(self._inner.__enter__)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._inner.__exit__, kind, error, traceback)


class _Later:
    """What comes when it is awaited, entered or iterated."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: _Awaited | None = None

    async def _get(self) -> _Awaited:
        if self._made is None:
            self._made = _Awaited(await asyncio.to_thread(self._make))
        return self._made

    def __await__(self) -> Generator[Any, None, _Awaited]:
        return self._get().__await__()

    async def __aenter__(self) -> Any:
        return await (await self._get()).__aenter__()

    async def __aexit__(self, *exception: Any) -> None:
        await (await self._get()).__aexit__(*exception)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await (await self._get()).__anext__()


def values(messages: Iterable[Any]) -> list[bytes | None]:
    return [message.value for message in messages]


def offsets(messages: Iterable[Any]) -> list[int]:
    return [message.offset for message in messages]


async def settle(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """All at once."""
    return list(await asyncio.gather(*work))
