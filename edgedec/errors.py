"""The errors that edgedec raises deliberately.

Every message names the object, the limit and the next step. The command line exits with ``exit_code``.
"""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "BundleError",
    "CacheFullError",
    "DeviceError",
    "EdgedecError",
    "ToolError",
    "UnsupportedError",
    "UsageError",
]


class EdgedecError(Exception):
    """Base of all errors; it is raised itself if no narrower class fits."""

    exit_code = 1


class UsageError(EdgedecError):
    """The request itself is wrong: an empty prompt, an unknown name, a missing file."""

    exit_code = 2


class BundleError(EdgedecError):
    """A bundle or checkpoint is damaged or incomplete, or its parts do not belong together."""


class UnsupportedError(EdgedecError):
    """A well-formed model needs something that this executor does not support."""


class BudgetError(EdgedecError):
    """The plan does not fit the memory budget."""

    exit_code = 4


class CacheFullError(EdgedecError):
    """The caches of all sequences of a target together have no room for a pass; no part of the pass has run."""


class DeviceError(EdgedecError):
    """A device is missing, has failed, or gave an invalid answer."""

    exit_code = 3


class ToolError(EdgedecError):
    """An external tool is missing or too old."""

    exit_code = 3
