"""The model of an SDR SDRAM chip for Python: it advances edge by edge, and its memory is an array."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
from collections import deque
from ctypes import POINTER, c_char_p, c_int64, c_uint16, c_uint32, c_void_p
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.atomic import new_file
from edgedec.errors import ToolError
from edgedec.host.paths import cache_folder
from edgedec.hw.isa.registers import CAPTURE_PHASES, NOMINAL_PHASE, PHASES_OF_A_CYCLE
from edgedec.hw.system.sdram.chip import SdramChip, SdramTimes
from edgedec.runtime.kernels.recipe import find_compiler

__all__ = ["FOLDER", "PhaseWindow", "SdramCounts", "SdramModel", "parameters"]

_SPOILT = 0x5AA5  # bits that are wrong in a word that is captured too early or too late
FOLDER = Path(__file__).resolve().parent
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion")
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgedec_sdram_open": (c_void_p, (POINTER(c_int64),)),
    "edgedec_sdram_close": (None, (c_void_p,)),
    "edgedec_sdram_words": (POINTER(c_uint16), (c_void_p,)),
    "edgedec_sdram_cycle": (c_int64, (c_void_p, POINTER(c_uint32))),
    "edgedec_sdram_violation": (c_char_p, (c_void_p,)),
    "edgedec_sdram_counts": (None, (c_void_p, POINTER(c_int64))),
}


def parameters(chip: SdramChip, times: SdramTimes) -> tuple[int, ...]:
    """Return the values in the order of struct Parameters in model.hpp."""
    return (chip.bank_bits, chip.row_bits, chip.column_bits, *astuple(times))


@dataclass(frozen=True, kw_only=True)
class SdramCounts:
    """Counts since power-up.

    Members:
        busy: number of cycles with a word on the data bus.
        ready: True if the mode was set.
    """

    cycles: int
    reads: int
    writes: int
    refreshes: int
    activates: int
    busy: int
    ready: bool


class SdramModel:
    """A chip in its state after power-up. Its memory holds zeros.

    Args:
        times: times in cycles of the clock; ``cycle`` is called for each edge.

    Members:
        contents: uint8 [chip.bytes]; column c of row r of bank k is word (k << row_bits | r) << column_bits | c.

    Raises:
        ToolError: there is no compiler, or it fails on the model.
    """

    def __init__(self, chip: SdramChip, times: SdramTimes) -> None:
        self._library = _load()
        values = parameters(chip, times)
        self._handle = self._library.edgedec_sdram_open((c_int64 * len(values))(*values))
        words = np.ctypeslib.as_array(self._library.edgedec_sdram_words(self._handle), (chip.bytes // 2,))
        self.contents: NDArray[np.uint8] = words.view(np.uint8)
        self._pins = (c_uint32 * 9)()

    def cycle(self, pins: tuple[int, ...]) -> int | None:
        """Advance by a rising edge.

        Args:
            pins: cke, ras_n, cas_n, we_n, bank, address, mask, data, and 1 if the controller drives the data.

        Returns:
            The word that the chip drives on the data bus until the next edge; None if it drives none.

        Raises:
            AssertionError: a rule was broken; the message names the rule, the bank and the cycle.
        """
        self._pins[:] = list(pins)
        word = self._library.edgedec_sdram_cycle(self._handle, self._pins)
        violation = self._library.edgedec_sdram_violation(self._handle)
        if violation:
            raise AssertionError(violation.decode())
        return None if word < 0 else int(word)

    def counts(self) -> SdramCounts:
        values = (c_int64 * 7)()
        self._library.edgedec_sdram_counts(self._handle, values)
        *numbers, ready = values
        return SdramCounts(
            **dict(zip(("cycles", "reads", "writes", "refreshes", "activates", "busy"), numbers, strict=True)),
            ready=bool(ready),
        )

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.edgedec_sdram_close(self._handle)
            self._handle = None


class PhaseWindow:
    """The pins of a chip at each quarter of a cycle, where its words arrive late and are valid for a time only.

    uart_harness.cpp has the same in C++.

    Args:
        good: phases of ``memory_phase`` at which a word is captured whole, at most PHASES_OF_A_CYCLE of them. At any other
            phase the bits are those of no word.

    Raises:
        ValueError: there are more good phases than a word can have, or phases that do not exist.
    """

    def __init__(self, good: range) -> None:
        if len(good) > PHASES_OF_A_CYCLE or good.start < NOMINAL_PHASE or good.stop > CAPTURE_PHASES or good.step != 1:
            raise ValueError(f"a word has at most {PHASES_OF_A_CYCLE} good phases from {NOMINAL_PHASE} on, not {good}")
        self._late, self._count = good.start - NOMINAL_PHASE, len(good)
        self._words = deque([0] * (CAPTURE_PHASES // PHASES_OF_A_CYCLE), maxlen=CAPTURE_PHASES // PHASES_OF_A_CYCLE)

    def __call__(self, word: int) -> int:
        """Take the word of a cycle and return the samples of that cycle, one beside the other as ``data_in`` has them."""
        self._words.appendleft(word)
        samples = 0
        for quarter in range(PHASES_OF_A_CYCLE):
            cycles, place = divmod(quarter - self._late, PHASES_OF_A_CYCLE)
            spoilt = 0 if place < self._count else _SPOILT
            samples |= (self._words[-cycles] ^ spoilt) << 16 * quarter
        return samples


@functools.cache
def _load() -> ctypes.CDLL:
    compiler = find_compiler()
    if compiler is None:
        raise ToolError("the SDRAM model has to be compiled, and there is no C++ compiler; install g++ or clang++")
    text = b"\0".join((FOLDER / name).read_bytes() for name in ("model.hpp", "api.cpp"))
    key = hashlib.sha256(text + "\0".join((*compiler, *_FLAGS)).encode()).hexdigest()[:16]
    output = cache_folder() / "sim" / f"sdram-{key}.so"
    if not output.exists():
        with new_file(output) as partial:
            command = [*compiler, *_FLAGS, "-shared", str(FOLDER / "api.cpp"), "-o", str(partial)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ToolError(f"{compiler[0]} fails on the SDRAM model:\n{done.stderr.strip()}")
    library = ctypes.CDLL(str(output))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
