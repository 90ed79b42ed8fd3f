"""The errors that edgedec raises on purpose.

Every message names the object, the limit and the next step. ``exit_code`` is what the command line returns.
"""

from __future__ import annotations

__all__ = ["BudgetError", "BundleError", "DeviceError", "EdgedecError", "ToolError", "UnsupportedError", "UsageError"]


class EdgedecError(Exception):
    """Base of them all; raised itself where no narrower class fits."""

    exit_code = 1


class UsageError(EdgedecError):
    """The request itself makes no sense: an empty prompt, an unknown name, a file that is not there."""

    exit_code = 2


class BundleError(EdgedecError):
    """A bundle or checkpoint is damaged, incomplete, or does not belong together."""


class UnsupportedError(EdgedecError):
    """A well-formed model asks for something that this executor cannot do."""


class BudgetError(EdgedecError):
    """The plan does not fit the memory budget."""

    exit_code = 4


class DeviceError(EdgedecError):
    """A device is missing, failed, or answered nonsense."""

    exit_code = 3


class ToolError(EdgedecError):
    """An external tool is missing or too old."""

    exit_code = 3
