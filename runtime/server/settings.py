"""The settings of the server: its name for the model, its limits, and who may talk to it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from edgedec.errors import UsageError
from edgedec.runtime.sampling import SamplingConfig

__all__ = ["ServerSettings", "is_loopback"]

_LEAST_BODY_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server.

    Members:
        model_name: the model's name in answers and in the list of models.
        host: address that the server listens on.
        api_keys: keys of which a request must have one; empty: no key is asked for.
        allowed_hosts: further names that a ``Host`` header may have.
        cors_origins: origins whose pages may use the server; ``*`` allows all of them.
        body_bytes: maximum size of a request's body in bytes.
        body_seconds: seconds in which a body must arrive.
        requests: maximum number of requests at the same time, those that wait included.
        connections: maximum number of connections at the same time.
        head_seconds: seconds in which the head of a request must arrive.
        stall_seconds: seconds for which a client may leave an answer unread.
        ping_seconds: seconds without an event after which a stream sends a comment.
        sampling: sampling options that a request does not set.
        n_predict: maximum number of tokens for a request that does not set it; -1: until the context is full.
        shows_slots, shows_metrics, has_page: answer ``/slots``, ``/metrics`` and the page for chats.

    Raises:
        UsageError: a value is out of range, or the settings would open the server to strangers.
    """

    model_name: str
    host: str = "127.0.0.1"
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    body_bytes: int = 1 << 20
    body_seconds: float = 30.0
    requests: int = 256
    connections: int = 1024
    head_seconds: float = 30.0
    stall_seconds: float = 60.0
    ping_seconds: float = 10.0
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    n_predict: int = -1
    shows_slots: bool = True
    shows_metrics: bool = True
    has_page: bool = True

    def __post_init__(self) -> None:
        if self.body_bytes < _LEAST_BODY_BYTES:
            raise UsageError(f"--max-body must be at least {_LEAST_BODY_BYTES} bytes, not {self.body_bytes}")
        for key in self.api_keys:
            if not key or not all("!" <= character <= "~" for character in key):
                raise UsageError("an API key must be a word of printable ASCII characters without spaces")
        for name in self.allowed_hosts:
            if not name or any(character in name for character in "/*@ ") or name.count(":") == 1:
                raise UsageError(f"--allowed-host must be a host name or an address without a port, not {name!r}")
        for origin in self.cors_origins:
            _check_origin(origin)
        if self.api_keys:
            return
        if not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host} can be reached from other machines, and no API key is set; give --api-key-file "
                "FILE, or leave --host at 127.0.0.1"
            )
        if "*" in self.cors_origins:
            raise UsageError(
                "--cors-origin '*' lets every web page use the server, and no API key is set; name the origins, or give "
                "--api-key-file FILE"
            )


def _check_origin(origin: str) -> None:
    if origin == "*":
        return
    try:
        parts = urlsplit(origin)
        whole = f"{parts.scheme}://{parts.netloc}"
        valid = bool(parts.scheme and parts.hostname and "@" not in parts.netloc and whole == origin)
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"--cors-origin must be an origin as browsers write it, such as https://example.org or "
            f"http://localhost:3000, not {origin!r}"
        )


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach an address. A name other than ``localhost`` is not looked up."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
