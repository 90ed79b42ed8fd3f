"""Test what is known of the RTL of a board: from a build's folder, from a board bundle, or nothing, which is said."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgedec.device import open_device
from edgedec.errors import BundleError, DeviceError, UsageError
from edgedec.progress import silent
from edgedec.runtime.accelerator import opening
from edgedec.runtime.accelerator.board_bundle import BoardBundle
from edgedec.runtime.accelerator.built_from import gateware_of_build
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.devices.uart import UartDevice
from edgedec.sim.boards.link_server import LinkServer, PseudoTerminal
from tests.runtime.driver.support.bench_session import program
from tests.sim.support.make_small_top import CONFIG

RTLIL_HASH = 0xABC


@pytest.fixture
def port() -> Iterator[Path]:
    inside = open_device("interpreter", CONFIG, rtlil_hash=RTLIL_HASH)
    server = LinkServer(inside, memory_bytes=1 << 20, granule=CONFIG.port_bytes)
    with PseudoTerminal(server.take) as line:
        yield line.path


def written(folder: Path, name: str, content: Any) -> Path:
    (folder / name).write_text(json.dumps(content), "utf-8")
    return folder


def of_build(rtlil_hash: Any = f"{RTLIL_HASH:016x}", configuration: Any = f"{CONFIG.hash:016x}") -> dict[str, Any]:
    return {"identity": {"configuration": configuration}, "rtlil_hash": rtlil_hash}


def bundle(rtlil_hash: int) -> BoardBundle:
    """Return the members of a board bundle that the device needs."""
    facts = SimpleNamespace(
        rtlil_hash=rtlil_hash, path=Path("a.board"), bitstream=Path("a.board/accelerator.bit"), board="ulx3s-85f"
    )
    return cast(BoardBundle, facts)


def opened(device: str, **options: Any) -> None:
    opening.open_device(device, program(), AcceleratorOptions(**options), progress=silent).close()


def test_a_build_and_a_board_bundle_say_which_rtl_they_have(tmp_path: Path) -> None:
    folder = written(tmp_path, "board.json", of_build()["identity"] | {"rtlil_hash": f"{5:016x}"})
    found = gateware_of_build(folder, CONFIG)
    assert (found.rtlil_hash, found.file, found.bitstream) == (5, folder / "board.json", folder)
    (folder / "one.bit").touch()
    found = gateware_of_build(written(folder, "build.json", of_build()), CONFIG)
    assert (found.rtlil_hash, found.file, found.bitstream) == (RTLIL_HASH, folder / "build.json", folder / "one.bit")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ([], BundleError, "build.json: must hold an object"),
        ({}, BundleError, "build.json: rtlil_hash is None; build the bitstream again"),
        (of_build("abc"), BundleError, "build.json: rtlil_hash is 'abc'"),
        (of_build(configuration=7), BundleError, "build.json: configuration is 7"),
        ({**of_build(), "identity": 3}, BundleError, "build.json: configuration is None"),
        (of_build(configuration="0" * 16), DeviceError, "is of configuration 0{16}, this model has [0-9a-f]{16}: give"),
    ],
)
def test_a_damaged_build_or_another_accelerator_is_refused(
    tmp_path: Path, content: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gateware_of_build(written(tmp_path, "build.json", content), CONFIG)


def test_a_folder_that_is_no_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"build={tmp_path} has no build.json and no board.json; name the folder -o"):
        gateware_of_build(tmp_path, CONFIG)


@pytest.mark.parametrize("by", ["build", "bundle"])
def test_a_line_is_compared_with_what_is_known(port: Path, tmp_path: Path, by: str) -> None:
    for rtlil_hash in (RTLIL_HASH, RTLIL_HASH + 1):
        folder = written(tmp_path, "build.json", of_build(f"{rtlil_hash:016x}"))
        device, options = f"uart:{port},build={folder}", dict[str, Any]()
        if by == "bundle":
            device, options = f"uart:{port}", {"board_bundle": bundle(rtlil_hash)}
        if rtlil_hash == RTLIL_HASH:
            opened(device, **options)
        else:
            with pytest.raises(DeviceError, match=rf"rtlil_hash reads {RTLIL_HASH:016x}, .* says {rtlil_hash:016x}"):
                opened(device, **options)


def test_a_simulation_is_not_compared_with_a_bundle() -> None:
    assert opening.gateware("interpreter", AcceleratorOptions(board_bundle=bundle(1)), CONFIG) is None


@pytest.mark.parametrize("kind", ["measured", "simulated"])
def test_a_board_of_which_nothing_is_known_is_noted_once(
    port: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    begin = UartDevice.__init__

    def begun(self: UartDevice, *arguments: Any) -> None:
        begin(self, *arguments)
        self.kind = kind  # type: ignore[assignment]

    monkeypatch.setattr(UartDevice, "__init__", begun)
    with caplog.at_level(logging.WARNING):
        opened(f"uart:{port}")
    expected = (
        f"nothing says which RTL {port} must have, so its register rtlil_hash, {RTLIL_HASH:016x}, is compared with"
    )
    assert [text.startswith(expected) for text in caplog.messages] == [True] * (kind == "measured")
