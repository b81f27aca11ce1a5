"""Leases: what is known of a message that a group has claimed, or put aside."""

from __future__ import annotations

from typing import Any

__all__ = ["CLAIMED", "DYING", "FREE", "LEASED", "PARKED", "STATES", "WAITING", "Lease"]

CLAIMED, LEASED, WAITING, FREE, PARKED, DYING = range(1, 7)
STATES = {
    CLAIMED: "claimed",
    LEASED: "leased",
    WAITING: "waiting",
    FREE: "free",
    PARKED: "parked",
    DYING: "dying",
}


class Lease:
    """What is known of a pending message. Never changed once made: messages that were claimed
    together share one."""

    __slots__ = ("attempt", "count", "error", "holder", "state", "strikes", "until")

    def __init__(
        self,
        state: int,
        until: int,
        holder: str,
        attempt: int = 1,
        count: int = 0,
        strikes: int = 0,
        error: str = "",
    ) -> None:
        self.state = state
        self.until = until  # by the boot clock, in milliseconds
        self.holder = holder
        self.attempt = attempt
        self.count = count  # how often it was handed to a caller
        self.strikes = strikes  # how often a caller kept it for too long, or died with it
        self.error = error

    def is_due(self, now_ms: int) -> bool:
        """May it be claimed, as far as it is about time?"""
        return self.state == FREE or (self.state != PARKED and self.until <= now_ms)

    @property
    def is_suspect(self) -> bool:
        """Of one that is due: did a caller die with it, or keep it for too long?"""
        return self.strikes > 0 or self.state == LEASED

    def is_spent(self, max_retries: int | None) -> bool:
        """Does nobody get it again, because it is dying, or was delivered as often as it may be?"""
        is_over = max_retries is not None and self.count > max_retries
        return is_over or self.state == DYING

    def dump(self) -> dict[str, Any]:
        """As an entry of a snapshot."""
        entry: dict[str, Any] = {"c": self.holder, "n": self.count}
        entry |= {"s": self.state, "a": self.attempt}
        if self.until:
            entry["u"] = self.until
        if self.strikes:
            entry["k"] = self.strikes
        if self.error:
            entry["e"] = self.error
        return entry

    @classmethod
    def load(cls, entry: dict[str, Any]) -> Lease:
        return cls(
            entry.get("s", FREE),
            entry.get("u", 0),
            entry["c"],
            entry.get("a", 1),
            entry["n"],
            entry.get("k", 0),
            entry.get("e", ""),
        )

    def __repr__(self) -> str:
        return (
            f"Lease({STATES[self.state]}, until={self.until}, holder={self.holder!r}, "
            f"attempt={self.attempt}, count={self.count}, error={self.error!r})"
        )
