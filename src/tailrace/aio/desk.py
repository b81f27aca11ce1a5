"""Where tasks settle messages: in threads, and together.

To ack one message takes a change of thread, a write, and in a queue whose flush mode is `sync` an
fdatasync. Acks that come while others are under way wait, and all who wait go in one step. So a
hundred tasks that ack a message each pay for two or three of these, not for a hundred.

Leases are extended beside all that: whoever keeps a message waits for no disk, nor for what others
do with theirs.

Whoever settles a message and is cancelled meanwhile has settled it all the same: otherwise nobody
would get the message before its lease ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from tailrace.aio.worker import LINGER_S, Crew, Worker, finish
from tailrace.errors import LeaseLost
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.message import Message

__all__ = ["Desk"]

T = TypeVar("T")

_Settle = Callable[[list[Message]], None]


class _Slip:
    """What one task wants settled, and what came of it."""

    __slots__ = ("error", "is_done", "messages")

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.error: BaseException | None = None
        self.is_done = False


class Desk:
    """Settles the messages of a group, or of one consumer of a stream. Thread-safe; tasks of any
    loop may come."""

    def __init__(self, name: str, group: ClassicGroup | None) -> None:
        """`group` is none for a stream, where each message knows what to do."""
        self.group = group
        self._worker = Worker(f"{name} desk", linger_s=LINGER_S)
        self._extender = Worker(f"{name} leases", linger_s=LINGER_S)
        self._crew = Crew(f"{name} desk")
        self._acks: deque[_Slip] = deque()
        self._releases: deque[_Slip] = deque()
        self._ack: _Settle = _checkpoint if group is None else group.ack
        self._release: _Settle = _release_each if group is None else group.release

    @property
    def is_stream(self) -> bool:
        return self.group is None

    async def ack(self, messages: list[Message]) -> None:
        await self._together(self._acks, self._ack, messages)

    async def release(self, messages: list[Message]) -> None:
        await self._together(self._releases, self._release, messages)

    async def beside(self, job: Callable[[], T]) -> T:
        """Have something done on its own: it takes long, or is rare."""
        return await finish(self._crew.do(job))

    async def extend(self, job: Callable[[], object]) -> None:
        """Have leases extended."""
        await finish(self._extender.do(job))

    async def keep(self, message: Message) -> float | None:
        """Extend its lease, unless it lasts longer anyway; for how many seconds it lasts now.
        `None` in a stream, where nobody has a lease."""
        if self.group is None:
            return None
        return await finish(self._extender.do(partial(self.group.keep, message)))

    async def drain(self) -> None:
        """Return when what was asked for is done."""
        await asyncio.gather(self._worker.drain(), self._extender.drain(), self._crew.drain())

    def let_go(self) -> None:
        """Nobody comes any more, or hardly anybody."""
        self._worker.let_go()
        self._extender.let_go()
        self._crew.let_go()

    def __del__(self) -> None:
        if hasattr(self, "_crew"):
            self.let_go()

    async def _together(
        self, waiting: deque[_Slip], settle: _Settle, messages: list[Message]
    ) -> None:
        slip = _Slip(messages)
        waiting.append(slip)
        try:
            done = self._worker.do(partial(_work, waiting, settle, slip))
        except BaseException:  # there can be no thread
            waiting.remove(slip)
            raise
        await finish(done)


# --- in the thread --------------------------------------------------------------------------


def _work(waiting: deque[_Slip], settle: _Settle, slip: _Slip) -> None:
    """Settle all who wait, unless somebody has, and tell what came of this one."""
    if not slip.is_done:
        _settle_all([waiting.popleft() for _ in range(len(waiting))], settle)
    error, slip.error = slip.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error, slip  # it must not be found in the frames that it came through


def _settle_all(slips: list[_Slip], settle: _Settle) -> None:
    """In one step, but for a message that is here twice: the second time is too late."""
    together: list[_Slip] = []
    apart: list[_Slip] = []
    messages: list[Message] = []
    offsets: set[int] = set()
    for slip in slips:
        own = {message.offset for message in slip.messages}
        if offsets.isdisjoint(own):
            offsets |= own
            messages += slip.messages
            together.append(slip)
        else:
            apart.append(slip)
    try:
        settle(messages)
    except LeaseLost as error:
        if len(together) == 1:
            together[0].error = error
        else:
            _tell_losers(together, set(error.lost), settle)
    except BaseException as error:  # noqa: BLE001  whatever it is, the tasks are told
        for slip in together:
            slip.error = error
    for slip in apart:
        _settle_all([slip], settle)
    for slip in slips:
        slip.is_done = True


def _tell_losers(slips: Iterable[_Slip], lost: set[str], settle: _Settle) -> None:
    """The others are settled. To try once more with what a task has lost gives the error that it
    would have got alone."""
    for slip in slips:
        losses = [message for message in slip.messages if message.message_id in lost]
        if losses:
            try:
                settle(losses)
            except BaseException as error:  # noqa: BLE001
                slip.error = error


def _checkpoint(messages: list[Message]) -> None:
    """To ack a message of a stream acks those before it, but for such as are from before the group
    was sent elsewhere."""
    last: dict[Any, Message] = {}
    for message in messages:
        other = last.get(message.epoch)
        if other is None or message.offset > other.offset:
            last[message.epoch] = message
    for message in last.values():
        message.ack()


def _release_each(messages: list[Message]) -> None:
    for message in messages:
        message.release()
