"""An accelerator, lent to the compiled loop, which then submits passes and waits for them without Python.

Python's driver (``runtime/driver``) stays the definition, and does all else: it opens the device, reads prompts, exchanges
the rows of states, and says why a pass failed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_double, c_int64, c_void_p
from enum import IntEnum
from functools import cached_property
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from edgedec.device import CacheSettings, LoopAccess
from edgedec.errors import DeviceError
from edgedec.hw.compiler.program import Program
from edgedec.hw.isa.instructions import Destination
from edgedec.hw.isa.output_layout import ROWS_OFFSET
from edgedec.hw.isa.registers import COUNTS, REGISTER_MAP
from edgedec.hw.isa.striping import physical_address
from edgedec.reference.integer_profile.numbers import WIDE_BITS, largest
from edgedec.reference.integer_profile.tables import rotary
from edgedec.runtime import loop
from edgedec.runtime.accelerator.float_logits import SparseRows
from edgedec.runtime.accelerator.lent_head import HeadRowArguments, head_arguments
from edgedec.runtime.accelerator.program_state import ProgramState
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.driver.regions import OWNER_REGISTER
from edgedec.runtime.loop.flight import Flight
from edgedec.runtime.loop.inputs import STORED, SUBMIT, WAIT, LoopInputs, TargetArguments, check_size, members
from edgedec.runtime.protocols import CostModel, State
from edgedec.schemes import EmbeddingWeight, FloatWeight, Int8Weight

__all__ = ["FETCH", "AcceleratorArguments", "AcceleratorLender", "lender_of"]

_MOST_TURNS = 2
_READ, _WRITE = CFUNCTYPE(c_int64, c_int64), CFUNCTYPE(c_int64, c_int64, c_int64)
_ESTIMATE = CFUNCTYPE(c_double, c_int64, c_int64)
_WAIT, _FLUSH, FETCH = CFUNCTYPE(c_int64, c_double), CFUNCTYPE(c_int64), CFUNCTYPE(c_int64, c_int64, c_int64)
_FILES = ("offset", "size", "direction", "action")
_TO_DEVICE, _FROM_DEVICE = 1, 2  # values of the setting of the direction


def _bit(register: str, field: str) -> int:
    return next(1 << lsb for one, lsb in REGISTER_MAP[register].positions() if one.name == field)


_EVENTS = {_bit("interrupt_status", name): name for name in ("done", "committed")}


class _Failure(IntEnum):
    """``PassFailure`` of accelerator.hpp."""

    NONE = 0
    CALLED = 1
    OWNER = 2
    ERROR = 3
    SILENT = 4
    IDLE = 5
    IDS = 6


class _CacheFiles(ctypes.Structure):
    """``CacheFiles`` of accelerator.hpp."""

    _fields_ = members(c_int64, *_FILES, "start", "value")


class AcceleratorArguments(ctypes.Structure):
    """``AcceleratorArguments`` of accelerator.hpp."""

    _fields_ = (
        *members(c_void_p, "embed", "positions", "visible", "sequences", "logits", "found_ids"),
        *(("found", c_int64), ("seconds", c_double), ("registers", c_void_p)),
        *(("read", _READ), ("write", _WRITE), ("wait", _WAIT), ("flush", _FLUSH), ("fetch", FETCH)),
        *(("flush_files", _CacheFiles), ("fetch_files", _CacheFiles)),
        *members(c_double, "poll_seconds", "patience_seconds", "clock_hz"),
        *members(c_int64, "owner_at", "parameters_at", "position_at", "mask_at", "commit_slots_at"),
        *members(c_int64, "control_at", "status_at", "events_at", "counters_at"),
        *members(c_int64, "committed_shift", "logits_shift", "start_bit", "commit_bit", "latch_bit", "busy_bits"),
        *members(c_int64, "done_bit", "error_bit", "committed_bit", "owner"),
        *members(c_void_p, "input", "places"),
        *members(c_int64, "input_bytes", "port_bytes", "slots", "width", "item_bytes"),
        *(("rows_start", c_int64), *members(c_double, "scale", "per_unit", "most")),
        *(("angles", c_void_p * _MOST_TURNS), ("angles_start", c_int64 * _MOST_TURNS)),
        *members(c_int64, "turns", "pairs"),
        *(("output", c_void_p), *members(c_int64, "top_k", "vocab", "ids", "logit_exponent", "rows_at", "row_bytes")),
        *(("likeliest", c_int64), ("head", HeadRowArguments), ("estimate", _ESTIMATE)),
        *(*members(c_int64, "passes", "rows", "commits"), ("busy_seconds", c_double)),
        ("counters", c_int64 * len(COUNTS)),
        *members(c_int64, "accesses", "quiet", "pending", "failure", "written"),
    )


def _work(arguments: AcceleratorArguments) -> Counters:
    """Return what the library has done on the device so far."""
    counts = dict(zip(COUNTS, arguments.counters, strict=True))
    del counts["descriptors"]
    return Counters(
        passes=arguments.passes,
        commits=arguments.commits,
        rows=arguments.rows,
        seconds=arguments.busy_seconds,
        **counts,
    )


class AcceleratorLender:
    """Lends an accelerator and its states to the compiled loop.

    Parameters:
        library: the compiled loop.
        driver: the driver of the device.
        access: the way in which the loop reaches the device.
        embedding: the table of embeddings.
        ids: number of the tokenizer's ids.
        cost: seconds of passes of a device without a clock; None: it has one.
        owner: owner of the states of the target.
        rows: memory for the logits of a pass.

    Members:
        flight: the rounds that run on the device now; None: there are none.
    """

    flight: ref[Flight] | None = None
    alone = True

    def __init__(
        self,
        library: loop.Loop,
        driver: Driver,
        access: LoopAccess,
        embedding: EmbeddingWeight,
        *,
        ids: int,
        cost: CostModel | None,
        owner: object,
        rows: SparseRows,
    ) -> None:
        self._library, self._driver, self._access, self._embedding = library, driver, access, embedding
        self._ids, self._cost, self._owner, self._rows = ids, cost, owner, rows
        self._arguments: AcceleratorArguments | None = None
        self._before = Counters()
        self._raised: BaseException | None = None

    def own(self, state: State) -> ProgramState | None:
        """Return the state of a sequence; None if it is not one of this target."""
        return state if isinstance(state, ProgramState) and state.owner is self._owner else None

    @property
    def top_k(self) -> int:
        """Likeliest tokens of a row that passes can return in the place of whole rows."""
        return self._driver.program.config.top_k

    def want(self, top_k: int) -> None:
        """Let passes return the ``top_k`` likeliest tokens of each row; 0: whole rows."""
        self.arguments.likeliest = top_k

    def lend(self) -> None:
        """Prepare for passes of the loop. The device has the rows of the state that they follow.

        Raises:
            DeviceError: the device cannot be brought to rest.
        """
        self._driver.lend()
        arguments = self.arguments
        if arguments.quiet:
            arguments.quiet = 0
            self._driver.missed_interrupt()
        self._rows.lend()
        arguments.written = arguments.slots  # Python's passes have written to all of them
        arguments.failure, self._raised = _Failure.NONE, None

    def take_back(self, length: int) -> Counters:
        """Give the device back to Python's driver, with ``length`` committed positions. Return what was done on it."""
        self._driver.returned(length)
        before, self._before = self._before, _work(self.arguments)
        return self._before - before

    @cached_property
    def arguments(self) -> AcceleratorArguments:
        """The arguments of the library's functions."""
        self.inputs  # noqa: B018  it makes them
        assert self._arguments is not None
        return self._arguments

    @cached_property
    def inputs(self) -> LoopInputs:
        """The inputs and outputs of passes."""
        program, slots = self._driver.program, self._driver.program.config.slots
        vocab, width = program.host.vocab, program.host.hidden
        arrays: dict[str, NDArray[Any]] = {
            "embed": np.zeros((slots, width)),
            "positions": np.zeros(slots, np.int64),
            "visible": np.zeros(slots, np.uint64),
            "sequences": np.zeros((slots, 2), np.int64),
            "logits": self._rows.lend(),
            "found_ids": np.zeros((slots, self.top_k), np.int32),
        }
        tables, results = np.zeros((1, 1), np.int32), np.zeros(slots, np.int64)
        self._sequences = arrays["sequences"]
        own = self._arguments = self._own_arguments(arrays)
        address, function = ctypes.addressof(own), self._library.function
        table, stored, scales = _stored(self._embedding)
        arguments = TargetArguments(
            width=width,
            row_positions=arrays["positions"].ctypes.data,
            result_rows=results.ctypes.data,
            **{name: arrays[name].ctypes.data for name in ("visible", "sequences", "logits", "found_ids")},
            table=tables.ctypes.data,
            vocab=vocab,
            rows=slots,
            submit=ctypes.cast(function("edgedec_loop_accelerator_submit"), SUBMIT),
            wait=ctypes.cast(function("edgedec_loop_accelerator_wait"), WAIT),
            session=address,
            stored=STORED.index(stored),
            scales=None if scales is None else scales.ctypes.data,
            stored_rows=table.ctypes.data,
            wide_embed=arrays["embed"].ctypes.data,
            block_rows=program.config.context,
            kinds=1,
            table_stride=1,
            block_stride=1,
            move=ctypes.cast(function("edgedec_loop_accelerator_move"), c_void_p),
            cache=address,
            found=address + AcceleratorArguments.found.offset,
            seconds=address + AcceleratorArguments.seconds.offset,
        )
        check_size(self._library, 6, AcceleratorArguments)
        self._library.check(function("edgedec_loop_accelerator_check")(address))
        return LoopInputs(
            arguments=arguments,
            pass_error=self._failed,
            move_error=self._failed,
            logits=arrays["logits"],
            after_call=self._after_call,
            alive=(*arrays.values(), tables, results, own, table, scales),
        )

    def _own_arguments(self, arrays: dict[str, NDArray[Any]]) -> AcceleratorArguments:
        driver, program, config = self._driver, self._driver.program, self._driver.program.config
        inputs, outputs = driver.regions["input"], driver.regions["output"]
        inputs.array[:] = 0  # the bytes of slots without a row
        angles, starts = _angles(driver)
        places = _places(program)
        arguments = AcceleratorArguments(
            **{name: array.ctypes.data for name, array in arrays.items()},
            **_register_places(),
            poll_seconds=self._access.poll_s,
            patience_seconds=driver.max_cycles / driver.device.clock_hz,
            clock_hz=driver.device.clock_hz,
            owner=outputs.address,
            input=inputs.array.ctypes.data,
            input_bytes=inputs.array.size,
            places=places.ctypes.data,
            port_bytes=config.port_bytes,
            slots=config.slots,
            width=program.host.hidden,
            item_bytes=1 << (4 * config.slots - 1).bit_length(),
            rows_start=program.input_offsets(Destination.LOAD)[0],
            scale=program.host.embedding_scale,
            per_unit=2.0**program.host.residual_fraction,
            most=float(largest(WIDE_BITS)),
            turns=len(angles),
            pairs=config.head_dim // 2,
            output=outputs.array.ctypes.data,
            top_k=config.top_k,
            vocab=program.host.vocab,
            ids=self._ids,
            logit_exponent=program.host.logit_exponent,
            rows_at=ROWS_OFFSET,
            row_bytes=program.row_bytes,
        )
        if self._cost is not None:
            arguments.estimate = _ESTIMATE(self._cost.seconds)
        for at, (table, start) in enumerate(zip(angles, starts, strict=True)):
            arguments.angles[at], arguments.angles_start[at] = table.ctypes.data, start
        arguments.head, alive = head_arguments(driver.host)
        arguments.logit_exponent -= arguments.head.coarser
        self._alive = (*angles, places, *alive)
        self._reach_device(arguments)
        return arguments

    def _reach_device(self, arguments: AcceleratorArguments) -> None:
        """Set the functions, or the memory, through which the loop reaches the device."""
        access, device, regions = self._access, self._driver.device, self._driver.regions
        if access.registers is not None and access.registers.nbytes >= REGISTER_MAP.bytes:
            arguments.registers = access.registers.ctypes.data
        else:
            arguments.read = _READ(self._calling(device.read_register))
            arguments.write = _WRITE(self._calling(device.write_register))
            arguments.wait = _WAIT(self._calling(device.wait))
        output = regions["output"].buffer
        for buffer, name, direction in (
            (regions["input"].buffer, "flush", _TO_DEVICE),
            (output, "fetch", _FROM_DEVICE),
        ):
            settings = access.cache(buffer)
            files = getattr(arguments, f"{name}_files")
            files.action = -1
            if isinstance(settings, CacheSettings):
                action = settings.for_device if direction == _TO_DEVICE else settings.for_cpu
                for file, number in zip(
                    _FILES, (settings.offset, settings.size, settings.direction, action), strict=True
                ):
                    setattr(files, file, number)
                files.start, files.value = settings.start, direction
            elif settings is None and name == "flush":
                arguments.flush = _FLUSH(self._calling(buffer.flush))
            elif settings is None:
                arguments.fetch = FETCH(self._calling(output.invalidate))

    def _calling(self, function: Callable[..., object]) -> Callable[..., int]:
        """Return a function for the loop, which returns -1 after an exception and keeps it."""

        def called(*values: float) -> int:
            try:
                return int(function(*values) or 0)  # type: ignore[call-overload, no-any-return]
            except BaseException as error:
                self._raised = error
                return -1

        return called

    def _after_call(self) -> None:
        """Tell the driver what runs, and raise what has interrupted the call, such as Ctrl-C. ``_failed`` raises errors."""
        interruption = None if isinstance(self._raised, Exception) else self._raised
        # The rounds of an interrupted call are lost, and rings lack the rows that these have replaced.
        longest = 0 if interruption is None else int(self._sequences[0].sum())
        self._driver.left(_EVENTS.get(self.arguments.pending, ""), longest)
        if interruption is not None:
            self._driver.truncate(self._driver.length)  # to nothing, if a ring lacks these rows
            self._raised = None
            raise interruption

    def _failed(self) -> str:
        """Raise the error of the last pass or commit."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        driver, failure = self._driver, self.arguments.failure
        if failure == _Failure.OWNER:
            raise DeviceError(driver.taken_text())
        if failure == _Failure.ERROR:
            raise DeviceError(driver.error_text())
        if failure == _Failure.IDS:
            ids = f"0..{driver.program.host.vocab - 1}"
            raise DeviceError(f"the accelerator gave ids outside of {ids}; reset it, or load the program again")
        if failure == _Failure.CALLED:
            raise DeviceError(f"{driver.device.name}: the settings of its memory cannot be written; run as root")
        driver.registers.write_fields("control", latch_counters=1)
        issued = driver.registers.read("counter_descriptors")
        raise DeviceError(driver.timeout_text(issued, failure == _Failure.IDLE))


def lender_of(
    driver: Driver, embedding: EmbeddingWeight, *, ids: int, cost: CostModel | None, owner: object, rows: SparseRows
) -> AcceleratorLender | None:
    """Return what lends a driver's device to the compiled loop; None if the loop cannot use it.

    Args:
        driver, embedding, ids, cost, owner, rows: parameters of ``AcceleratorLender``.
    """
    access, library, facts = getattr(driver.device, "loop_access", None), loop.load(), driver.program.host
    if access is None or library is None or facts.logits_cap is not None:
        return None
    if not isinstance(embedding, (Int8Weight, FloatWeight)):
        return None  # trits are in memory one by one, and the loop reads planes
    return AcceleratorLender(library, driver, access, embedding, ids=ids, cost=cost, owner=owner, rows=rows)


def _stored(embedding: EmbeddingWeight) -> tuple[NDArray[Any], str, NDArray[np.float32] | None]:
    """Return a table of embeddings, the name of its type, and the scales of its rows."""
    if isinstance(embedding, Int8Weight):
        return np.ascontiguousarray(embedding.codes), "int8", np.ascontiguousarray(embedding.scale, np.float32)
    assert isinstance(embedding, FloatWeight), "``lender_of`` has said so"
    return np.ascontiguousarray(embedding.values), embedding.values.dtype.name, None


def _places(program: Program) -> NDArray[np.int32]:
    """Return the offset in memory of each piece of a port in the input buffer, int32 [pieces]."""
    ports, size = program.config.ports, program.config.port_bytes
    pieces = range(0, program.input_bytes, size)
    return np.array([physical_address(piece, ports=ports, port_bytes=size) for piece in pieces], np.int32)


def _angles(driver: Driver) -> tuple[list[NDArray[np.int16]], tuple[int, ...]]:
    """Return the tables of angles, int16 [positions, pairs, 2], and where they begin in the input buffer."""
    program, facts, pairs = driver.program, driver.program.host, driver.program.config.head_dim // 2
    turns = [(facts.inverse_frequencies, facts.magnitude), (facts.second_frequencies, facts.second_magnitude)]
    context = np.arange(program.config.context, dtype=np.int32)
    tables = [
        np.stack(rotary(context, frequencies, magnitude, pairs=pairs), axis=2).astype(np.int16)
        for frequencies, magnitude in turns
        if frequencies
    ]
    return tables, program.input_offsets(Destination.ANGLES) if tables else ()


def _register_places() -> dict[str, int]:
    """Return the places of the registers, and the bits of their fields."""
    offsets = REGISTER_MAP.offsets()
    places = {
        "owner_at": OWNER_REGISTER,
        "parameters_at": "pass_parameters",
        "position_at": "position",
        "mask_at": "mask",
        "commit_slots_at": "commit_slots",
        "control_at": "control",
        "status_at": "status",
        "events_at": "interrupt_status",
        "counters_at": f"counter_{COUNTS[0]}",
    }
    shifts = {field.name: lsb for field, lsb in REGISTER_MAP["pass_parameters"].positions()}
    return {name: offsets[register] for name, register in places.items()} | {
        "committed_shift": shifts["committed"],
        "logits_shift": shifts["logits"],
        "start_bit": _bit("control", "start") | _bit("control", "clear_counters"),
        "commit_bit": _bit("control", "commit") | _bit("control", "clear_counters"),
        "latch_bit": _bit("control", "latch_counters"),
        "busy_bits": _bit("status", "busy") | _bit("status", "error"),
        "done_bit": _bit("interrupt_status", "done"),
        "error_bit": _bit("interrupt_status", "error"),
        "committed_bit": _bit("interrupt_status", "committed"),
    }
