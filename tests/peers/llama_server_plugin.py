"""A plug-in for llama.cpp's own tests of its server, which makes them run without a network.

It replaces the package ``wget``, with which the tests load a draft model, by a module that writes an empty file, because the
server under test has the embedded draft instead. It leaves out the start of a server for each model of the hub, with which
the suite fills its cache. And where a test starts its server with ``--verbose``, so that answers have the member
``__verbose``, each request asks for it, because here only requests can.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["pytest_collection_finish", "pytest_load_initial_conftests"]


def pytest_load_initial_conftests() -> None:
    """Put the stand-in for ``wget`` in place before any file of the suite is imported."""
    wget = types.ModuleType("wget")
    setattr(wget, "download", _touch)  # noqa: B010 - a module has no such attribute for the type checker
    sys.modules["wget"] = wget


def _touch(url: str, out: str) -> str:
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).touch()
    return out


def pytest_collection_finish(session: Any) -> None:
    """Load no models from the hub before the first test, and ask for the prompts that verbose servers tell."""
    utils = sys.modules.get("utils")
    if utils is not None and hasattr(utils, "ServerPreset"):
        utils.ServerPreset.load_all = staticmethod(lambda: None)
    if utils is not None and hasattr(utils, "ServerProcess"):
        utils.ServerProcess.make_request = _verbose(utils.ServerProcess.make_request)


def _verbose(make_request: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that asks for ``__verbose`` in chats with a server that was started with ``--verbose``."""

    @functools.wraps(make_request)
    def asked(server: Any, method: str, path: str, data: Any = None, *rest: Any, **named: Any) -> Any:
        if server.debug and path.endswith("/chat/completions") and isinstance(data, dict):
            data = {"verbose": True, **data}
        return make_request(server, method, path, data, *rest, **named)

    return asked
