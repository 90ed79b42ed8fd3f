"""The CPU kernels: loading of their library, and calls of its C functions.

The library is optional. If it is missing or fails its self-test, ``load`` returns None and logs one line, and models run
with the portable graph of standard operators.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.environment import KERNEL
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.host.install_hint import install_again, is_installed
from edgedec.runtime.base.native_library import Functions, declare, open_library
from edgedec.runtime.kernels.recipe import LIBRARY
from edgedec.schemes import TernaryScheme

__all__ = ["CODE_PATHS", "KERNEL_NAMES", "PORTABLE", "Kernels", "load", "without_kernels"]

CODE_PATHS = (
    "amx",
    "avx512vnni",
    "avx2",
    "neon_i8mm",
    "neon_dotprod",
    "neon",
    "scalar",
)  # names of kPaths in dispatch.cpp
PORTABLE = "portable"  # name of the graph of standard operators, without kernels
KERNEL_NAMES = (*CODE_PATHS, PORTABLE)  # names in EDGEDEC_KERNEL, the log, `doctor` and JSON
_ABI = 19  # value of edgedec_abi() in api.cpp
_TILE_ROWS = 16  # kTileRows of ternary.hpp
_LOG = logging.getLogger(__name__)

_SIZES = (c_int64, c_int64, c_int32, c_int32)  # outputs, inputs, planes, group_size
_CACHE = (c_int64, c_int64, c_int64, c_int32)  # kv_heads, head_dim, positions, bits
_FUNCTIONS: Functions = {
    "edgedec_abi": (c_int32, ()),
    "edgedec_error": (c_char_p, ()),
    "edgedec_path": (c_char_p, ()),
    "edgedec_path_usable": (c_int32, (c_char_p,)),
    "edgedec_ternary_bytes": (c_int64, (*_SIZES, c_int32)),
    "edgedec_ternary_pack": (c_int32, (*(c_void_p,) * 2, c_int64, *_SIZES, c_int32, *(c_int64,) * 2, c_void_p)),
    "edgedec_quantize": (c_int32, (c_char_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p)),
    "edgedec_hadamard": (c_int32, (c_char_p, c_void_p, c_void_p, c_int64, c_int64, c_int32, c_void_p)),
    "edgedec_ternary_matmul": (
        c_int32,
        (c_char_p, *_SIZES, c_int32, *(c_void_p,) * 4, c_int32, c_int64, c_void_p, c_int64, c_int64, c_void_p),
    ),
    "edgedec_int8_matmul": (
        c_int32,
        (c_char_p, *(c_int64,) * 2, c_int32, *(c_void_p,) * 4, c_int64, c_void_p, *(c_int64,) * 2, c_void_p),
    ),
    "edgedec_grid_bytes": (c_int64, (*(c_int64,) * 2, *(c_int32,) * 3)),
    "edgedec_grid_matmul": (
        c_int32,
        (c_char_p, *(c_int64,) * 2, *(c_int32,) * 3, *(c_void_p,) * 3, c_int64, c_void_p, *(c_int64,) * 2, c_void_p),
    ),
    "edgedec_kv_bytes": (c_int64, (*_CACHE, c_int64, c_int64, c_int32)),
    "edgedec_kv_move": (c_int32, (c_void_p, c_int64, *(c_void_p,) * 2, *(c_int64,) * 3, c_void_p, c_int64)),
    "edgedec_kv_copy": (c_int32, (c_void_p, c_int64, c_void_p, *(c_int64,) * 3)),
    "edgedec_recurrent_commit": (c_int32, (*(c_void_p, c_int64) * 3, c_int64, c_void_p, c_int64)),
    "edgedec_attention": (
        c_int32,
        (
            *(c_char_p, c_int64, *_CACHE, c_void_p),  # path, heads, cache
            *(c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64),  # sequences, tables, context, tokens
            *(*(c_void_p,) * 5, c_int64),  # queries, keys, values, positions, visible and its words
            *(c_int64, c_int64, c_float, c_float, c_int32, c_void_p, c_void_p),  # window ... sin
            *(c_void_p,) * 6,  # select, channel, steps, importance, basis, out
        ),
    ),
}


def _sizes(shape: tuple[int, int], scheme: TernaryScheme) -> tuple[int, ...]:
    """Return outputs, inputs, planes, group_size and half_scales for the library."""
    return *shape, scheme.planes, scheme.group_size, int(scheme.half_scales)


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


class Kernels:
    """A loaded library. Arrays must be C-contiguous; their shapes are those of ``edgedec.schemes``.

    Members:
        path: the library.
        code_path: code path that this process uses.
    """

    def __init__(self, path: Path) -> None:
        """Load the library ``path``.

        Raises:
            DeviceError: the file is not the library of this version, no code path works, or EDGEDEC_KERNEL names one that
                cannot run on this machine.
        """
        self.path = path
        self._library = open_library(path, _FUNCTIONS, abi=("edgedec_abi", _ABI), title="edgedec's kernel library")
        code_path = self._library.edgedec_path()
        message = self._library.edgedec_error().decode()
        if code_path is None:
            raise DeviceError(f"CPU kernels: {message}")
        if message:
            _LOG.warning("CPU kernels: %susing %s", message, code_path.decode())
        self.code_path: str = code_path.decode()

    def usable(self, code_path: str) -> bool:
        """Return whether a code path can run on this machine and passes its self-test."""
        return bool(self._library.edgedec_path_usable(code_path.encode()))

    def address(self, name: str) -> int:
        """Return the address of a function of the library."""
        return ctypes.cast(getattr(self._library, name), c_void_p).value or 0

    def declared(self, functions: Functions) -> ctypes.CDLL:
        """Declare further functions and return the library, whose attributes they are."""
        declare(self._library, functions)
        return self._library

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function of the library and return its result.

        Raises:
            EdgedecError: the result is negative, which reports an error.
        """
        return self._check(getattr(self._library, name)(*arguments))

    def _check(self, result: int) -> int:
        if result < 0:
            raise EdgedecError(f"CPU kernels: {self.error}")
        return result

    @property
    def error(self) -> str:
        """The message of the last call that has failed in this thread."""
        message: bytes = self._library.edgedec_error()
        return message.decode(errors="replace")

    def packed_bytes(self, shape: tuple[int, int], scheme: TernaryScheme) -> int:
        """Return the bytes of a packed matrix [outputs, inputs]."""
        return self._check(self._library.edgedec_ternary_bytes(*_sizes(shape, scheme)))

    def tiles(self, shape: tuple[int, int]) -> int:
        """Return the number of tiles of a matrix [outputs, inputs]."""
        return -(-shape[0] // _TILE_ROWS)

    def pack(
        self,
        codes: NDArray[np.uint8],
        scales: NDArray[Any] | None,
        shape: tuple[int, int],
        scheme: TernaryScheme,
        *,
        tiles: range | None = None,
    ) -> NDArray[np.uint8]:
        """Convert the stored parts of a matrix [outputs, inputs] to the kernels' layout, uint8 [bytes].

        Args:
            codes: uint8 [planes, outputs, blocks, block / 4].
            scales: scales of groups, [planes, outputs, groups] of the scheme's dtype. They are not read if there are no
                groups, because the scale of a whole tensor is not a part of the layout.
            shape: outputs and inputs.
            scheme: scheme of the matrix.
            tiles: tiles of the result; None: all.

        Raises:
            EdgedecError: a code is not a trit, an array does not fit the sizes, or the sizes are invalid.
        """
        parts = scheme.parts(shape)
        arrays = {"codes": codes} | ({"scale": scales} if scheme.group_size else {})
        for name, array in arrays.items():
            stored = parts[name]
            if array is None or not (
                array.shape == stored.shape and array.dtype == stored.dtype and array.flags.c_contiguous
            ):
                given = "None" if array is None else f"{array.dtype} {array.shape}"
                raise EdgedecError(f"{name} must be contiguous {stored.dtype} {stored.shape}, not {given}")
        tiles = tiles if tiles is not None else range(self.tiles(shape))
        out = np.empty(self.packed_bytes(shape, scheme) // self.tiles(shape) * len(tiles), np.uint8)
        row_bytes = codes.shape[2] * codes.shape[3]
        arguments = (row_bytes, *_sizes(shape, scheme), tiles.start, tiles.stop, _address(out))
        self._check(self._library.edgedec_ternary_pack(_address(codes), _address(arrays.get("scale")), *arguments))
        return out

    def quantize(
        self, x: NDArray[np.float32], code_path: str | None = None
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """Quantize x, float32 [n, width], to codes, int8 [n, width], and scales, float32 [n, 1], as the operators do."""
        x = np.ascontiguousarray(x, np.float32)
        codes, scales = np.empty(x.shape, np.int8), np.empty((len(x), 1), np.float32)
        name = code_path.encode() if code_path else None
        self._check(self._library.edgedec_quantize(name, _address(x), *x.shape, _address(codes), _address(scales)))
        return codes, scales

    def matmul(
        self,
        x: NDArray[np.int8] | NDArray[np.uint8],
        token_scales: NDArray[np.float32],
        codes: NDArray[np.uint8],
        scale: NDArray[np.float32] | None,
        outputs: int,
        scheme: TernaryScheme,
        *,
        bias: NDArray[np.float32] | None = None,
        code_path: str | None = None,
        tiles: range | None = None,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Multiply activations by a packed matrix and return float32 [tokens, outputs].

        Args:
            x: int8, or uint8 with zero point 128, [tokens, inputs].
            token_scales: float32 [tokens].
            codes: result of ``pack``.
            scale: the scale of the whole tensor, float32 [1]; not read if there are groups.
            outputs: number of outputs of the matrix.
            scheme: scheme of the matrix.
            bias: float32 [outputs]; None: no bias.
            code_path: name of a code path; None: that of this process.
            tiles: tiles whose columns of ``out`` are written, as one of several threads does; None: all.
            out: float32 [tokens, outputs], the array to write to; None: a new one.

        Raises:
            EdgedecError: an array does not fit the sizes, or the code path cannot run on this machine.
        """
        tokens, inputs = x.shape
        shape = (outputs, inputs)
        activations: NDArray[Any] = np.ascontiguousarray(x)
        token_scales = np.ascontiguousarray(token_scales, np.float32)
        if x.dtype not in (np.int8, np.uint8):
            raise EdgedecError(f"activations must be int8 or uint8, not {x.dtype}")
        if codes.size != self.packed_bytes(shape, scheme):
            raise EdgedecError(f"{codes.size} bytes are not a packed {shape} {scheme}")
        if not scheme.group_size and (scale is None or scale.shape != (1,) or scale.dtype != np.float32):
            raise EdgedecError(f"a matrix without groups needs one scale, float32 (1,), not {scale}")
        if token_scales.size != tokens:
            raise EdgedecError(f"{tokens} tokens need as many scales, not {token_scales.size}")
        if out is None:
            out = np.empty((tokens, outputs), np.float32)
        for name, array, expected in (("bias", bias, (outputs,)), ("out", out, (tokens, outputs))):
            if array is not None and not (
                array.shape == expected and array.dtype == np.float32 and array.flags.c_contiguous
            ):
                raise EdgedecError(f"{name} must be contiguous float32 {expected}, not {array.dtype} {array.shape}")
        tiles = tiles if tiles is not None else range(self.tiles(shape))
        self._check(
            self._library.edgedec_ternary_matmul(
                code_path.encode() if code_path else None,
                *_sizes(shape, scheme),
                *(_address(codes), _address(scale), _address(bias), _address(activations)),
                *(128 if x.dtype == np.uint8 else 0, tokens),
                *(_address(token_scales), tiles.start, tiles.stop, _address(out)),
            )
        )
        return out


def without_kernels() -> str:
    """Return how models run on the CPU without the kernels, as a clause of a sentence."""
    if not is_installed("onnxruntime"):
        return "no model runs on the CPU, for ONNX Runtime is not installed either"
    return "models run with the portable graph, which is slower"


@functools.cache
def load() -> Kernels | None:
    """Return the library of this installation, which is loaded once.

    The result is None, with a warning in the log, if the library is missing or does not work, and None with
    EDGEDEC_KERNEL=portable.

    Raises:
        UsageError: EDGEDEC_KERNEL has an unknown name.
        DeviceError: EDGEDEC_KERNEL names a code path that cannot run on this machine.
    """
    path, request = Path(__file__).with_name(LIBRARY), KERNEL.value()
    if request is not None and request not in KERNEL_NAMES:
        raise UsageError(f"{KERNEL.name} must be one of {', '.join(KERNEL_NAMES)}, not {request!r}; or unset it")
    if request == PORTABLE:
        _LOG.info("CPU kernels: %s, because %s asks for it", PORTABLE, KERNEL.name)
        return None
    try:
        if not path.exists():
            raise DeviceError(f"{LIBRARY} was not built; with a C++ compiler on the PATH, {install_again()}")
        kernels = Kernels(path)
        reason = f"{KERNEL.name} asks for it" if request else "it is the fastest that runs on this processor"
        _LOG.info("CPU kernels: %s, because %s", kernels.code_path, reason)
        return kernels
    except DeviceError as error:
        if request:
            raise
        _LOG.warning("%s (until then %s)", error, without_kernels())
        return None
