"""The sockets that a server listens on. They need no package of the server, so that a port in use is found at once."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from edgedec.errors import DeviceError

__all__ = ["BACKLOG", "listen", "listen_all"]

# Connections that the system holds before they are accepted, if its own limit (somaxconn) allows so many. It leaves out
# those that come when there are more, and their clients wait a second before they try again.
BACKLOG = 2048


def listen(host: str, port: int, *, beside: bool = False) -> socket.socket:
    """Return a socket that listens. Port 0 chooses a free one.

    Parameters:
        host: an address.
        port: the port.
        beside: True if another socket has the port of another address. ``::`` then leaves out addresses of IPv4.

    Raises:
        DeviceError: the address is in use, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = "127.0.0.1" if host == "localhost" else host
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if beside and family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or error
        raise DeviceError(f"--host {host} --port {port}: {reason}; choose another address or port") from error
    return sock


def listen_all(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Return a socket for each address, all with one port. Port 0 chooses one that is free for the first of them.

    Raises:
        DeviceError: as ``listen``; no socket is left open then.
    """
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            sockets.append(listen(address, port, beside=len(addresses) > 1))
            port = sockets[0].getsockname()[1]
    except DeviceError:
        for sock in sockets:
            sock.close()
        raise
    return sockets
