"""Open each device of edgedec.device, or a fake of what is around it, for suites that run over all of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.device import Device, open_device
from edgedec.graph.ops import Embed
from edgedec.hw.config import AcceleratorConfig
from edgedec.runtime.driver.recording import RecordingDevice
from edgedec.schemes import TernaryScheme
from edgedec.sim.boards.link_server import LinkServer, PseudoTerminal
from edgedec.sim.devices.interpreter import InterpreterDevice
from edgedec.sim.verify.cocotb_runner import missing_tools
from tests.edgedec.reference.integer_profile.support.make_models import float_model, prepared
from tests.runtime.devices.support.fake_board import open_on, simulated_board
from tests.runtime.devices.support.fake_devmem import open_devmem

__all__ = ["DEVICES", "MODEL", "OPTIONS", "Opener", "embedding", "tree"]

OPTIONS: dict[str, dict[str, Any]] = {
    "pynq": {},  # options of a simulated board around ``interpreter``
    "interpreter": {},
    "sim": {"memory": "ideal", "memory_bytes": 1 << 20, "trace": True},
    "devmem": {},  # options of files and memory around ``interpreter``
    "uart": {},  # options of a pseudo-terminal, whose other side is in Python around ``interpreter``
}
NIGHTLY = (pytest.mark.nightly, pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {missing_tools()}"))
BOARD = pytest.mark.skipif(
    find_spec("pynq") is None, reason="pynq is not installed; `.ci/environment board` installs it"
)
DEVICES = [
    "interpreter",
    "recorded",
    "uart",
    "devmem",
    pytest.param("pynq", marks=BOARD),
    pytest.param("sim", marks=NIGHTLY),
]
MODEL = prepared(*float_model(TernaryScheme(), {"head_dim": 8, "attention_bias": False}))


class Opener:
    """Open devices of one name, and stall their memory.

    Args:
        name: an item of ``DEVICES``.
        config: the accelerator.
        folder: an empty folder.

    Members:
        inside: the device that does the work, by the ``id`` of the opened one.
    """

    def __init__(self, name: str, config: AcceleratorConfig, folder: Path) -> None:
        self._name, self._config, self._folder = name, config, folder
        self._devices, self._lines, self.inside = list[Device](), list[PseudoTerminal](), dict[int, Any]()

    def __call__(self) -> Device:
        device, inside = self._open_one()
        self._devices.append(device)
        self.inside[id(device)] = inside
        return device

    def _open_one(self) -> tuple[Device, Any]:
        name, config, number = self._name, self._config, len(self._devices)
        inside: Any = None
        if name == "pynq":
            board = simulated_board(config)
            return open_on(board, config, self._folder), board.accelerator
        if name == "devmem":
            (folder := self._folder / f"devmem{number}").mkdir()
            inside = InterpreterDevice(config)
            return open_devmem(config, folder, device=inside), inside
        if name == "uart":
            inside = open_device("interpreter", config)
            server = LinkServer(inside, memory_bytes=1 << 18, granule=config.port_bytes)
            self._lines.append(PseudoTerminal(server.take))
            return open_device("uart", config, port=self._lines[-1].path), inside
        if name == "recorded":
            inside = open_device("interpreter", config)
            return RecordingDevice(inside, self._folder / f"session{number}"), inside
        inside = open_device(name, config, **OPTIONS[name])
        return inside, inside

    def stall(self, device: Device, cycles: int) -> None:
        """Let memory answer nothing from now on: for ``cycles`` cycles in the RTL, until ``mend`` elsewhere."""
        inside = self.inside[id(device)]
        if hasattr(inside, "simulation"):
            for port in range(inside.simulation.ports):
                inside.simulation.inject_stall(port, first_cycle=inside.simulation.cycles + 50, cycles=cycles)
        else:
            inside.stalled = True

    def mend(self, device: Device) -> None:
        self.inside[id(device)].stalled = False

    def close(self) -> None:
        """Close all devices."""
        for device in self._devices:
            device.close()
        for line in self._lines:
            line.close()
            assert line.failure is None


def embedding() -> Any:
    """Return the table of embeddings of ``MODEL``."""
    (embed,) = (op for op in MODEL.graph.operations if isinstance(op, Embed))
    constants: Any = MODEL.constants[embed.name]
    return constants.weight


def tree(parents: list[int], length: int) -> tuple[Any, Any]:
    """Return positions and mask of a tree after ``length`` committed rows, whose nodes have the parents (-1: none)."""
    visible, depth = np.eye(len(parents), dtype=np.bool_), np.zeros(len(parents), np.int32)
    for slot, parent in enumerate(parents):
        if parent >= 0:
            visible[slot] |= visible[parent]
            depth[slot] = depth[parent] + 1
    return depth + np.int32(length), visible
