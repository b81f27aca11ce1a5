"""What tailrace is compared with: each peer used as its documentation says, in the same folder."""

from bench.peers.base import Peer, Session
from bench.peers.embedded import embedded_peers
from bench.peers.servers import Servers, server_peers

__all__ = ["Peer", "Servers", "Session", "known_peers"]


def known_peers(servers: Servers) -> list[Peer]:
    """Those that are installed."""
    return [*embedded_peers(), *server_peers(servers)]
