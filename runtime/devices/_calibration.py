"""The phase at which a board's SDRAM is read: every phase is tried, and the middle of the longest good window is taken.

A memory that has no such phases is left alone. The memory's contents are lost.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.hw.isa.link_protocol import LinkCommand
from edgedec.hw.isa.registers import BOARD_REGISTER_MAP, REGISTER_MAP
from edgedec.runtime.devices._link import Link

__all__ = ["MemoryPhases", "calibrated", "longest_window", "pattern"]

_LOG = logging.getLogger(__name__)
_BLOCK_BYTES = 128  # bytes of a block of the test
_RESETS = 200  # reads of the status until a soft reset counts as failed
_PHASE = BOARD_REGISTER_MAP["memory_phase"].offset
_CONTROL, _STATUS = REGISTER_MAP["control"], REGISTER_MAP["status"]

U8 = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class MemoryPhases:
    """Phases of a memory, and how well each served.

    Members:
        wrong_bits: for each phase, the number of bits that were read wrong.
        read_bits: number of bits that were read at a phase.
        phase: the phase that is used.
    """

    wrong_bits: tuple[int, ...]
    read_bits: int
    phase: int

    @property
    def table(self) -> str:
        """Each phase and how many of its bits were wrong."""
        return ", ".join(f"{phase}: {wrong or 'good'}" for phase, wrong in enumerate(self.wrong_bits))


def calibrated(link: Link) -> MemoryPhases | None:
    """Find the phase of a link's memory, set it, and test the memory; None if the memory has no phases.

    The accelerator is reset first, because a phase may change only while nothing reads.

    Raises:
        DeviceError: the memory is right at no phase, with the table of phases; the memory is damaged, with the first address
            and its bits; or the accelerator cannot be reset.
    """
    identity = link.identity
    if not identity.phases:
        return None
    _reset(link)
    first = identity.memory_address
    blocks = [(address, pattern(address)) for address in (first, first + identity.memory_bytes // 4)]
    _exchange(link, [_write(address, data) for address, data in blocks])
    commands = [
        command
        for phase in range(identity.phases)
        for command in (_set(phase), *(_read(address) for address, _ in blocks))
    ]
    answers = [answer for answer in _exchange(link, commands) if answer]
    expected = [data for _ in range(identity.phases) for _, data in blocks]
    wrong = [_wrong_bits(data, answer) for data, answer in zip(expected, answers, strict=True)]
    of_phases = tuple(sum(wrong[at : at + len(blocks)]) for at in range(0, len(wrong), len(blocks)))
    window = longest_window(of_phases)
    found = MemoryPhases(
        wrong_bits=of_phases, read_bits=8 * _BLOCK_BYTES * len(blocks), phase=(window.start + window.stop - 1) // 2
    )
    if not window:
        raise DeviceError(
            f"{link.port}: the board's SDRAM is read wrong at every phase (wrong bits of {found.read_bits} at each: "
            f"{found.table}). Load the board's bitstream again, and check that it is for this board; if that does not help, "
            "the memory or its wires are damaged"
        )
    _exchange(link, [_set(found.phase)])
    _march(link)
    _LOG.info("%s: the SDRAM is read at phase %d (%s)", link.port, found.phase, found.table)
    return found


def longest_window(wrong_bits: Sequence[int]) -> range:
    """Return the longest run of phases without a wrong bit, the first one of equal length; an empty one if there is none."""
    longest, start = range(0), 0
    for phase, wrong in enumerate([*wrong_bits, 1]):
        if wrong:
            longest = max(longest, range(start, phase), key=len)
            start = phase + 1
    return longest


def pattern(address: int) -> U8:
    """Return the block for an address, uint8 [128]: words of equal bits by turns, walking ones and zeros, and noise."""
    ones = [1 << bit for bit in range(16)]
    words = np.array([0, 0xFFFF, 0x5555, 0xAAAA, *ones, *(one ^ 0xFFFF for one in ones)], np.uint16)
    noise = np.random.default_rng(address).integers(0, 1 << 16, _BLOCK_BYTES // 2 - words.size, np.uint16)
    return np.concatenate([noise[:4], words, noise[4:]]).astype("<u2").view(np.uint8)


def _march(link: Link) -> None:
    """Test blocks whose addresses differ in every bit: up with the pattern, up with its inverse, down with the pattern."""
    identity = link.identity
    steps = range(_BLOCK_BYTES.bit_length() - 1, (identity.memory_bytes - 1).bit_length())
    places = [0, *(1 << bit for bit in steps)]
    up = [identity.memory_address + place for place in places if place + _BLOCK_BYTES <= identity.memory_bytes]
    straight = {address: pattern(address) for address in up}
    inverse = {address: ~data for address, data in straight.items()}
    _exchange(link, [_write(address, straight[address]) for address in up])
    for order, there, then in ((up, straight, inverse), (up[::-1], inverse, straight), (up[::-1], straight, None)):
        commands = [
            command
            for address in order
            for command in ([_read(address)] if then is None else [_read(address), _write(address, then[address])])
        ]
        answers = [answer for answer in _exchange(link, commands) if answer]
        for address, answer in zip(order, answers, strict=True):
            differing = there[address] ^ np.frombuffer(answer, np.uint8)
            if differing.any():
                at = int(np.argmax(differing != 0))
                raise DeviceError(
                    f"{link.port}: the board's SDRAM gives {answer[at]:#04x} at address {address + at:#x}, where "
                    f"{there[address][at]:#04x} was written; the memory is damaged, or smaller than {identity.memory_bytes} "
                    "bytes: check that the bitstream is for this board"
                )


def _reset(link: Link) -> None:
    """Abandon what an earlier host left running."""
    bit = {field.name: 1 << lsb for register in (_CONTROL, _STATUS) for field, lsb in register.positions()}
    link.ask(LinkCommand.WRITE_REGISTER, struct.pack("<II", _CONTROL.offset, bit["soft_reset"]))
    for _ in range(_RESETS):
        (status,) = struct.unpack("<I", link.ask(LinkCommand.READ_REGISTER, struct.pack("<I", _STATUS.offset)))
        if not status & bit["resetting"]:
            return
    raise DeviceError(f"{link.port}: the accelerator is still busy after a reset; power the board off and on")


_Command = tuple[LinkCommand, bytes]


def _exchange(link: Link, commands: Sequence[_Command]) -> Iterator[bytes]:
    return iter(list(link.exchange(commands)))


def _set(phase: int) -> _Command:
    return LinkCommand.WRITE_REGISTER, struct.pack("<II", _PHASE, phase)


def _write(address: int, data: U8) -> _Command:
    return LinkCommand.WRITE_MEMORY, struct.pack("<Q", address) + data.tobytes()


def _read(address: int) -> _Command:
    return LinkCommand.READ_MEMORY, struct.pack("<QH", address, _BLOCK_BYTES)


def _wrong_bits(expected: U8, answer: bytes) -> int:
    return int(np.unpackbits(expected ^ np.frombuffer(answer, np.uint8)).sum())
