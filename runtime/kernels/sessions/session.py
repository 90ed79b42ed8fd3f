"""Sessions that the kernels' library runs (session.hpp), so that the compiled loop runs their passes without Python.

A model whose operations are all the project's own is a program, which the library runs by itself. Other models are run by
the ONNX Runtime of the Python package, through its C interface.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from edgedec.errors import DeviceError
from edgedec.onnx.fusion import FusedProgram
from edgedec.runtime.base.native_library import Functions
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.sessions.registration import register

__all__ = ["RESULTS", "ROWS", "WORDS", "KernelSession", "Memory"]

ROWS, RESULTS, WORDS = -1, -2, -3  # sizes that differ from run to run, as in session.hpp
_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "float16": 10,
}  # numbers of ElementType of shape.hpp
_DIMS = 4  # dimensions of a tensor at most
_FUNCTIONS: Functions = {
    "edgedec_session_argument_size": (c_int64, (c_int64,)),
    "edgedec_session_error": (c_char_p, ()),
    "edgedec_session_open": (c_void_p, (c_char_p, c_int64, c_void_p)),
    "edgedec_session_open_directly": (c_void_p, (c_char_p, c_int64, c_void_p)),
    "edgedec_session_close": (None, (c_void_p,)),
    "edgedec_session_bind": (c_int32, (c_void_p, c_void_p, c_int64, c_void_p, c_int64)),
    "edgedec_session_run": (c_int32, (c_void_p, c_int64, c_int64)),
    "edgedec_session_end_profile": (c_char_p, (c_void_p,)),
}


class SessionTensor(ctypes.Structure):
    """``SessionTensor`` of session.hpp."""

    _fields_ = (
        *(("name", c_char_p), ("data", c_void_p), ("bytes", c_int64), ("type", c_int64), ("rank", c_int64)),
        ("dims", c_int64 * _DIMS),
    )


class SessionOptions(ctypes.Structure):
    """``SessionOptions`` of session.hpp."""

    _fields_ = (
        *(("folder", c_char_p), ("profile", c_char_p), ("threads", c_int64)),
        *(("initializers", c_void_p), ("initializer_count", c_int64), ("fused", c_int64)),
    )


class Memory(NamedTuple):
    """The memory of an input or output.

    Members:
        array: C-contiguous, with room for the largest run.
        dims: the dimensions, among which ``ROWS``, ``RESULTS`` and ``WORDS`` (64-bit words of a row of a mask of ``ROWS``
            bits) stand for the sizes of a run.
    """

    array: NDArray[Any]
    dims: tuple[int, ...]


class KernelSession:
    """A session on the CPU with the project's operators.

    Parameters:
        kernels: the library.
        model: a program, or the bytes of an ONNX model.
        threads: number of threads of a run of ONNX Runtime; 0: it chooses it. A program has its own number.
        folder: folder of the weights that the model has in files.
        initializers: weights by name, C-contiguous, which are used where they are.
        fused: True if all nodes of the project's operators are fused ones, so that the session takes less memory.
        profile: beginning of the name of the file for ONNX Runtime's profiler; None: it is off.

    Members:
        direct: True if the library runs the session without ONNX Runtime.
        address: the session, the first argument of ``run_function``.
        run_function: address of a C function ``int32 run(void* session, int64 rows, int64 results)``, which runs the
            session on its memory and returns 0, or -1 after an error.

    Raises:
        DeviceError: ONNX Runtime cannot load the library.
        RuntimeError: the model cannot be loaded.
        ToolError: the model needs ONNX Runtime, which is not installed.
    """

    def __init__(
        self,
        kernels: Kernels,
        model: FusedProgram | bytes,
        *,
        threads: int,
        folder: Path,
        initializers: Mapping[str, NDArray[Any]],
        fused: bool = False,
        profile: Path | None = None,
    ) -> None:
        self._library = kernels.declared(_FUNCTIONS)
        for kind, structure in enumerate((SessionTensor, SessionOptions)):
            size = self._library.edgedec_session_argument_size(kind)
            if size != ctypes.sizeof(structure):
                raise DeviceError(f"{kernels.path} takes arguments of {size} bytes, not {ctypes.sizeof(structure)}")
        self._initializers = dict(initializers)  # kept alive, because the session uses their memory
        self._memory: tuple[Memory, ...] = ()
        tensors = _tensors({name: Memory(array, array.shape) for name, array in initializers.items()})
        options = SessionOptions(
            folder=os.fsencode(folder),
            profile=None if profile is None else os.fsencode(profile),
            threads=threads,
            initializers=ctypes.addressof(tensors),
            initializer_count=len(tensors),
            fused=fused,
        )
        self.direct = isinstance(model, FusedProgram)
        if isinstance(model, FusedProgram):
            assert profile is None, "only sessions of ONNX Runtime have a profile"
            open_it, data = self._library.edgedec_session_open_directly, model.record
        else:
            from edgedec.host.ort import (
                onnxruntime as ort,  # its import takes longer than all of a small model's loading
            )

            register(ort.SessionOptions(), kernels)  # gives ONNX Runtime's interface to the library
            open_it, data = self._library.edgedec_session_open, model
        address = open_it(data, len(data), ctypes.addressof(options))
        if address is None:
            raise RuntimeError(self.error)
        self.address: int = address
        self.run_function = kernels.address("edgedec_session_run")
        # At the end of the process, a thread may be in a run.
        weakref.finalize(self, self._library.edgedec_session_close, address).atexit = False

    @property
    def error(self) -> str:
        """The message of the last error of this thread."""
        message: bytes = self._library.edgedec_session_error()
        return message.decode(errors="replace")

    def bind(self, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> None:
        """Set the memory of inputs and outputs by name for all runs that follow.

        Inputs that the model does not have are left out.
        """
        memory = (*inputs.values(), *outputs.values())
        self._memory = (*self._memory, *memory)  # an interruption may come before or after the library's call
        lists = _tensors(inputs), _tensors(outputs)
        arguments = [argument for one in lists for argument in (ctypes.addressof(one), len(one))]
        self._checked(self._library.edgedec_session_bind(self.address, *arguments))
        self._memory = memory

    def run(self, rows: int, results: int) -> None:
        """Run the session with ``rows`` rows, of which ``results`` have results.

        Raises:
            RuntimeError: the run fails, or there is no profile.
        """
        self._checked(self._library.edgedec_session_run(self.address, rows, results))

    def end_profiling(self) -> str:
        """End the profile and return the name of its file.

        Raises:
            RuntimeError: the run fails, or there is no profile.
        """
        path: bytes | None = self._library.edgedec_session_end_profile(self.address)
        if path is None:
            raise RuntimeError(self.error)
        return path.decode()

    def _checked(self, result: int) -> None:
        if result:
            raise RuntimeError(self.error)


def _tensors(memory: Mapping[str, Memory]) -> ctypes.Array[SessionTensor]:
    return (SessionTensor * len(memory))(
        *(
            SessionTensor(
                name=name.encode(),
                data=array.ctypes.data,
                bytes=array.nbytes,
                type=_TYPES[array.dtype.name],
                rank=len(dims),
                dims=(c_int64 * _DIMS)(*dims),
            )
            for name, (array, dims) in memory.items()
        )
    )
