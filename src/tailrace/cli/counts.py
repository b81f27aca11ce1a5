"""How many: the numbers that commands are given for what they show, or stop after."""

from __future__ import annotations

import sys
from typing import Any

import click

__all__ = ["Count"]


class Count(click.IntRange):
    """More than this machine counts to is as many as there are."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return min(int(super().convert(value, param, ctx)), sys.maxsize)
