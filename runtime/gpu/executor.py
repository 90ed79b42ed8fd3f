"""Run a program on a device: buffers, bind groups, and a pass as a flat list of native calls in one submission.

The calls of a pass depend on its numbers of rows only, so they are prepared once for each. A dispatch is then three calls of
wgpu-native's functions, without the checks of wgpu's Python objects, which take longer than the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.gpu.device import GpuDevice
from edgedec.runtime.gpu.program import GpuProgram, When

__all__ = ["UPLOAD_BYTES", "Executor", "RunningPass", "Wanted"]

UPLOAD_BYTES = 4 << 20  # bytes of constants that are on their way at a time
_PREPARED = 128  # numbers of rows whose calls are kept

Constants = Mapping[str, Callable[[], NDArray[Any]]]


@dataclass(frozen=True)
class Wanted:
    """Results that a pass copies to the host.

    Members:
        rows, results: n and r.
        top: True for the likeliest tokens of each row, False for whole rows of logits.
        sums: True for the sums of exponentials beside these tokens.
        taps: names of the values that are returned.
        again: True for further result rows of the last pass, whose rows are not computed again.
    """

    rows: int
    results: int
    top: bool = False
    sums: bool = False
    taps: tuple[str, ...] = ()
    again: bool = False


@dataclass(frozen=True)
class _Copy:
    """A copy of results to the buffer that the host maps."""

    name: str
    buffer: int
    nbytes: int
    offset: int
    shape: tuple[int, int]
    dtype: Any


class Executor:
    """A program with its memory on a device.

    Parameters:
        device: the device.
        program: the program.
        constants: makers of the contents of the constants, by name of the buffer.

    Members:
        program: the parameter of this name.
        dispatches: dispatches of the last submission.
        submissions: submissions so far.
        read_bytes: bytes that were copied to the host so far.
    """

    def __init__(self, device: GpuDevice, program: GpuProgram, constants: Constants) -> None:
        self.program, self._device = program, device
        self.dispatches = self.submissions = self.read_bytes = 0
        usage = device.usages.STORAGE | device.usages.COPY_SRC | device.usages.COPY_DST
        self._buffers: dict[int, Any] = {}
        self._staging: Any = None
        self._steps: list[tuple[When, Any, Any, Any]] = []
        self._calls: dict[tuple[int, int, int, bool, bool, bool], list[tuple[Any, Any, int, int, int]]] = {}
        self._running: RunningPass | None = None
        try:
            for constant in (True, False):  # memory of activations is there only when the uploads have ended
                for index, item in enumerate(program.buffers):
                    if (item.kind == "constant") == constant:
                        self._buffers[index] = device.buffer(item.name, item.nbytes, usage)
                        if constant:
                            self._upload(index, constants[item.name]())
            readback = device.usages.MAP_READ | device.usages.COPY_DST
            self._staging = device.buffer("readback", program.readback_bytes, readback)
            self._steps += self._prepare()
        except BaseException:
            self.close()  # whoever tries again with less finds the memory free
            raise

    def _upload(self, index: int, contents: NDArray[Any]) -> None:
        """Write a constant in steps, so that little of it is in the driver's own memory at a time."""
        queue, item = self._device.raw.queue, self.program.buffers[index]
        data = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
        if data.nbytes != item.nbytes:
            raise DeviceError(f"the constant {item.name} has {data.nbytes} bytes, the program says {item.nbytes}")
        with self._device.naming(f"the upload of {item.name}"):
            for start in range(0, data.nbytes, UPLOAD_BYTES):
                queue.write_buffer(self._buffers[index], start, data[start : start + UPLOAD_BYTES])
                queue.submit([])
                self._device.wait()

    def _prepare(self) -> list[tuple[When, Any, Any, Any]]:
        """Compile the kernels, equal ones once, and make the bind group of each step."""
        program, raw = self.program, self._device.raw
        pipelines = [
            self._device.pipeline(kernel.name, kernel.source, [binding.access for binding in kernel.bindings])
            for kernel in program.kernels
        ]
        steps = []
        for step in program.steps:
            pipeline = pipelines[step.kernel]
            with self._device.naming(f"the buffers of {step.name}"):
                group = raw.create_bind_group(
                    layout=pipeline.layout,
                    entries=[
                        {"binding": place, "resource": {"buffer": self._buffers[index], "offset": 0}}
                        for place, index in enumerate(step.buffers)
                    ],
                )
            steps.append((step.when, pipeline, group, program.kernels[step.kernel].groups))
        return steps

    def _calls_of(self, wanted: Wanted, pairs: int) -> list[tuple[Any, Any, int, int, int]]:
        """Return pipeline, bind group and workgroups of each dispatch, without those that have nothing to do."""
        rows, results, top = wanted.rows, wanted.results, wanted.top
        key = (rows, results, min(pairs, 1), top, wanted.sums, wanted.again)
        if key not in self._calls:
            if len(self._calls) == _PREPARED:
                del self._calls[next(iter(self._calls))]
            runs: dict[When, bool] = {
                "moves": pairs > 0,
                "pass": rows > 0 and not wanted.again,
                "results": results > 0,
                "top": top and results > 0,
                "sums": top and wanted.sums and results > 0,
            }
            calls = []
            for when, pipeline, group, groups in self._steps:
                x, y, z = groups.of(rows, results)
                if runs[when] and x and y and z:
                    calls.append((pipeline.raw._internal, group._internal, x, y, z))
            self._calls[key] = calls
        return self._calls[key]

    def write(self, buffer: int, data: NDArray[Any]) -> None:
        """Write the first bytes of an input, before the pass that is submitted next."""
        with self._device.naming(f"the input {self.program.buffers[buffer].name}"):
            self._device.raw.queue.write_buffer(self._buffers[buffer], 0, data)

    def submit(self, wanted: Wanted, pairs: int = 0) -> RunningPass:
        """Start a pass, or only moves of rows (``wanted.rows`` 0), whose inputs are written.

        Args:
            wanted: its rows and results.
            pairs: number of pairs in the buffer ``moves``.
        """
        if self._running is not None:
            self._running.arrays()  # its results are in the buffer that this pass overwrites
        calls = self._calls_of(wanted, pairs)
        copies = self._copies(wanted)
        self.dispatches = len(calls)
        self.submissions += 1
        self.read_bytes += sum(copy.nbytes for copy in copies)
        raw, began = self._device.raw, time.perf_counter()
        with self._device.naming("a pass"):
            encoder = raw.create_command_encoder()
            encode(encoder, calls)
            for copy in copies:
                if copy.nbytes:
                    encoder.copy_buffer_to_buffer(
                        self._buffers[copy.buffer], 0, self._staging, copy.offset, copy.nbytes
                    )
            raw.queue.submit([encoder.finish()])
            # A pass without results is mapped, too, so that whoever waits for it learns of its end, or of a lost device.
            promise = self._staging.map_async("READ_NOSYNC")
        self._running = RunningPass(self, promise, copies, began)
        return self._running

    def _copies(self, wanted: Wanted) -> list[_Copy]:
        program, r, end = self.program, wanted.results, 0
        parts: list[tuple[str, int, tuple[int, int], Any]] = []
        if r and wanted.top:
            parts += [("top_ids", program.top_ids, (r, program.top_k), np.int32)]
            parts += [("top_logits", program.top_logits, (r, program.top_k), np.float32)]
            if wanted.sums:
                parts += [("top_sums", program.top_sums, (r, 2 * program.sum_parts), np.uint32)]
        elif r:
            parts += [("logits", program.logits, (r, program.vocab), np.float32)]
        for name in wanted.taps:
            tap = program.taps[name]
            parts.append((name, tap.buffer, (r if tap.results else wanted.rows, tap.width), np.float32))
        copies = []
        for name, buffer, shape, dtype in parts:
            nbytes = 4 * shape[0] * shape[1]
            copies.append(_Copy(name, buffer, nbytes, end, shape, dtype))
            end += nbytes
        return copies

    def read(self, promise: Any, copies: Sequence[_Copy]) -> dict[str, NDArray[Any]]:
        """Wait for a pass and return copies of its results, by name.

        Raises:
            UsageError: the executor was closed meanwhile.
            DeviceError: the device was lost.
        """
        if self._staging is None:
            raise UsageError("the model was closed while a pass ran, whose results went with it; wait for them first")
        with self._device.naming("a pass"):
            promise.sync_wait()
            size = max(4, sum(copy.nbytes for copy in copies))
            data = np.frombuffer(self._staging.read_mapped(0, size), np.uint8)
            self._staging.unmap()
        return {
            copy.name: data[copy.offset : copy.offset + copy.nbytes].view(copy.dtype).reshape(copy.shape)
            for copy in copies
        }

    def done(self, running: RunningPass) -> None:
        """Note that the results of a pass were read."""
        if self._running is running:
            self._running = None

    def close(self) -> None:
        """Free the memory on the device. A second call does nothing."""
        self._calls.clear()
        self._steps.clear()
        while self._buffers:
            self._buffers.popitem()[1].destroy()
        if self._staging is not None:
            self._staging.destroy()
            self._staging = None


class RunningPass:
    """A pass that was submitted."""

    def __init__(self, executor: Executor, promise: Any, copies: Sequence[_Copy], began: float) -> None:
        self._executor, self._promise, self._copies, self._began = executor, promise, copies, began
        self._arrays: dict[str, NDArray[Any]] | None = None
        self._ended: float | None = None
        self._stamp(promise)

    def _stamp(self, promise: Any) -> None:
        """Note the time at which the device's thread resolves the promise, which may be long before anyone waits."""
        resolve = promise._wgpu_set_input

        def stamped(value: Any) -> None:
            self._ended = time.perf_counter()
            resolve(value)

        promise._wgpu_set_input = stamped
        if promise._state != "pending":
            self._ended = time.perf_counter()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Wait and return the results by name: ``logits``, or ``top_ids``, ``top_logits`` and ``top_sums``, and taps.

        Raises:
            DeviceError: the device was lost.
        """
        if self._arrays is None:
            self._arrays = self._executor.read(self._promise, self._copies)
        self._executor.done(self)
        return self._arrays

    @property
    def seconds(self) -> float:
        """Duration of the pass, once ``arrays`` was called."""
        return (self._ended or time.perf_counter()) - self._began


def encode(encoder: Any, calls: Sequence[tuple[Any, Any, int, int, int]]) -> None:
    """Encode one compute pass of some dispatches."""
    if not calls:
        return
    from wgpu.backends.wgpu_native import ffi, lib

    compute = encoder.begin_compute_pass()
    raw, null = compute._internal, ffi.NULL
    set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
    dispatch, last = lib.wgpuComputePassEncoderDispatchWorkgroups, None
    for pipeline, group, x, y, z in calls:
        if pipeline is not last:
            set_pipeline(raw, pipeline)
            last = pipeline
        set_group(raw, 0, group, 0, null)
        dispatch(raw, x, y, z)
    compute.end()
