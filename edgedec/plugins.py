"""Plug-ins are files: the module name is the command-line name, and nothing is registered anywhere."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from edgedec.errors import UsageError
from edgedec.spelling import did_you_mean

__all__ = ["load", "names"]


def names(package: str) -> list[str]:
    """The plug-ins of a package, sorted; files that begin with an underscore are private."""
    found = pkgutil.iter_modules(import_module(package).__path__)
    return sorted(module.name for module in found if not module.name.startswith("_"))


def load(package: str, name: str, *, kind: str = "") -> ModuleType:
    """Import ``package.name``.

    Args:
        kind: the plural that the message calls such plug-ins by; empty: the package's own name.

    Raises:
        UsageError: no such file; the message lists the known ones. An error inside the plug-in passes through.
    """
    kind = kind or package.rpartition(".")[2]
    if not name.isidentifier() or name.startswith("_") or find_spec(f"{package}.{name}") is None:
        known = names(package)
        raise UsageError(f"no {name!r} among the {kind}; known: {', '.join(known)}{did_you_mean(name, known)}")
    return import_module(f"{package}.{name}")
