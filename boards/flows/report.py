"""The report of a build, as data: every figure with its origin and its kind, estimated or measured."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from edgedec import __version__
from edgedec.board import RESOURCES
from edgedec.boards.flows.interface import BoardDesign, Built
from edgedec.hw.compiler.cycles import PassCycles, cycles
from edgedec.hw.compiler.program import laid_out
from edgedec.hw.handoff.write import FAMILIES
from edgedec.hw.isa.registers import REGISTER_MAP
from edgedec.hw.plan.estimate import estimate

__all__ = ["FORMAT", "VERSION", "report"]

FORMAT, VERSION = "edgedec-build-report", 1
_NOT_RUN = "not run in {}"
_TAKEN = 0.25  # share of the memory's bandwidth that other masters take at the lower end of a range
_COMMITTED = (0, 128, 512, 1024, 2048, 4096)  # positions before a pass


def report(
    design: BoardDesign,
    *,
    label: str,
    built: Built | None,
    bitstream: Mapping[str, str] | None,
    synthesised: Mapping[str, Any] | None,
    files: Mapping[str, str],
    tools: Mapping[str, str],
    command: str,
) -> dict[str, Any]:
    """The content of report.json; docs/building.md says what its keys mean. Without times and places: the same build has
    the same report.

    Args:
        label: name of the maker's tools.
        bitstream: name and SHA-256 of the bitstream.
        synthesised: name of the tool, and counts of RESOURCES.
        files: name -> SHA-256.
        tools: name -> version.
    """
    board, config, program = design.board, design.config, design.program
    return {
        "format": FORMAT,
        "version": VERSION,
        "state": "written" if built is None else "built",
        "label": _NOT_RUN.format(label) if built is None else f"built by {label}",
        "command": command,
        "bitstream": bitstream,
        "board": {name: board.members()[name] for name in ("name", "title", "part", "family", "clock_hz")},
        "configuration": {"hash": f"{config.hash:016x}", **asdict(config)},
        "program": {
            "bundle": program.host.bundle,
            "instructions": len(program.instructions),
            "hidden": program.host.hidden,
            "vocab": program.host.vocab,
        },
        "resources": {
            "available": dict(board.has),
            "usable": {name: board.usable(name) for name in RESOURCES},
            "estimated": {"by": "edgedec's formulas, the accelerator alone", **estimate(config).on(board)},
            "synthesised": synthesised,
            "placed": None if built is None else {"by": _named(built), **built.resources},
        },
        "timing": _timing(design, built),
        "power": None if built is None or not built.power else {"by": f"{_named(built)}, estimated", **built.power},
        "speed": _speed(design),
        "memory": _memory(design),
        "addresses": _addresses(design),
        "registers": list(_registers()),
        "tools": {
            "edgedec": __version__,
            "python": platform.python_version(),
            **tools,
            **(built.tools if built else {}),
        },
        "files": dict(files),
    }


def _named(built: Built) -> str:
    return ", ".join(f"{name} {version}" for name, version in built.tools.items())


def _timing(design: BoardDesign, built: Built | None) -> dict[str, Any]:
    if built is None:
        return {"kind": "assumed", "clock_hz": design.config.clock_hz}
    return {"kind": "reported", "by": _named(built), **built.timing}


def _speed(design: BoardDesign) -> dict[str, Any]:
    """Return the speed of passes of one token, and of as many as there are slots, at several depths of the context.

    Each speed is given twice: with all of the memory's bandwidth, and if other masters take ``_TAKEN`` of it.
    """
    board, config = design.board, design.config
    rate = board.bandwidth_bytes_s

    def counted(slots: int, committed: int, bandwidth: float) -> PassCycles:
        return cycles(design.program, slots=slots, committed=committed, bandwidth=bandwidth)

    passes = []
    for committed in sorted({size for size in _COMMITTED if size + config.slots <= config.context}):
        for slots in sorted({1, config.slots}):
            alone, shared = counted(slots, committed, rate), counted(slots, committed, (1 - _TAKEN) * rate)
            seconds = alone.seconds(config)
            passes.append(
                {
                    "committed": committed,
                    "slots": slots,
                    "cycles": alone.cycles,
                    "seconds": seconds,
                    "tokens_per_second": slots / seconds,
                    "tokens_per_second_shared": slots / shared.seconds(config),
                }
            )
    return {
        "kind": "estimated",
        "by": "edgedec's cycle model; the device alone, the host takes no time",
        "shared": f"the same if other masters take {_TAKEN:.0%} of the memory's bandwidth",
        "clock_hz": config.clock_hz,
        "bandwidth_bytes_s": board.bandwidth_bytes_s,
        "bandwidth_kind": board.bandwidth_kind,
        "passes": passes,
    }


def _memory(design: BoardDesign) -> list[dict[str, Any]]:
    """Regions of the DRAM, from wherever the driver gets them."""
    sizes = design.program.sizes
    starts, end = laid_out(sizes, design.config.ports)
    rows: list[dict[str, Any]] = [
        {"region": name, "offset": starts[name], "bytes": size} for name, size in sizes.items()
    ]
    return [*rows, {"region": "in all, aligned", "offset": 0, "bytes": end}]


def _addresses(design: BoardDesign) -> list[dict[str, Any]]:
    """Return the addresses of registers as the processor sees them."""
    system = FAMILIES.get(design.board.family)
    if system is None:
        return []
    found = {"accelerator": system.accelerator_address, "interrupt controller": system.controller_address}
    return [{"what": name, "address": address, "bus": system.master} for name, address in found.items()]


def _registers() -> Any:
    for register in REGISTER_MAP.registers:
        yield {
            "name": register.name,
            "offset": register.offset,
            "bytes": register.bytes,
            "count": register.count,
            "access": register.access.value,
            "description": register.description,
            "fields": [
                {"name": field.name, "lsb": lsb, "bits": field.bits, "description": field.description}
                for field, lsb in register.positions()
            ],
        }
