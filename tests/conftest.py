"""What all tests share: where trained models lie beside the checkout, and property tests that repeat themselves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from edgedec.environment import SHARED_DATA
from tests.support.rings import (  # noqa: F401 - hooks of pytest
    pytest_collection_modifyitems,
    pytest_report_header,
    pytest_runtest_protocol,
    pytest_terminal_summary,
)

ROOT = Path(__file__).resolve().parents[1]

# The tests compare with transformers, whose hub is never asked.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# The same examples in every run, and no deadline that a busy machine would miss. To hunt with fresh examples:
# `.venv/bin/pytest --hypothesis-profile=default`.
settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.load_profile("ci")


# What runs in the background of a shell that is not interactive, as CI may, has Ctrl-C ignored, and so have its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of trained models, tokenizers, prompts and texts: $EDGEDEC_SHARED_DATA, or ../shared/data."""
    named = SHARED_DATA.value()
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if named and not folder.is_dir():
        pytest.fail(f"EDGEDEC_SHARED_DATA is {named!r}, which is not a folder")
    if not folder.is_dir():
        pytest.skip("no ../shared/data beside the checkout, and EDGEDEC_SHARED_DATA is not set")
    return folder
