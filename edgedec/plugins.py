"""Plug-ins are files: the name of the module is the name on the command line, and nothing is registered anywhere."""

from __future__ import annotations

import functools
import pkgutil
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from edgedec.errors import UsageError
from edgedec.host.spelling import did_you_mean

__all__ = ["load", "names"]


def names(package: str) -> list[str]:
    """Return the names of the plug-ins of a package, sorted. Files that begin with an underscore are private."""
    return list(_names_in(tuple(import_module(package).__path__)))


@functools.cache
def _names_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the plug-ins in folders, which are read once: a plan asks for its operations' some 100 times."""
    modules = pkgutil.iter_modules(folders)
    return tuple(sorted(module.name for module in modules if not module.name.startswith("_")))


def load(package: str, name: str, *, kind: str = "") -> ModuleType:
    """Import ``package.name``.

    Args:
        kind: plural noun for such plug-ins in the message; empty: the package's own name.

    Raises:
        UsageError: there is no such file; the message lists the known names. An error inside the plug-in passes through.
    """
    if f"{package}.{name}" in sys.modules and not name.startswith("_"):
        # The entry may be that of a module which another thread is still importing: the import system waits for it.
        return import_module(f"{package}.{name}")
    kind = kind or package.rpartition(".")[2]
    if not name.isidentifier() or name.startswith("_") or find_spec(f"{package}.{name}") is None:
        known = names(package)
        raise UsageError(f"no {name!r} among the {kind}; known: {', '.join(known)}{did_you_mean(name, known)}")
    return import_module(f"{package}.{name}")
