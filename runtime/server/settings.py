"""The settings of the server: its name for the model, its limits, and who may talk to it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from edgedec.errors import UsageError
from edgedec.runtime.pooling import POOLINGS, Pooling
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server.reasoning import ReasoningSettings

__all__ = ["LOCAL_ORIGINS", "ServerSettings", "is_local_origin", "is_loopback"]

LOCAL_ORIGINS = "localhost"  # stands for all origins of this machine
_LEAST_BODY_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server.

    Members:
        model_name: the model's name in answers and in the list of models.
        host: address that the server listens on, or several, with commas between them.
        api_keys: keys of which a request must have one; empty: no key is asked for.
        allowed_hosts: further names that a ``Host`` header may have.
        cors_origins: origins whose pages may use the server; ``localhost`` allows those of this machine, on any port, and
            ``*`` allows all of them.
        body_bytes: maximum size of a request's body in bytes.
        body_seconds: seconds in which a body must arrive; fewer while many are on their way.
        requests: maximum number of requests at the same time, those that wait included.
        inspections: maximum number of requests without a body at the same time, which have places of their own.
        connections: maximum number of connections at the same time.
        head_seconds: seconds in which the head of a request must arrive.
        stall_seconds: seconds for which a client may leave an answer unread.
        ping_seconds: seconds without an event after which a stream sends a comment.
        sampling: sampling options that a request does not set.
        n_predict: maximum number of tokens for a request that does not set it; -1: until the context is full.
        shows_slots, shows_metrics, has_page: answer ``/slots``, ``/metrics`` and the page for chats.
        sanitize: control tokens in messages are text; False: only those in results of tools are.
        reasoning: settings of the reasoning in chats.
        pooling: kind of embeddings: the mean of the rows of a text, or the last row.
        web: folder of a site that is served at ``/web/``; None: there is none.
        about: description of the model that ends a sentence; empty: not known.
        examples: first messages that it can answer.

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
    inspections: int = 64
    connections: int = 320
    head_seconds: float = 30.0
    stall_seconds: float = 60.0
    ping_seconds: float = 10.0
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    n_predict: int = -1
    shows_slots: bool = True
    shows_metrics: bool = True
    has_page: bool = True
    sanitize: bool = True
    reasoning: ReasoningSettings = field(default_factory=ReasoningSettings)
    pooling: Pooling = "mean"
    web: Path | None = None
    about: str = ""
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(self.addresses):
            raise UsageError(f"--host must be an address, or several with commas between them, not {self.host!r}")
        if self.body_bytes < _LEAST_BODY_BYTES:
            raise UsageError(f"--max-body must be at least {_LEAST_BODY_BYTES} bytes, not {self.body_bytes}")
        if self.pooling not in POOLINGS:
            raise UsageError(f"--pooling must be {' or '.join(POOLINGS)}, not {self.pooling!r}")
        for key in self.api_keys:
            if not key or not all("!" <= character <= "~" for character in key):
                raise UsageError("an API key must be a word of printable ASCII characters without spaces")
        for name in self.allowed_hosts:
            if not name or any(character in name for character in "/*@ ") or name.count(":") == 1:
                raise UsageError(f"--allowed-host must be a host name or an address without a port, not {name!r}")
        for origin in self.cors_origins:
            _check_origin(origin)
        if self.web is not None and self.api_keys:
            raise UsageError(
                "--web lets a browser fetch the weights without an API key, and a key is set; serve the folder by another "
                "server, or leave out --web or the key"
            )
        if self.api_keys:
            return
        if not all(map(is_loopback, self.addresses)):
            raise UsageError(
                f"--host {self.host} can be reached from other machines, and no API key is set; give --api-key-file "
                "FILE, or leave --host at 127.0.0.1"
            )
        if "*" in self.cors_origins:
            raise UsageError(
                "--cors-origin '*' lets every web page use the server, and no API key is set; name the origins, or give "
                "--api-key-file FILE"
            )

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that the server listens on."""
        return tuple(address.strip() for address in self.host.split(","))


def _check_origin(origin: str) -> None:
    if origin not in ("*", LOCAL_ORIGINS) and _origin_host(origin) is None:
        raise UsageError(
            f"--cors-origin must be an origin as browsers write it, such as https://example.org or "
            f"http://localhost:3000, or localhost for all ports of this machine, not {origin!r}"
        )


def _origin_host(origin: str) -> str | None:
    """Return the host of an origin; None if a browser would not write it so."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    whole = f"{parts.scheme}://{parts.netloc}"
    return parts.hostname if parts.scheme and "@" not in parts.netloc and whole == origin else None


def is_local_origin(origin: str) -> bool:
    """Return True if an origin is that of pages of this machine, on any port."""
    host = _origin_host(origin)
    return host is not None and origin.startswith(("http://", "https://")) and is_loopback(host)


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
