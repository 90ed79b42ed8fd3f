"""The options that select an accelerator: ``--board``, ``--configuration`` and ``--memory``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from edgedec.board import Board
from edgedec.errors import UsageError
from edgedec.host.spelling import did_you_mean, must_be_one_of
from edgedec.hw.config import AcceleratorConfig
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.runtime.accelerator.board_bundle import BoardBundle

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

BOARD, LINE_BOARD = "kv260", "ulx3s-85f"  # default boards: of all devices but serial lines, and of serial lines

Size = Literal["small", "board"]
MemoryModel = Literal["auto", "ddr", "flat", "ideal"]


class Generator(Protocol):
    """The part of the hardware generator that runs need. It is optional, because boards do not have the generator."""

    def config(self, model: IntegerModel, board: Board, *, texts: int = 1, **overrides: Any) -> AcceleratorConfig:
        """Return the fastest accelerator that fits the board. See ``config_for_board`` for its errors."""

    def needs(self, config: AcceleratorConfig, board: Board) -> Mapping[str, int]:
        """Return the estimated use of each of ``edgedec.board.RESOURCES``."""


@dataclass(frozen=True, kw_only=True)
class AcceleratorOptions:
    """The options that select an accelerator.

    Members:
        board: name of a file of boards/, or the path of a board's file; empty: ``BOARD``, or the board of ``board_bundle``.
        size: ``small`` is an accelerator that simulates fast enough; ``board`` is the one that the board gets. It is
            ignored with a board bundle, which contains its configuration.
        overrides: members of ``AcceleratorConfig`` with other values than the default.
        memory: memory model of a simulated device. ``ddr`` is calibrated to the KV260; ``flat`` has the bandwidth of the
            board's memory; ``ideal`` has no limit; ``auto`` is ``ddr`` if the board has it, or else ``flat``.
        board_bundle: bitstream and program for a board; None compiles the model now.
        built: the accelerator was built before, by ``edgedec build-bitstream``, from board, size and overrides. A run that
            needs more positions is then refused instead of getting a larger accelerator.
        record: file to which all traffic with the device is written.
        generator: needed for the size ``board``, and for a plan's figures of memories on the chip.

    Raises:
        UsageError: ``overrides`` has a name that is no member of a configuration.
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
        """Name of the board, which is never empty."""
        return self.board or (BOARD if self.board_bundle is None else self.board_bundle.board)

    def __post_init__(self) -> None:
        known = [member.name for member in fields(AcceleratorConfig)]
        for name in self.overrides:
            if name not in known:
                raise UsageError(
                    f"--configuration has no member {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}"
                )


_LEAST_CLOCK_HZ = 1e4  # below that a number is rather meant in MHz


def check_memory(text: str) -> MemoryModel:
    """Return ``text`` as a memory model.

    Raises:
        UsageError: it is not the name of one.
    """
    if text not in get_args(MemoryModel):
        known = get_args(MemoryModel)
        raise UsageError(must_be_one_of("--memory", text, known))
    return cast(MemoryModel, text)


def parse_configuration(text: str) -> tuple[Size, dict[str, Any]]:
    """Return the size and the members of a text such as ``small``, ``board`` or ``small,slots=4,beat_bytes=32``.

    The values of members are checked when a configuration is made of them.

    Raises:
        UsageError: the size is unknown, or a member is unknown, repeated, or not of its type.
    """
    size, *members = (part.strip() for part in text.split(","))
    if "=" in size:
        size, members = "small", [size, *members]
    if size not in get_args(Size):
        known = get_args(Size)
        raise UsageError(
            f"--configuration must begin with one of {', '.join(known)}, not {size!r}{did_you_mean(size, known)}"
        )
    overrides: dict[str, Any] = {}
    defaults = {member.name: member.default for member in fields(AcceleratorConfig)}
    for member in members:
        name, equals, value = member.partition("=")
        if name in defaults and not equals:
            raise UsageError(f"--configuration: {name} has no value; write {name}=VALUE")
        if not equals or name not in defaults:
            raise UsageError(
                f"--configuration has no member {member!r}; write NAME=VALUE, known: {', '.join(defaults)}"
                f"{did_you_mean(name, defaults)}"
            )
        if name in overrides:
            raise UsageError(f"--configuration has {name} twice; give it once")
        overrides[name] = _value(name, value, type(defaults[name]))
        if name == "clock_hz" and 0 < overrides[name] < _LEAST_CLOCK_HZ:
            raise UsageError(
                f"--configuration: clock_hz={value} is {value} Hz; for {value} MHz write clock_hz={value}e6"
            )
    return cast(Size, size), overrides


def _value(name: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"--configuration: {name} must be true or false, not {text!r}")
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        words = (
            "a whole number"
            if kind is int
            else "a number in hertz, such as 250e6"
            if name == "clock_hz"
            else "a number"
        )
        raise UsageError(f"--configuration: {name} must be {words}, not {text!r}") from None
