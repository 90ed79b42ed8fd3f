"""Test device pynq on a machine without pynq."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from edgedec.device import device_names, open_device
from edgedec.errors import BundleError, ToolError
from edgedec.host.install_hint import install_extra
from tests.runtime.devices.support.fake_board import bitstream
from tests.sim.support.make_small_top import CONFIG


def test_the_device_is_listed_and_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynq", None)
    assert "pynq" in device_names()
    with pytest.raises(
        ToolError, match=r"needs the package pynq .*PYNQ image, or run: " + re.escape(install_extra("board"))
    ):
        open_device("pynq", CONFIG, bitstream=bitstream(CONFIG, tmp_path), lock_folder=tmp_path)


def test_files_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynq", None)
    with pytest.raises(BundleError, match=r"none\.hwh .*cannot be read"):
        open_device("pynq", CONFIG, bitstream=tmp_path / "none.bit")
