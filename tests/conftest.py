"""Configure all tests: the place of trained models beside the checkout, and property tests with repeatable examples."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import cast

import pytest
from hypothesis import settings

from edgedec.environment import SHARED_DATA
from tests.support.disk import pytest_sessionstart  # noqa: F401 - hook of pytest
from tests.support.frozen import (  # noqa: F401 - hooks of pytest
    pytest_collection,
    pytest_collection_finish,
    pytest_runtest_teardown,
)
from tests.support.missing_data import MissingData
from tests.support.rings import (  # noqa: F401 - hooks of pytest
    pytest_collection_modifyitems,
    pytest_report_header,
    pytest_runtest_protocol,
    pytest_terminal_summary,
)
from tests.support.stamps import pytest_addoption, pytest_configure  # noqa: F401 - hooks of pytest

ROOT = Path(__file__).resolve().parents[1]

# The tests compare with transformers, which must not call its hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# The same examples in every run, and no deadline that a busy machine would miss. For new examples run `.venv/bin/pytest
# --hypothesis-profile=default`.
settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.load_profile("ci")


# A background process of a shell that is not interactive, as CI may use, ignores Ctrl-C, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """Return the folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of trained models, tokenizers, prompts and texts: $EDGEDEC_SHARED_DATA, or ../shared/data."""
    folder_name = SHARED_DATA.value()
    folder = Path(folder_name) if folder_name else ROOT.parent / "shared" / "data"
    if folder_name and not folder.is_dir():
        pytest.fail(f"EDGEDEC_SHARED_DATA is {folder_name!r}, which is not a folder")
    if not folder.is_dir():
        return cast(Path, MissingData(Path("../shared/data")))
    return folder
