"""The page of memory that writers share: what is on it, and when it is believed."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tailrace.kernel.layout import NOTE_PHASE
from tailrace.log.board import SIZE, Board, Note
from tailrace.log.fs import OsFileSystem
from tailrace.log.turn import FlushTurn
from tailrace.testing import SimulatedDisk
from tests.log.boards import FOLDER, NOTHING, is_wanted
from tests.log.conftest import OpenLog
from tests.log.helpers import WAIT, offsets, side_file
from tests.log.processes import another_process

# A type checker would take what was so a moment ago for what is so now.


def is_up(board: Board) -> bool:
    return board.edition() is not None


def put(
    board: Board, segment: int, size: int, end: int, start: int = 0, *, writing: bool = False
) -> None:
    board.notes.put(segment, size, end, start, 0, writing)


def test_what_is_put_up_is_seen_by_all(disk: SimulatedDisk, board: Board) -> None:
    other = Board(disk, FOLDER)
    reader = Board.find(disk, FOLDER)
    assert reader is not None
    for number in range(1, 10):
        note = Note(number // 4, number * 50, number, number // 3)
        put(board, *note)
        for seen in (board, other, reader):
            assert seen.peek() == seen.note() == note
            assert not seen.is_being_written


def test_a_writer_that_dies_leaves_the_note_before(disk: SimulatedDisk, board: Board) -> None:
    put(board, 0, 50, 1)
    board.begin()
    put(board, 0, 100, 2, writing=True)
    other = Board(disk, FOLDER)
    assert other.is_being_written
    assert other.note() == Note(0, 100, 2, 0)
    place = 64 if board.memory[NOTE_PHASE] & 1 else 128  # where the next one would go
    board.memory[place : place + 24] = b"\xff" * 24
    assert other.note() == other.peek() == Note(0, 100, 2, 0)
    put(other, 0, 150, 3)
    assert other.note() == other.peek() == Note(0, 150, 3, 0)
    assert not board.is_being_written


def test_a_note_that_is_being_changed(board: Board) -> None:
    put(board, 0, 50, 1)
    place = 128 if board.memory[NOTE_PHASE] & 1 else 64
    board.memory[place + 8] += 1
    assert board.peek() is None


# Two notes that somebody may put in one place, of which size and next offset differ in the same
# bits.
EARLIER = Note(182_000, 14_025_011, 182_143, 60_714)
LATER = Note(182_000, 14_025_165, 182_145, 60_715)


@pytest.mark.parametrize("cut", [8, 16, 24, 32])
@pytest.mark.parametrize("pair", [(EARLIER, LATER), (LATER, EARLIER)])
def test_a_note_that_is_half_the_next(cut: int, pair: tuple[Note, Note], board: Board) -> None:
    halves = []
    for note in pair:
        put(board, *note)
        put(board, *note)
        halves.append(bytes(board.memory[64:112]))
        assert halves[-1] == board.memory[128:176]
    mixed = halves[0][:cut] + halves[1][cut:]
    board.memory[64:112] = board.memory[128:176] = mixed
    assert mixed in halves or board.peek() is None


def test_each_setting_up_is_another_incarnation(disk: SimulatedDisk, board: Board) -> None:
    seen = [(board.incarnation, board.layout)]
    put(board, 7, 50, 8, 3)
    board.bump_layout()
    board.poison()
    board.keeper = 5
    assert (board.layout, board.keeper) == (seen[0][1] + 1, 5)
    other = Board(disk, FOLDER)
    other.set_up(Note(9, 0, 9, 3))
    seen.append((board.incarnation, board.layout))
    board.outdate()
    seen.append((board.incarnation, board.layout + 1))
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(seen))
    assert board.note() == Note(9, 0, 9, 3)
    assert board.is_being_written  # by whoever sets it up
    assert not board.poisoned
    assert not board.keeper


def test_who_waits_is_not_forgotten_when_it_is_set_up(board: Board) -> None:
    board.unwant()
    board.set_up(Note(9, 0, 9, 3))
    assert not is_wanted(board)
    board.want()
    board.set_up(Note(9, 0, 9, 3))
    assert is_wanted(board)


def test_a_flush_that_failed_stays_on_everybodys_mind(disk: SimulatedDisk, board: Board) -> None:
    flush_turn = FlushTurn(disk, FOLDER, board)
    flush_turn.incarnation = board.incarnation
    assert flush_turn.failure() is None
    board.want()
    board.unwant()
    assert not is_wanted(board)
    flush_turn.poison()
    board.unwant()
    assert board.poisoned
    assert is_wanted(board)
    assert "failed in another process" in str(flush_turn.failure())
    Board(disk, FOLDER).set_up(NOTHING)
    assert "has recovered the log since" in str(flush_turn.failure())


def test_when_it_is_believed(disk: SimulatedDisk) -> None:
    assert Board.find(disk, FOLDER) is None
    board = Board(disk, FOLDER)
    assert not is_up(board)
    board.set_up(NOTHING)
    other = Board.find(disk, FOLDER)
    assert other is not None
    assert is_up(other)
    board.take_down()
    assert not is_up(other)
    for position in (0, 4, 24):  # magic, format, boot
        board.set_up(NOTHING)
        assert is_up(other)
        board.memory[position] ^= 1
        assert not is_up(other)


class Rebooted(OsFileSystem):
    """The same files, in another boot."""

    def boot_id(self) -> bytes:
        return bytes(16)


def test_after_a_reboot_it_is_not_believed(path: Path, open_log: OpenLog) -> None:
    log = open_log(flush="async")
    log.append_one(b"x")
    reader = open_log(read_only=True, fs=Rebooted())
    assert offsets(reader.read()) == [0]
    found = Board.find(Rebooted(), str(path))
    assert found is not None
    assert not is_up(found)
    assert is_up(Board(OsFileSystem(), str(path)))
    for number in range(1, 30):
        log.append_one(b"x")
        assert reader.end_offset == number + 1


def test_who_only_reads_cannot_write_on_it(path: Path, open_log: OpenLog) -> None:
    open_log()
    board = Board.find(OsFileSystem(), str(path))
    assert board is not None
    assert len(board.memory) == SIZE
    with pytest.raises(TypeError):
        board.want()
    side_file(path, "board").rename(path / "moved")
    side_file(path, "board").write_bytes(bytes(SIZE - 1))
    assert Board.find(OsFileSystem(), str(path)) is None


PUBLISH = """
from tailrace.log.board import Board, Note
from tailrace.log.fs import OsFileSystem

board = Board(OsFileSystem(), path)
board.set_up(Note(0, 0, 0, 0))

def publish(number=0):
    while True:
        number += 1
        board.notes.put(number // 1000 * 1000, number * 77, number, number // 3, 0, False)

threading.Thread(target=publish, daemon=True).start()
"""


@pytest.mark.no_cover
def test_a_look_never_sees_two_notes_in_one(path: Path) -> None:
    (path / ".tailrace").mkdir(parents=True)
    with another_process(path) as other:
        assert other.ask(f"exec({PUBLISH!r})") == "None"
        board = Board(OsFileSystem(), str(path))
        last, different, failed = 0, 0, 0
        deadline = time.monotonic() + WAIT
        while different < 20_000 and time.monotonic() < deadline:
            note = board.peek()
            if note is None:
                failed += 1
                continue
            number = note.next_offset
            assert note == (number // 1000 * 1000, number * 77, number, number // 3)
            assert number >= last
            different += number != last
            last = number
        assert different > 1_000
        assert failed < different
        board.close()
