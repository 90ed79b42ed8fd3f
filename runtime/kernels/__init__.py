"""The CPU kernels: finding and loading their library, and its C functions for Python.

The library is optional. Without it, or when it fails its self-test, ``load`` gives None and logs one line; the portable
graph of stock operators serves then.
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
from edgedec.install_hint import install_again
from edgedec.runtime.kernels.recipe import LIBRARY
from edgedec.schemes import TernaryScheme

__all__ = ["CODE_PATHS", "KERNEL_NAMES", "PORTABLE", "Kernels", "load"]

CODE_PATHS = ("avx512vnni", "avx2", "neon_dotprod", "neon", "scalar")  # as in dispatch.cpp
PORTABLE = "portable"  # no kernels: the graph of stock operators
KERNEL_NAMES = (*CODE_PATHS, PORTABLE)  # what EDGEDEC_KERNEL, the log, `doctor` and JSON call them
_ABI = 2  # edgedec_abi() in api.cpp
_TILE_ROWS = 16
_LOG = logging.getLogger(__name__)

_SIZES = (c_int64, c_int64, c_int32, c_int32)  # outputs, inputs, planes, group_size
_CACHE = (c_int64, c_int64, c_int64, c_int32)  # kv_heads, head_dim, positions, bits
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "edgedec_abi": (c_int32, ()),
    "edgedec_error": (c_char_p, ()),
    "edgedec_path": (c_char_p, ()),
    "edgedec_path_usable": (c_int32, (c_char_p,)),
    "edgedec_ternary_code_bytes": (c_int64, _SIZES),
    "edgedec_ternary_scale_count": (c_int64, _SIZES),
    "edgedec_ternary_pack": (c_int32, (c_void_p, *(c_int64,) * 3, c_int32, *(c_int64,) * 2, c_void_p)),
    "edgedec_ternary_pack_scales": (c_int32, (c_void_p, *_SIZES, *(c_int64,) * 2, c_void_p)),
    "edgedec_quantize": (c_int32, (c_char_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p)),
    "edgedec_ternary_matmul": (
        c_int32,
        (c_char_p, *_SIZES, *(c_void_p,) * 4, c_int32, c_int64, c_void_p, c_int64, c_int64, c_void_p),
    ),
    "edgedec_int8_matmul": (
        c_int32,
        (c_char_p, *(c_int64,) * 2, c_int32, *(c_void_p,) * 4, c_int64, c_void_p, *(c_int64,) * 2, c_void_p),
    ),
    "edgedec_kv_bytes": (c_int64, _CACHE),
    "edgedec_kv_move": (c_int32, (*_CACHE, c_void_p, c_int64, c_void_p, c_int64)),
    "edgedec_attention": (
        c_int32,
        (
            *(c_char_p, c_int64, *_CACHE, c_void_p, c_int64, c_int64),  # path, heads, cache, past, tokens
            *(*(c_void_p,) * 5, c_int64),  # queries, keys, values, positions, visible and its words
            *(c_int64, c_int64, c_float, c_float, c_int32, c_void_p, c_void_p, c_void_p),  # window ... out
        ),
    ),
}


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


class Kernels:
    """A loaded library. Arrays are C-contiguous; shapes as in ``edgedec.schemes``."""

    def __init__(self, path: Path) -> None:
        """Load ``path``.

        Raises:
            DeviceError: the file is not this version's library, no code path works, or EDGEDEC_KERNEL names one that
                cannot run here.
        """
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(self._library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise DeviceError(f"{path} is not edgedec's kernel library: {error}; {install_again()}") from error
        if (found := self._library.edgedec_abi()) != _ABI:
            raise DeviceError(f"{path} has interface {found}, this edgedec wants {_ABI}; {install_again()}")
        chosen = self._library.edgedec_path()
        said = self._library.edgedec_error().decode()
        if chosen is None:
            raise DeviceError(f"CPU kernels: {said}")
        if said:
            _LOG.warning("CPU kernels: %susing %s", said, chosen.decode())
        self.code_path: str = chosen.decode()

    def usable(self, code_path: str) -> bool:
        """Whether a code path can run on this machine and passes its self-test."""
        return bool(self._library.edgedec_path_usable(code_path.encode()))

    def call(self, name: str, *arguments: Any) -> int:
        """A function of the library that gives a negative number when it refuses.

        Raises:
            EdgedecError: it does.
        """
        return self._check(getattr(self._library, name)(*arguments))

    def _check(self, result: int) -> int:
        if result < 0:
            raise EdgedecError(f"CPU kernels: {self._library.edgedec_error().decode()}")
        return result

    def code_bytes(self, shape: tuple[int, int], scheme: TernaryScheme) -> int:
        """Bytes of ``pack``'s codes for a matrix [outputs, inputs]."""
        sizes = (*shape, scheme.planes, scheme.group_size)
        return self._check(self._library.edgedec_ternary_code_bytes(*sizes))

    def scale_count(self, shape: tuple[int, int], scheme: TernaryScheme) -> int:
        sizes = (*shape, scheme.planes, scheme.group_size)
        return self._check(self._library.edgedec_ternary_scale_count(*sizes))

    def tiles(self, shape: tuple[int, int]) -> int:
        return -(-shape[0] // _TILE_ROWS)

    def pack(
        self, codes: NDArray[np.uint8], shape: tuple[int, int], scheme: TernaryScheme, *, tiles: range | None = None
    ) -> NDArray[np.uint8]:
        """Stored codes uint8 [planes, outputs, blocks, block / 4] -> the kernels' layout, of all or some tiles.

        Raises:
            EdgedecError: a code is no trit, or the sizes are impossible.
        """
        stored = scheme.parts(shape)["codes"].shape
        if codes.shape != stored or codes.dtype != np.uint8 or not codes.flags.c_contiguous:
            raise EdgedecError(f"codes must be contiguous uint8 {stored}, not {codes.dtype} {codes.shape}")
        tiles = tiles if tiles is not None else range(self.tiles(shape))
        out = np.empty(self.code_bytes(shape, scheme) // self.tiles(shape) * len(tiles), np.uint8)
        row_bytes = stored[2] * stored[3]
        arguments = (row_bytes, *shape, scheme.planes, tiles.start, tiles.stop, _address(out))
        self._check(self._library.edgedec_ternary_pack(_address(codes), *arguments))
        return out

    def pack_scales(
        self, scales: NDArray[np.float32], shape: tuple[int, int], scheme: TernaryScheme, *, tiles: range | None = None
    ) -> NDArray[np.float32]:
        """Stored scales [planes, outputs, groups] -> the kernels' layout; a whole tensor's [1] stays as it is."""
        stored = scheme.parts(shape)["scale"].shape
        if scales.shape != stored or scales.dtype != np.float32 or not scales.flags.c_contiguous:
            raise EdgedecError(f"scales must be contiguous float32 {stored}, not {scales.dtype} {scales.shape}")
        if not scheme.group_size:
            return scales
        tiles = tiles if tiles is not None else range(self.tiles(shape))
        out = np.empty(self.scale_count(shape, scheme) // self.tiles(shape) * len(tiles), np.float32)
        sizes = (*shape, scheme.planes, scheme.group_size, tiles.start, tiles.stop)
        self._check(self._library.edgedec_ternary_pack_scales(_address(scales), *sizes, _address(out)))
        return out

    def quantize(
        self, x: NDArray[np.float32], code_path: str | None = None
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """x float32 [n, width] -> codes int8 [n, width] and scale float32 [n, 1], as the operator does it."""
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
        scales: NDArray[np.float32],
        outputs: int,
        scheme: TernaryScheme,
        *,
        bias: NDArray[np.float32] | None = None,
        code_path: str | None = None,
        tiles: range | None = None,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """x int8 (or uint8 with zero point 128) [tokens, inputs] times a packed matrix: float32 [tokens, outputs].

        With ``tiles`` only those columns of ``out`` are written: what one thread of several does.

        Raises:
            EdgedecError: arrays that do not fit the sizes, or a code path that cannot run here.
        """
        tokens, inputs = x.shape
        shape = (outputs, inputs)
        activations: NDArray[Any] = np.ascontiguousarray(x)
        token_scales = np.ascontiguousarray(token_scales, np.float32)
        if x.dtype not in (np.int8, np.uint8):
            raise EdgedecError(f"activations must be int8 or uint8, not {x.dtype}")
        if codes.size != self.code_bytes(shape, scheme) or scales.size != self.scale_count(shape, scheme):
            raise EdgedecError(f"{codes.size} bytes and {scales.size} scales are not a packed {shape} {scheme}")
        if token_scales.size != tokens:
            raise EdgedecError(f"{tokens} tokens need as many scales, not {token_scales.size}")
        if out is None:
            out = np.empty((tokens, outputs), np.float32)
        for name, array, wanted in (("bias", bias, (outputs,)), ("out", out, (tokens, outputs))):
            if array is not None and not (
                array.shape == wanted and array.dtype == np.float32 and array.flags.c_contiguous
            ):
                raise EdgedecError(f"{name} must be contiguous float32 {wanted}, not {array.dtype} {array.shape}")
        tiles = tiles if tiles is not None else range(self.tiles(shape))
        self._check(
            self._library.edgedec_ternary_matmul(
                code_path.encode() if code_path else None,
                *(*shape, scheme.planes, scheme.group_size),
                *(_address(codes), _address(scales), _address(bias), _address(activations)),
                *(128 if x.dtype == np.uint8 else 0, tokens),
                *(_address(token_scales), tiles.start, tiles.stop, _address(out)),
            )
        )
        return out


@functools.cache
def load() -> Kernels | None:
    """The library of this installation, loaded once; None when there is none that works, with one line in the log.

    None too, without a word, where EDGEDEC_KERNEL=portable asks for it.

    Raises:
        UsageError: EDGEDEC_KERNEL names nothing that there is.
        DeviceError: EDGEDEC_KERNEL asks for a code path that cannot run: what was asked for is not passed over.
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
        _LOG.warning("%s (until then the portable graph serves, slower)", error)
        return None
