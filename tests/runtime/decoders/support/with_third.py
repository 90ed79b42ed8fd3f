"""Add a decoder that is not one of the project to those of edgedec, as a plug-in of pytest:

pytest -p tests.runtime.decoders.support.with_third tests/conformance/test_decoders.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.runtime import decoders

THIRD = Path(__file__).parent / "third"  # folder of the decoder


def pytest_configure(config: pytest.Config) -> None:
    decoders.__path__.append(str(THIRD))
