"""Let Python search for unreachable cycles more rarely while a command starts.

A start makes some hundred thousand objects, nearly all of which stay: modules, functions and classes. With the usual
settings the searches take a twentieth of the start.
"""

from __future__ import annotations

import gc

__all__ = ["collect_rarely", "collect_usually"]

_USUAL = gc.get_threshold()
_RARE = (10_000, 20, 20)  # new objects, and smaller searches, after which Python searches


def collect_rarely() -> None:
    """Search rarely from now on."""
    gc.set_threshold(*_RARE)


def collect_usually() -> None:
    """Search as usual from now on, because the work has begun."""
    gc.set_threshold(*_USUAL)
