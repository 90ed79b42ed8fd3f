"""A bundle's ternary matrices in the kernels' layout: converted once, in a stream, and mapped from then on.

The file stands in the bundle's folder (format: "caches may stand there"), or in the user's cache folder when the bundle
cannot be written. 4,096 bytes of header, then per matrix its codes and its scales, each at a multiple of 64 bytes; where
and how long follows from the manifest alone. The header names the bundle by its hash and holds the hash of the rest: a
file that is anything else, or damaged, is made again. So is one of another bundle that a link or a copy brought here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.atomic import new_file
from edgedec.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError
from edgedec.manifest import ALIGNMENT, Tensor
from edgedec.paths import cache_folder
from edgedec.runtime.kernels import Kernels
from edgedec.schemes import TernaryScheme

__all__ = ["LOAD_BYTES", "Entry", "Layout", "charged_folders", "layout_bytes", "open_layout"]

FILE = ".cpu-kernels.layout"
LOAD_BYTES = 4 << 20  # the most that converting or checking holds at once: a few pieces
_HEADER_BYTES = 4096
_VERSION = 1  # raised with every change of the layout in ternary.hpp
_PIECE_BYTES = 1 << 20
_TILE_ROWS, _LINE_COLUMNS = 16, 16
_LOG = logging.getLogger(__name__)
_TAKEN, _MADE = (f"%s: %d bytes of weights in the kernels' layout, {how}" for how in ("found and checked", "made now"))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where one matrix stands in the file."""

    codes_offset: int
    codes_bytes: int
    scales_offset: int
    scale_count: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A verified file."""

    path: Path
    entries: Mapping[str, Entry]

    def arrays(self) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.float32]]]:
        """Codes and scales of each matrix, all views of one mapping."""
        mapped = np.asarray(np.memmap(self.path, np.uint8, mode="r"))
        return {
            name: (
                mapped[entry.codes_offset : entry.codes_offset + entry.codes_bytes],
                mapped[entry.scales_offset : entry.scales_offset + 4 * entry.scale_count].view(np.float32),
            )
            for name, entry in self.entries.items()
        }


def _scheme(tensor: Tensor) -> TernaryScheme:
    assert isinstance(tensor.scheme, TernaryScheme)
    return tensor.scheme


def _entries(tensors: Mapping[str, Tensor], names: Sequence[str]) -> tuple[dict[str, Entry], int]:
    """Every matrix's place, and the length of the file."""
    entries, end = {}, _HEADER_BYTES
    for name in names:
        (outputs, inputs), scheme = tensors[name].shape, _scheme(tensors[name])
        rows = -(-outputs // _TILE_ROWS) * _TILE_ROWS
        codes = rows * scheme.planes * -(-inputs // _LINE_COLUMNS) * (_LINE_COLUMNS // 4)
        scales = rows * scheme.planes * scheme.groups(inputs) if scheme.group_size else 1
        after = end + codes  # a multiple of the alignment: tiles are
        entries[name] = Entry(codes_offset=end, codes_bytes=codes, scales_offset=after, scale_count=scales)
        end = -(-(after + 4 * scales) // ALIGNMENT) * ALIGNMENT
    return entries, end


def layout_bytes(tensor: Tensor) -> int:
    """What a ternary matrix takes in the file, from its manifest entry alone."""
    return _entries({"": tensor}, [""])[1] - _HEADER_BYTES


def _header(bundle: Bundle, names: Sequence[str], sha256: str) -> bytes:
    matrices = hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()
    stated = {"format": "edgedec-cpu-layout", "version": _VERSION, "bundle": bundle.sha256, "matrices": matrices}
    return json.dumps(stated | {"sha256": sha256}).encode().ljust(_HEADER_BYTES)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(_HEADER_BYTES)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _whole(path: Path, bundle: Bundle, names: Sequence[str], nbytes: int) -> bool:
    """Whether ``path`` is the finished, undamaged layout of this bundle."""
    try:
        if path.stat().st_size != nbytes:
            return False
        digest = hashlib.sha256()
        for piece in _pieces(path):
            digest.update(piece)
        with path.open("rb") as file:
            return file.read(_HEADER_BYTES) == _header(bundle, names, digest.hexdigest())
    except OSError:
        return False


def _converted(bundle: Bundle, kernels: Kernels, name: str) -> Iterator[NDArray[np.uint8]]:
    """The bytes of one matrix in order: codes, then scales. The stored arrays are read, not mapped, piece by piece."""
    tensor = bundle.tensors[name]
    (outputs, inputs), scheme = tensor.shape, _scheme(tensor)
    parts = scheme.parts(tensor.shape)
    with bundle.weights_file.open("rb", buffering=0) as file:
        for part in ("codes", "scale"):
            spec, offset = parts[part], tensor.offsets[part]
            if part == "scale" and not scheme.group_size:
                yield np.frombuffer(os.pread(file.fileno(), 4, offset), np.uint8)
                continue
            row_bytes = spec.nbytes // (scheme.planes * outputs)
            step = max(1, _PIECE_BYTES // (_TILE_ROWS * scheme.planes * row_bytes)) * _TILE_ROWS
            for first in range(0, outputs, step):
                rows = min(step, outputs - first)
                at = [offset + (plane * outputs + first) * row_bytes for plane in range(scheme.planes)]
                data = b"".join(os.pread(file.fileno(), rows * row_bytes, start) for start in at)
                shape = (rows, inputs)
                stored = np.frombuffer(data, spec.dtype).reshape(scheme.parts(shape)[part].shape)
                try:
                    pack = kernels.pack if part == "codes" else kernels.pack_scales
                    yield pack(stored, shape, scheme).view(np.uint8)
                except BundleError:
                    raise
                except EdgedecError as error:
                    raise BundleError(
                        f"{bundle.weights_file}: tensor {name}, from row {first}: {error}; quantize the checkpoint again"
                    ) from error


def _write(path: Path, bundle: Bundle, kernels: Kernels, entries: Mapping[str, Entry], nbytes: int) -> None:
    digest = hashlib.sha256()
    # Not through a link: it would lead to the layout of another bundle.
    with new_file(path, follow=False) as partial, partial.open("wb") as file:
        file.write(b"\0" * _HEADER_BYTES)

        def append(data: bytes | memoryview) -> None:
            file.write(data)
            digest.update(data)

        for name in entries:
            for piece in _converted(bundle, kernels, name):
                append(piece.data)
            append(b"\0" * (-file.tell() % ALIGNMENT))
        assert file.tell() == nbytes, f"{path}: {file.tell()} bytes written, {nbytes} planned"
        file.seek(0)
        file.write(_header(bundle, list(entries), digest.hexdigest()))


def open_layout(bundle: Bundle, kernels: Kernels, names: Sequence[str]) -> Layout:
    """The ternary matrices ``names`` in the kernels' layout; converted first where no good file stands.

    Raises:
        BundleError: a matrix holds codes that are no trits.
        EdgedecError: neither the bundle's folder nor the cache folder can be written.
    """
    entries, nbytes = _entries(bundle.tensors, names)
    beside = bundle.path / FILE
    if _whole(beside, bundle, names, nbytes):
        _LOG.info(_TAKEN, beside, nbytes)
        return Layout(path=beside, entries=entries)
    if os.access(bundle.path, os.W_OK):
        try:
            _write(beside, bundle, kernels, entries, nbytes)
            _LOG.info(_MADE, beside, nbytes)
            return Layout(path=beside, entries=entries)
        except BundleError:
            raise
        except EdgedecError as error:
            _LOG.info("%s; trying the cache folder", error)
    cached = _cached_layouts() / f"{bundle.sha256}.layout"
    if _whole(cached, bundle, names, nbytes):
        _LOG.info(_TAKEN, cached, nbytes)
    else:
        _write(cached, bundle, kernels, entries, nbytes)
        _LOG.info(_MADE, cached, nbytes)
    return Layout(path=cached, entries=entries)


def _cached_layouts() -> Path:
    return cache_folder() / "layouts"


def charged_folders(bundle: Path) -> tuple[Path, ...]:
    """Where files lie that a run of the bundle maps: its own folder, and that of layouts that found no place there."""
    try:
        return bundle, _cached_layouts()
    except EdgedecError:  # no cache folder: nothing can be mapped from it
        return (bundle,)
