"""Whether a master of Spark can be reached: by itself Spark tries for a minute, and then says that
a context was stopped."""

from __future__ import annotations

import re
import socket
from typing import Final

from tailrace.errors import TailraceError

__all__ = ["check_reachable"]

_SCHEME: Final = "spark://"
_PATIENCE_S: Final = 3.0  # for each address
_ADDRESS: Final = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+)):(\d{1,5})")


def check_reachable(master: str) -> None:
    """Refuse a cluster of which no master can be reached: `spark://HOST:PORT[,HOST:PORT…]`. What
    other masters are, and what is wrong with a name, is for Spark to tell."""
    if not master.startswith(_SCHEME):
        return
    said = []
    for address in master.removeprefix(_SCHEME).split(","):
        found = _ADDRESS.fullmatch(address.strip())
        if found is None or int(found[3]) > 65_535:
            return
        try:
            place = (found[1] or found[2], int(found[3]))
            socket.create_connection(place, _PATIENCE_S).close()
        except (OSError, UnicodeError) as error:  # such as that a label of a name is too long
            said.append(f"{address.strip()}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise TailraceError(
        f"no Spark master can be reached ({'; '.join(said)}); start it, or name another one"
    )
