"""The identity of a device: whether its registers are those of the accelerator that a program and its files are for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import DeviceError
from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.runtime.driver.registers import Registers

__all__ = ["Gateware", "check_identity"]


@dataclass(frozen=True, kw_only=True)
class Gateware:
    """The RTL that a device must have been built from.

    Members:
        rtlil_hash: hash of the RTLIL.
        file: file that says so.
        bitstream: bitstream that has it.
    """

    rtlil_hash: int
    file: Path
    bitstream: Path

    def check(self, found: int) -> None:
        """Compare the hash with that of the device's register.

        Raises:
            DeviceError: they differ.
        """
        if found != self.rtlil_hash:
            raise DeviceError(
                f"register rtlil_hash reads {found:016x}, {self.file} says {self.rtlil_hash:016x}: another bitstream is "
                f"loaded, or the file is of another build; load {self.bitstream}, or build it again with this edgedec"
            )


def check_identity(registers: Registers, program: Program, gateware: Gateware | None) -> None:
    """Read the registers that say what a device is, and write none.

    Raises:
        DeviceError: they are not those of an accelerator for the program, or not those of ``gateware``.
    """
    for name in ("identity", "version"):
        value, expected = registers.read(name), REGISTER_MAP[name].reset
        if value != expected:
            raise DeviceError(
                f"register {name} reads {value:#x}, not {expected:#x}: no accelerator of this edgedec; load its "
                "bitstream"
            )
    version = registers.read("isa_version")
    if version != program.header.isa_version:
        raise DeviceError(
            f"register isa_version reads {version}, the program is of version {program.header.isa_version} of the "
            "instruction set; build the bitstream with this edgedec and load it, or compile the model with the edgedec "
            "that built the bitstream"
        )
    configuration = registers.read("configuration_hash")
    if configuration != program.config.hash:
        taps = ", ".join(tap.name for tap in program.host.taps)
        raise DeviceError(
            f"the accelerator was generated from configuration {configuration:016x}, the program is for "
            f"{program.config.hash:016x}; compile the model for this accelerator{' without ' * bool(taps)}{taps}"
        )
    found = registers.read(
        "rtlil_hash"
    )  # also without ``gateware``, so that a session recorded with it can be replayed
    if gateware is not None:
        gateware.check(found)
