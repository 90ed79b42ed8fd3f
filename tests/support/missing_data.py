"""Stand in for the folder of shared data where there is none, so that a skipped test names the file it needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest


class MissingData(os.PathLike[str]):
    """A path in a folder that does not exist: ``/`` appends to it, and any other use skips the test.

    Args:
        path: The path as the message shows it, such as ``../shared/data/tokenizers/tok512.bin``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __truediv__(self, name: str) -> MissingData:
        return MissingData(self._path / name)

    def __fspath__(self) -> str:
        self._skip()

    def __str__(self) -> str:
        self._skip()

    def __getattr__(self, name: str) -> NoReturn:
        self._skip()

    def _skip(self) -> NoReturn:
        pytest.skip(f"no {self._path} beside the checkout, and EDGEDEC_SHARED_DATA is not set")
