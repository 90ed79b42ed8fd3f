"""The ties of a service to systemd: the socket that it is given, and the readiness and signs of life that it tells.

Source: the manual pages sd_listen_fds(3), sd_notify(3) and sd_watchdog_enabled(3).
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
from collections.abc import MutableMapping

from edgedec.errors import UsageError

__all__ = ["Notifier", "passed_socket"]

_LOG = logging.getLogger(__name__)
_FIRST_DESCRIPTOR = 3
_MOST_SOCKETS = 1024  # passed sockets that are looked at, to name them
_SEND_S = 1.0  # seconds for which systemd may leave a message unread
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Environment = MutableMapping[str, str]


def passed_socket(environment: Environment = os.environ) -> socket.socket | None:
    """Return the listening socket that systemd passed to this process; None if it passed none.

    The variables are removed, so that no process that this one starts takes the socket for its own. If they name another
    process, as they do in a program that was started by a service, nothing was passed.

    Raises:
        UsageError: there are several sockets, or one that does not listen at an address and a port.
    """
    owner, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if owner != str(os.getpid()):
        return None
    number = _number("LISTEN_FDS", count, least=0)
    descriptors = range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + min(number, _MOST_SOCKETS))
    if not descriptors:
        return None
    if number > 1:
        names = ", ".join(_described(descriptor) for descriptor in descriptors[:4])
        raise UsageError(
            f"systemd passed {number} sockets ({names}{', ...' if number > 4 else ''}), and edgedec serve takes one; leave "
            "one ListenStream= in the .socket unit"
        )
    return _opened(descriptors[0])


def _opened(descriptor: int) -> socket.socket:
    fault = f"systemd passed {_described(descriptor)}"
    advice = "; give the .socket unit ListenStream= with a port, or an address and a port, and leave Accept= out"
    if not _is_socket(descriptor):
        raise UsageError(fault + advice)
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    is_address = sock.family in (socket.AF_INET, socket.AF_INET6)
    listens = sock.type == socket.SOCK_STREAM and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if not is_address or not listens:
        sock.close()
        raise UsageError(f"{fault}, which {'does not listen' if is_address else 'has no port'}{advice}")
    return sock


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _described(descriptor: int) -> str:
    """Return words for what a descriptor is."""
    if not _is_socket(descriptor):
        return f"file descriptor {descriptor}, which is no socket"
    borrowed = socket.socket(fileno=descriptor)
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
            return f"a socket of family {socket.AddressFamily(borrowed.family).name}"
        host, port, *_ = borrowed.getsockname()
        return f"{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        borrowed.detach()


class Notifier:
    """Tells systemd about the state of this process. Without a receiver, telling does nothing.

    Parameters:
        address: path of the receiving socket, or ``@`` and an abstract name; None: nobody listens.
        watchdog_s: seconds within which systemd expects a sign of life; None: it expects none.

    Raises:
        UsageError: the address is neither.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        if address is not None and (address[:1] not in ("/", "@") or len(address) < 2):
            raise UsageError(
                f"NOTIFY_SOCKET must be an absolute path, or @ and a name, not {address!r}; run edgedec as a unit with "
                "Type=notify, or unset the variable"
            )
        self._address, self.watchdog_s = address, watchdog_s

    @classmethod
    def of_environment(cls, environment: Environment = os.environ) -> Notifier:
        """Return what systemd's variables ask for, and remove them: processes that this one starts are not the service.

        Raises:
            UsageError: a variable has no sense.
        """
        address = environment.pop("NOTIFY_SOCKET", None) or None
        limit, owner = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        if not limit or owner not in ("", str(os.getpid())):
            return cls(address)
        return cls(address, _number("WATCHDOG_USEC", limit, least=1) / 1e6)

    def tell(self, *states: str, status: str | None = None) -> None:
        """Send states, such as ``READY=1``, and a line for ``systemctl status``. A failure is logged."""
        if self._address is None:
            return
        lines = [*states, *([] if status is None else [f"STATUS={_CONTROL.sub(' ', status)}"])]
        name = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(_SEND_S)
                sock.sendto("\n".join(lines).encode("utf-8", "replace"), name)
        except OSError as error:
            _LOG.warning("systemd was not told %s: %s", ", ".join(states) or "the status", error)


def _number(name: str, text: str, *, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
        raise UsageError(
            f"{name} must be a number from {least} on, not {text[:40]!r}; it is set by systemd, so unset it"
        )
    return int(text)
