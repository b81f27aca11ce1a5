"""What the tests of the board share; `disk` and `board` are fixtures of conftest."""

from __future__ import annotations

from tailrace.log.board import ATTENTION, Board, Note

__all__ = ["FOLDER", "NOTHING", "is_wanted"]

FOLDER = "log"
NOTHING = Note(0, 0, 0, 0)


def is_wanted(board: Board) -> bool:
    # A type checker would take what was so a moment ago for what is so now.
    return bool(board.memory[ATTENTION])
