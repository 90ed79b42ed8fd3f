"""Let tests not wait for the disk: a run of the first ring writes some 8,000 files and folders, each with ``fsync``."""

from __future__ import annotations

import os

fsync = os.fsync  # for the tests of what reaches the disk


def pytest_sessionstart() -> None:
    os.fsync = _checked  # type: ignore[assignment]


def _checked(descriptor: int) -> None:
    """Refuse what ``os.fsync`` refuses, a descriptor that is not open."""
    os.fstat(descriptor)
