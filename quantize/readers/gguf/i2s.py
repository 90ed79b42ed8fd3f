"""Read I2_S, bitnet.cpp's type of trits: two bits each, as trit + 1, then a float32 scale of the matrix and 28 bytes.

The four trits that share a byte depend on the machine and the release that wrote the file, and the file does not record
them. They are determined from the weights: a neuron with many zeros in its rows of gate and up also has many in its column
of down, if down is read with the right layout. If the evidence is weak (random weights, very small models), the file is
refused.

Source: ``quantize_i2_s`` of bitnet.cpp's ggml-bitnet-mad.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.gguf.blocks import KINDS, Kind
from edgedec.quantize.readers.gguf.header import GgufHeader, GgufTensor
from edgedec.quantize.readers.untrusted import read_array

__all__ = ["I2_S", "LAYOUTS", "decode", "layout_of"]

I2_S = KINDS[36]
_TAIL_BYTES = I2_S.tail_bytes
_X86 = Kind(number=36, name="I2_S of x86", block=128, block_bytes=32, tail_bytes=_TAIL_BYTES)
_ARM = Kind(number=36, name="I2_S of ARM", block=64, block_bytes=16, tail_bytes=_TAIL_BYTES)
# Layout on x86 in builds without ACT_PARALLEL (not the default), in which a byte holds one column of four rows.
_ROWS = Kind(number=36, name="I2_S by rows", block=4, block_bytes=1, tail_bytes=_TAIL_BYTES)
LAYOUTS = (_X86, _ARM, _ROWS)

_CHUNK_BYTES = 1 << 20
_ROWS_TOGETHER = 4
_SHIFTS = np.array([6, 4, 2, 0], np.uint8)
_MOST = 1 << 20  # limit on rows and columns, ten times those of the largest models
_CLEAR = 8.0  # required lead of the best layout over the next one, in standard deviations

I8 = NDArray[np.int8]


def decode(path: Path, where: str, kind: Kind, offset: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Decode a matrix to float32 of ``shape`` [rows, columns] with the values -scale, 0 and scale.

    ``kind`` is one of ``LAYOUTS``.

    Raises:
        BundleError: the file has shrunk, or a code does not represent a trit.
    """
    scale_at = offset + math.prod(shape) // 4
    scale = read_array(path, offset=scale_at, count=1, dtype=np.dtype("<f4"), what=f"the scale of {where}")[0]
    try:
        values = np.empty(shape, np.float32)
    except MemoryError:
        raise BundleError(
            f"{path}: {where} needs {math.prod(shape) * 4} bytes of memory, more than is available"
        ) from None
    for start, trits in _chunks(path, where, kind, offset, shape):
        with np.errstate(all="ignore"):  # NaN and infinity are refused later
            np.multiply(trits, scale, out=values[start : start + len(trits)])
    return values


def layout_of(header: GgufHeader) -> Kind:
    """Determine the layout of all I2_S matrices of a model.

    Raises:
        BundleError: a code does not represent a trit, or the file has shrunk.
        UnsupportedError: the weights do not determine the layout.
    """
    matrices = [tensor for tensor in header.tensors.values() if tensor.kind == I2_S]
    for tensor in matrices:
        if len(tensor.shape) != 2 or max(tensor.shape) > _MOST:
            raise UnsupportedError(
                f"{tensor.path}: tensor {tensor.name!r} is I2_S and has the shape {tensor.shape}; it must be a matrix of at "
                f"most {_MOST} rows and columns"
            )
    kinds = [kind for kind in LAYOUTS if all(_fits(kind, tensor) for tensor in matrices)]
    if len(kinds) == 1:
        return kinds[0]
    best, lead, layers = _compared(header, kinds)
    if lead < _CLEAR:
        evidence = (
            f"its weights do not show it: the zeros of gate, up and down of {layers} layers favor {best.name!r} by "
            f"{lead:.1f} standard deviations, and {_CLEAR:.0f} are needed"
            if layers
            else "no layer has gate, up and down in I2_S, which would show it"
        )
        raise UnsupportedError(
            f"{header.path}: tensor {matrices[0].name!r} is I2_S, whose layout depends on the machine that ran "
            "bitnet.cpp and on its build (blocks of 128 columns or four rows on x86, of 64 columns on ARM); the file does "
            f"not record it, and {evidence}; pass the checkpoint that it was made from, or convert that to TQ2_0 with "
            "llama-quantize"
        )
    return best


def _fits(kind: Kind, tensor: GgufTensor) -> bool:
    if kind == _ROWS:
        return tensor.shape[0] % _ROWS_TOGETHER == 0
    return tensor.shape[1] % kind.block == 0


def _compared(header: GgufHeader, kinds: list[Kind]) -> tuple[Kind, float, int]:
    """Return the layout for which the zeros agree best, its lead in standard deviations, and the number of layers.

    With a wrong layout, a layer's correlation times the square root of its number of neurons is about normal with
    deviation 1.
    """
    sums, lead, best, layers = np.zeros(len(kinds)), 0.0, 0, 0
    for gate, up, down in _layers(header):
        layers += 1
        sums += [_agreement(kind, gate, up, down) for kind in kinds]
        order = np.argsort(-np.abs(sums))
        best = int(order[0])
        lead = float(abs(sums[best]) - abs(sums[order[1]])) / math.sqrt(2 * layers)
        if lead >= 2 * _CLEAR:
            break
    return kinds[best], lead, layers


def _layers(header: GgufHeader) -> Iterator[tuple[GgufTensor, GgufTensor, GgufTensor]]:
    """Yield gate, up and down of the layers that have all three in I2_S and with matching shapes."""
    for name, down in header.tensors.items():
        if not name.endswith(".ffn_down.weight"):
            continue
        gate, up = (header.tensors.get(name.replace("ffn_down", other)) for other in ("ffn_gate", "ffn_up"))
        if gate is None or up is None or not gate.kind == up.kind == down.kind == I2_S:
            continue
        if gate.shape == up.shape == down.shape[::-1]:  # other shapes are refused when the model is checked
            yield gate, up, down


def _agreement(kind: Kind, gate: GgufTensor, up: GgufTensor, down: GgufTensor) -> float:
    """Return how well the neurons' numbers of nonzero weights in gate and up agree with those in down.

    The result is Spearman's rank correlation times sqrt(n); ranks are used so that no single neuron dominates.
    """
    inner = gate.shape[0]
    into, out = np.zeros(inner), np.zeros(inner)
    for matrix in (gate, up):
        for start, trits in _chunks(matrix.path, f"tensor {matrix.name!r}", kind, matrix.offset, matrix.shape):
            into[start : start + len(trits)] += np.count_nonzero(trits, axis=1)
    for _, trits in _chunks(down.path, f"tensor {down.name!r}", kind, down.offset, down.shape):
        out += np.count_nonzero(trits, axis=0)
    one, other = _ranks(into), _ranks(out)
    norm = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / norm * math.sqrt(inner) if norm else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks of values minus the mean rank; equal values share a rank."""
    _, place, number = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(number) - (number - 1) / 2 - (len(values) + 1) / 2
    shared: NDArray[np.float64] = ranks[place]
    return shared


def _chunks(path: Path, where: str, kind: Kind, offset: int, shape: tuple[int, ...]) -> Iterator[tuple[int, I8]]:
    """Yield (first row, trits int8 [some rows, columns])."""
    rows, columns = shape
    some = max(1, _CHUNK_BYTES // columns) * _ROWS_TOGETHER
    for start in range(0, rows, some):
        number = min(some, rows - start)
        data = read_array(
            path,
            offset=offset + start * columns // 4,
            count=number * columns // 4,
            dtype=np.dtype(np.uint8),
            what=where,
        )
        together = columns if kind == _ROWS else kind.block_bytes
        codes = data.reshape(-1, 1, together) >> _SHIFTS[:, None] & 3
        if (codes == 3).any():
            raise BundleError(f"{path}: {where}: a code is 3, which no trit has; the file is damaged")
        yield start, codes.reshape(number, columns).view(np.int8) - np.int8(1)
