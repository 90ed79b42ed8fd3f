"""Which accelerator a run is for: what ``--board`` and ``--configuration`` say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from edgedec.board import Board
from edgedec.errors import UsageError
from edgedec.hw.config import AcceleratorConfig
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.runtime.accelerator.board_bundle import BoardBundle
from edgedec.spelling import did_you_mean, must_be_one_of

__all__ = [
    "BOARD",
    "LINE_BOARD",
    "AcceleratorOptions",
    "Generator",
    "MemoryModel",
    "Size",
    "check_memory",
    "parse_configuration",
]

BOARD, LINE_BOARD = "kv260", "ulx3s-85f"  # unless another is named: of all devices, and behind a serial line

Size = Literal["small", "board"]
MemoryModel = Literal["auto", "ddr", "flat", "ideal"]


class Generator(Protocol):
    """What only the hardware generator knows. It is handed in where it is installed: a board's Python does without it."""

    def config(self, model: IntegerModel, board: Board, **overrides: Any) -> AcceleratorConfig:
        """The fastest accelerator that fits; raises as ``config_for_board``."""

    def needs(self, config: AcceleratorConfig, board: Board) -> Mapping[str, int]:
        """How much it takes there of each of edgedec.board.RESOURCES, estimated."""


@dataclass(frozen=True, kw_only=True)
class AcceleratorOptions:
    """Members:
        board: a name that boards/ has, or the path of a board's file; empty: ``BOARD``, or a board bundle's own.
        size: ``small`` simulates at a bearable speed; ``board`` is what the board gets. Ignored with a board bundle, which
            says what it was built from.
        overrides: members of AcceleratorConfig that are wanted otherwise.
        memory: of a simulated device: ``ddr`` is the KV260's, calibrated; ``flat`` moves what the board's memory gives to
            long reads; ``ideal`` has no such limit; ``auto`` is ``ddr`` or ``flat``, as the board has it.
        board_bundle: what was built for a board, with its program; None compiles the model now.
        built: the accelerator is there already, as `edgedec build-bitstream` makes it from board, size and overrides; a run
            that needs more positions is refused, and not given another accelerator.
        record: file that all traffic with the device is written to.
        generator: for size ``board``, and for what a plan says of the memories on the chip.

    Raises:
        UsageError: a value that is none of these, or a member that a configuration does not have.
    """

    board: str = ""
    size: Size = "small"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    memory: MemoryModel = "auto"
    board_bundle: BoardBundle | None = None
    built: bool = False
    record: Path | None = None
    generator: Generator | None = None

    @property
    def board_name(self) -> str:
        """Of the board that it is."""
        return self.board or (BOARD if self.board_bundle is None else self.board_bundle.board)

    def __post_init__(self) -> None:
        known = [member.name for member in fields(AcceleratorConfig)]
        for name in self.overrides:
            if name not in known:
                raise UsageError(
                    f"--configuration has no member {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}"
                )


def check_memory(text: str) -> MemoryModel:
    """Raises:
    UsageError: it is none.
    """
    if text not in get_args(MemoryModel):
        known = get_args(MemoryModel)
        raise UsageError(must_be_one_of("--memory", text, known))
    return cast(MemoryModel, text)


def parse_configuration(text: str) -> tuple[Size, dict[str, Any]]:
    """``small``, ``board``, or either with members after it: "small,slots=4,beat_bytes=32".

    Raises:
        UsageError: another size, or something that is no ``member=value``; the members are checked by their users.
    """
    size, *members = (part.strip() for part in text.split(","))
    if "=" in size:
        size, members = "small", [size, *members]
    if size not in get_args(Size):
        known = get_args(Size)
        raise UsageError(
            f"--configuration must begin with one of {', '.join(known)}, not {size!r}{did_you_mean(size, known)}"
        )
    found: dict[str, Any] = {}
    defaults = {member.name: member.default for member in fields(AcceleratorConfig)}
    for member in members:
        name, equals, value = member.partition("=")
        if not equals or name not in defaults:
            raise UsageError(
                f"--configuration has no member {member!r}; write NAME=VALUE, known: {', '.join(defaults)}"
                f"{did_you_mean(name, defaults)}"
            )
        if name in found:
            raise UsageError(f"--configuration has {name} twice; give it once")
        found[name] = _value(name, value, type(defaults[name]))
    return cast(Size, size), found


def _value(name: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"--configuration: {name} must be true or false, not {text!r}")
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"--configuration: {name} must be of type {kind.__name__}, not {text!r}") from None
