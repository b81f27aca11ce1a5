"""Notes: what processes tell each other in shared memory, on both implementations."""

from __future__ import annotations

import mmap
import os
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel.layout import NOTE_PHASE, NOTE_PLACES, NOTE_WRITING, note_check
from tests.kernel.twins import Twin

NUMBERS = st.integers(0, 2**64 - 1)


def page() -> memoryview:
    return memoryview(bytearray(4096))


def counting(memory: memoryview) -> tuple[int, ...]:
    """The note that counts, with its check."""
    return struct.unpack_from("=QQQQQQ", memory, NOTE_PLACES[memory[NOTE_PHASE] & 1])


def test_nobody_has_put_up_a_note(kernel: Twin) -> None:
    memory = page()
    assert not kernel.Notes(memory).enter()
    assert not any(memory)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_what_is_put_up_counts(
    kernel: Twin, given_notes: list[tuple[int, int, int, int, int]]
) -> None:
    memory = page()
    notes = kernel.Notes(memory)
    for note in given_notes:
        before = memory[NOTE_PHASE] & 1
        notes.put(*note, False)
        assert memory[NOTE_PHASE] == 1 - before, "the note that counted was written over"
        assert counting(memory) == (*note, note_check(note))
        assert notes.enter()
        assert memory[NOTE_PHASE] == NOTE_WRITING | (1 - before)
        assert not notes.enter(), "somebody writes"


def test_whoever_was_here_in_between_is_noticed(kernel: Twin) -> None:
    memory = page()
    mine, yours = kernel.Notes(memory), kernel.Notes(memory)
    mine.put(1, 2, 3, 4, 5, False)
    assert not yours.enter(), "it is not the one that we put up"
    yours.put(1, 5, 6, 4, 5, False)
    assert not mine.enter()
    assert yours.enter()


def test_going_on_where_somebody_else_left_off(kernel: Twin) -> None:
    memory = page()
    mine, yours = kernel.Notes(memory), kernel.Notes(memory)
    mine.put(1, 2, 3, 4, 2**64 - 1, False)
    assert yours.adopt() == (1, 2, 3, 4, 2**64 - 1)
    assert memory[NOTE_PHASE] & NOTE_WRITING
    assert mine.adopt() is None, "somebody writes"
    yours.put(1, 5, 6, 4, 5, False)
    assert mine.adopt() == (1, 5, 6, 4, 5)


def test_lingering_while_somebody_writes(kernel: Twin) -> None:
    memory = page()
    notes = kernel.Notes(memory)
    assert notes.linger(10)
    notes.put(1, 2, 3, 4, 5, True)
    assert not notes.linger(10)
    notes.put(1, 2, 3, 4, 5, False)
    assert notes.linger(0)


def test_lingering_until_somebody_has_written(kernel: Twin) -> None:
    memory = memoryview(mmap.mmap(-1, 4096))
    notes = kernel.Notes(memory)
    notes.put(1, 2, 3, 4, 5, True)
    child = os.fork()
    if not child:
        time.sleep(0.05)
        kernel.Notes(memory).put(1, 2, 3, 4, 5, False)
        os._exit(0)
    is_free = notes.linger(10_000_000)
    os.waitpid(child, 0)
    assert is_free


def test_going_on(kernel: Twin) -> None:
    memory = page()
    notes = kernel.Notes(memory)
    notes.put(1, 2, 3, 4, 5, True)
    assert memory[NOTE_PHASE] & NOTE_WRITING
    assert not kernel.Notes(memory).enter()


@given(st.data())
def test_a_part_of_a_note_does_not_pass_the_check(data: st.DataObject) -> None:
    """Whoever looks while a note is being written over sees some old numbers and some new."""
    small = st.integers(0, 2**32)
    old = data.draw(st.tuples(small, small, small, small, small))
    new = data.draw(st.tuples(small, small, small, small, small))
    notes = [(*numbers, note_check(numbers)) for numbers in (old, new)]
    which = data.draw(st.tuples(*[st.integers(0, 1)] * 6))
    mixed = tuple(notes[k][i] for i, k in enumerate(which))
    assert (mixed[5] == note_check(mixed[:5])) == (mixed in notes)


def test_both_twins_read_each_others_notes(twins: tuple[Twin, Twin]) -> None:
    images = []
    for twin in twins:
        memory = page()
        notes = twin.Notes(memory)
        notes.put(2**64 - 1, 0, 1 << 40, 7, 0, False)
        notes.put(1, 2, 3, 2**63, 9, True)
        images.append(bytes(memory))
    assert images[0] == images[1]


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_that_do_not_fit(kernel: Twin, number: int) -> None:
    memory = page()
    notes = kernel.Notes(memory)
    notes.put(1, 2, 3, 4, 5, False)
    with pytest.raises((OverflowError, struct.error)):
        notes.put(1, number, 3, 4, 5, False)
    assert counting(memory)[:5] == (1, 2, 3, 4, 5)
    assert notes.enter()


@pytest.mark.parametrize("memory", [memoryview(bytes(4096)), memoryview(bytearray(100))])
def test_memory_that_will_not_do(kernel: Twin, memory: memoryview) -> None:
    with pytest.raises(ValueError, match="notes need memory"):
        kernel.Notes(memory)


def test_the_memory_is_free_after_close(kernel: Twin) -> None:
    shared = mmap.mmap(-1, 4096)
    memory = memoryview(shared)
    notes = kernel.Notes(memory)
    notes.put(1, 2, 3, 4, 5, False)
    notes.close()
    notes.close()
    uses = [
        notes.enter,
        notes.adopt,
        lambda: notes.linger(1),
        lambda: notes.put(1, 2, 3, 4, 5, False),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"closed|released"):
            use()
    memory.release()
    shared.close()  # raises if anybody still looks at it
