"""An accelerator, lent to the compiled loop, which then submits passes and waits for them without Python.

Python's driver (``runtime/driver``) stays the definition, and does all else: it opens the device, reads prompts, exchanges
the rows of states, and says why a pass failed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_void_p
from dataclasses import dataclass
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
from edgedec.runtime.accelerator.lent_arguments import (
    COMMITTED,
    ESTIMATE,
    FETCH,
    FILES,
    FLUSH,
    FROM_DEVICE,
    READ,
    TO_DEVICE,
    WAIT_S,
    WRITE,
    AcceleratorArguments,
    PassFailure,
    register_places,
)
from edgedec.runtime.accelerator.lent_head import head_arguments
from edgedec.runtime.accelerator.program_state import ProgramState
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.driver.driver import Driver
from edgedec.runtime.loop.flight import Flight
from edgedec.runtime.loop.inputs import STORED, SUBMIT, WAIT, LoopInputs, TargetArguments, check_size
from edgedec.runtime.protocols import CostModel, State
from edgedec.schemes import EmbeddingWeight, FloatWeight, Int8Weight

__all__ = ["AcceleratorLender", "lender_of"]


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


@dataclass(frozen=True)
class _Unmoved:
    """A commit whose end was not seen, after ``start`` committed positions, and the error; None: it was Ctrl-C."""

    start: int
    error: Exception | None


class AcceleratorLender:
    """Lends an accelerator and its states to the compiled loop.

    The next pass is posted while a commit runs, and the round of the commit is read before either has ended. If the commit
    fails, the rows that it should have moved run again, and the next call says so.

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
        lent: the device is prepared for passes of the loop.
    """

    flight: ref[Flight] | None = None
    frees_host = True
    lent = False

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
        self._unmoved: _Unmoved | None = None  # a commit that the last call has left
        self._unsaid: Exception | None = None  # error of a commit whose rows were already read

    def own(self, state: State) -> ProgramState | None:
        """Return the state of a sequence; None if it is not one of this target."""
        return state if isinstance(state, ProgramState) and state.owner is self._owner else None

    def joins(self, texts: int, *, guesses: bool) -> bool:
        """Return whether a pass may have rows of so many texts: of several, if no rows of theirs have to be moved."""
        return texts == 1 or (
            not guesses and texts <= min(self._driver.program.config.sequences, len(self._driver.parts))
        )

    @property
    def top_k(self) -> int:
        """Likeliest tokens of a row that passes can return in the place of whole rows."""
        return self._driver.program.config.top_k

    def want(self, top_k: int) -> None:
        """Let passes return the ``top_k`` likeliest tokens of each row; 0: whole rows."""
        self.arguments.likeliest = top_k

    def lend(self) -> None:
        """Prepare for passes of the loop over the selected part of the cache, and over those of earlier calls.

        Raises:
            DeviceError: the device cannot be brought to rest; or a commit of the last call has failed.
        """
        unsaid, self._unsaid, self._unmoved = self._unsaid, None, None
        if unsaid is not None:
            raise unsaid
        self._driver.lend()
        arguments = self.arguments
        if arguments.quiet:
            arguments.quiet = 0
            self._driver.missed_interrupt()
        self._rows.lend()
        arguments.written = arguments.slots  # Python's passes have written to all of them
        arguments.pending, arguments.failure, self._raised = 0, PassFailure.NONE, None
        self.lent = True

    def take_back(self, length: int) -> Counters | None:
        """Give the selected part back to Python's driver, with ``length`` committed positions.

        If one of them was not moved, the driver has those before it.

        Returns:
            What was done on the device since the last time; None: nothing, as after the first of several texts.
        """
        self._driver.returned(length)
        unmoved = self._unmoved
        if unmoved is not None and unmoved.start < length:
            self._driver.truncate(unmoved.start)
            self._unsaid = unmoved.error
        before, done = self._before, self.arguments
        if (done.passes, done.commits) == (before.passes, before.commits):
            return None
        self._before = _work(done)
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
            "groups": np.zeros(slots, np.int32),
            "logits": self._rows.lend(),
            "found_ids": np.zeros((slots, self.top_k), np.int32),
        }
        results = np.zeros(slots, np.int64)
        self._sequences = arrays["sequences"]
        own = self._arguments = self._own_arguments(arrays)
        address, function = ctypes.addressof(own), self._library.function
        table, stored, scales = _stored(self._embedding)
        arguments = TargetArguments(
            width=width,
            row_positions=arrays["positions"].ctypes.data,
            result_rows=results.ctypes.data,
            **{name: arrays[name].ctypes.data for name in ("visible", "sequences", "logits", "found_ids")},
            table=arrays["groups"].ctypes.data,
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
            settle=ctypes.cast(function("edgedec_loop_accelerator_settle"), c_void_p),
        )
        check_size(self._library, 6, AcceleratorArguments)
        self._library.check(function("edgedec_loop_accelerator_check")(address))
        return LoopInputs(
            arguments=arguments,
            pass_error=self._failed,
            move_error=self._failed,
            logits=arrays["logits"],
            after_call=self._after_call,
            alive=(*arrays.values(), results, own, table, scales),
        )

    def _own_arguments(self, arrays: dict[str, NDArray[Any]]) -> AcceleratorArguments:
        driver, program, config = self._driver, self._driver.program, self._driver.program.config
        inputs, outputs = driver.regions["input"], driver.regions["output"]
        inputs.array[:] = 0  # the bytes of slots without a row
        angles, starts = _angles(driver)
        places = _places(program)
        arguments = AcceleratorArguments(
            **{name: array.ctypes.data for name, array in arrays.items()},
            **register_places(several=config.sequences > 1),
            group_positions=config.kv_layout.positions,
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
            arguments.estimate = ESTIMATE(self._cost.seconds)
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
            arguments.read = READ(self._calling(device.read_register))
            arguments.write = WRITE(self._calling(device.write_register))
            arguments.wait = WAIT_S(self._calling(device.wait))
        output = regions["output"].buffer
        for buffer, name, direction in (
            (regions["input"].buffer, "flush", TO_DEVICE),
            (output, "fetch", FROM_DEVICE),
        ):
            settings = access.cache(buffer)
            files = getattr(arguments, f"{name}_files")
            files.action = -1
            if isinstance(settings, CacheSettings):
                action = settings.for_device if direction == TO_DEVICE else settings.for_cpu
                for file, number in zip(
                    FILES, (settings.offset, settings.size, settings.direction, action), strict=True
                ):
                    setattr(files, file, number)
                files.start, files.value = settings.start, direction
            elif settings == "instructions" and self._library.function("edgedec_loop_cache_instructions")():
                arguments.cache_instructions = 1
                buffer.flush()  # no line stays that would be written over results when it is discarded
            elif settings != "coherent" and name == "flush":
                arguments.flush = FLUSH(self._calling(buffer.flush))
            elif settings != "coherent":
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
        pending = self.arguments.pending
        moves = bool(pending & COMMITTED)
        # The rounds of an interrupted call are lost, and rings lack the rows that these have replaced.
        longest = 0 if interruption is None and not moves else int(self._sequences[0].sum())
        self._driver.left("committed" if moves else "done" if pending else "", longest)
        if moves:
            self._unmoved = _Unmoved(self.arguments.moved_after, None if interruption else self._failure())
        if interruption is not None:
            self._driver.truncate(self._driver.length)  # to nothing, if a ring lacks these rows
            self._raised = None
            raise interruption

    def _failed(self) -> str:
        """Raise the error of the last pass or commit."""
        raise self._failure()

    def _failure(self) -> Exception:
        """Return the error of the last pass or commit."""
        if isinstance(self._raised, Exception):
            return self._raised
        driver, failure = self._driver, self.arguments.failure
        if failure == PassFailure.IDS:
            ids = f"0..{driver.program.host.vocab - 1}"
            return DeviceError(f"the accelerator gave ids outside of {ids}; reset it, or load the program again")
        if failure == PassFailure.CALLED:
            return DeviceError(f"{driver.device.name}: the settings of its memory cannot be written; run as root")
        try:
            if failure == PassFailure.OWNER:
                return DeviceError(driver.taken_text())
            if failure == PassFailure.ERROR:
                return DeviceError(driver.error_text())
            driver.registers.write_fields("control", latch_counters=1)
            # A pass whose counters began with a commit's has a finished round before it, and is then not reported.
            issued = driver.registers.read("counter_descriptors")
            return DeviceError(driver.timeout_text(issued, failure == PassFailure.IDLE))
        except DeviceError as error:  # the registers cannot be read
            return error


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
