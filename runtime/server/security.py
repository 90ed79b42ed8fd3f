"""Checks of every request before the application sees it: who may ask, from which page, in which form, and how much.

A web page of a stranger that runs in the user's browser can reach servers on the user's machine. It cannot choose the
``Host`` header of its requests and cannot leave out ``Origin``, so both are checked: the first against DNS rebinding, in
which a stranger's name resolves to this machine, the second against requests across sites. Bodies must be declared as JSON,
which a page may not do for another site without asking first.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers

from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.page import PAGE_PATHS
from edgedec.runtime.server.settings import LOCAL_ORIGINS, ServerSettings, is_local_origin, is_loopback

__all__ = ["PUBLIC_PATHS", "RequestRules"]

# Paths that are answered without a key: load balancers ask for the first two, and the page asks for the key itself. They
# tell nothing about the model.
PUBLIC_PATHS = frozenset(["/health", "/v1/health", *PAGE_PATHS])
_DECLARING = ("content-type", "origin", "sec-fetch-site", "sec-fetch-mode")  # a browser sends one of them with a body


class RequestRules:
    """The rules that a request's headers must keep.

    Parameters:
        settings: names, origins and keys that are allowed.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._loopback_only = all(map(is_loopback, settings.addresses))
        self._hosts = frozenset(
            name.lower().strip("[]") for name in (*settings.allowed_hosts, *settings.addresses, "localhost")
        )
        self._origins = frozenset(settings.cors_origins) - {LOCAL_ORIGINS}
        self._local_origins = LOCAL_ORIGINS in settings.cors_origins
        self._keys = [_digest(key.encode()) for key in settings.api_keys]
        self._body_bytes = settings.body_bytes

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Check the headers of a request.

        Raises:
            ApiError: a rule is broken; the message says which, and what to do.
        """
        host = self._check_host(headers.getlist("host"))
        self._check_origin(method, headers, host)
        self._check_length(headers)
        if path not in PUBLIC_PATHS:
            self._check_key(headers)
        if method == "POST":
            self._check_form(path, headers)

    def client(self, address: str, headers: Headers) -> str:
        """Return the name of who sends a request: of the address, and of the key of this server that the request has."""
        keys = [number for number, key in enumerate(self._keys) if _any_equal([key], _offered_keys(headers))]
        return f"{address} {keys}"

    def allows_origin(self, origin: str) -> bool:
        """Return True if pages of an origin were allowed to use the server."""
        return "*" in self._origins or origin in self._origins or (self._local_origins and is_local_origin(origin))

    def _check_length(self, headers: Headers) -> None:
        """Refuse two statements of a body's length, of which a proxy may believe the other one (request smuggling)."""
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ApiError(
                400, "the request has both Content-Length and Transfer-Encoding; send one", code="invalid_length"
            )

    def _check_host(self, values: list[str]) -> str:
        """Return the ``Host`` header, which names this server."""
        if len(values) != 1:
            raise ApiError(400, f"the request has {len(values)} Host headers, one is needed", code="invalid_host")
        name = _host_name(values[0])
        if name not in self._hosts and not self._is_own_address(name):
            raise ApiError(
                403,
                "the Host header does not name this server; start it with --allowed-host NAME if it has that name",
                code="host_not_allowed",
            )
        return values[0]

    def _is_own_address(self, name: str) -> bool:
        """Return True for an address of this server. A rebound name is never an address, so any will do."""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return is_loopback(name) or not self._loopback_only

    def _check_origin(self, method: str, headers: Headers, host: str) -> None:
        origins = headers.getlist("origin")
        if not origins:
            site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
            follows_link = method == "GET" and mode == "navigate"
            if site in ("cross-site", "same-site") and not follows_link:
                raise _foreign_origin()
            return
        own = (f"http://{host}".lower(), f"https://{host}".lower())
        if len(origins) != 1 or not (origins[0].lower() in own or self.allows_origin(origins[0])):
            raise _foreign_origin()

    def _check_key(self, headers: Headers) -> None:
        if not self._keys:
            return
        offered = _offered_keys(headers)
        if not _any_equal(self._keys, offered):
            missing = "is missing" if not offered else "is wrong"
            raise ApiError(
                401,
                f"the API key {missing}; send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_form(self, path: str, headers: Headers) -> None:
        self._check_type(path, headers)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(
                415, "a compressed body is not accepted; leave out Content-Encoding", code="unsupported_media_type"
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise ApiError(400, "the Content-Length header is not a number", code="invalid_length")
        if int(length[:20]) > self._body_bytes:
            raise too_large(self._body_bytes)

    def _check_type(self, path: str, headers: Headers) -> None:
        """Check that a body is declared as JSON. Programs for Ollama declare nothing; no browser leaves all of these out."""
        if path.startswith("/api/") and not any(name in headers for name in _DECLARING):
            return
        kind, _, parameters = headers.get("content-type", "").partition(";")
        charset = parameters.strip().lower().replace('"', "")
        if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8", "charset=utf8"):
            raise ApiError(
                415,
                "the body must be JSON in UTF-8; send 'Content-Type: application/json'",
                code="unsupported_media_type",
            )


def too_large(limit: int) -> ApiError:
    """Return the error for a body that is larger than ``limit`` bytes."""
    return ApiError(
        413,
        f"the body has more than {limit} bytes; shorten it, or start the server with a larger --max-body",
        code="body_too_large",
    )


def _foreign_origin() -> ApiError:
    return ApiError(
        403,
        "pages of this origin may not use the server; start it with --cors-origin ORIGIN to allow them",
        code="origin_not_allowed",
    )


def _host_name(value: str) -> str:
    """Return the name or address of a ``Host`` header, without its port and brackets, in lower case."""
    if value.startswith("["):
        return value[1:].partition("]")[0].lower()
    name, _, port = value.rpartition(":") if value.count(":") == 1 else (value, "", "")
    return name.lower() if not port or port.isdecimal() else ""


def _offered_keys(headers: Headers) -> list[str]:
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return [*([bearer.strip()] if scheme.lower() == "bearer" else []), *headers.getlist("x-api-key")]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _any_equal(keys: list[bytes], offered: Iterable[str]) -> bool:
    """Compare every key with every offered one. The time depends on neither the keys nor the first difference."""
    equal = False
    for value in offered:
        digest = _digest(value.encode("latin-1", "replace"))
        for key in keys:
            equal |= hmac.compare_digest(key, digest)
    return equal
