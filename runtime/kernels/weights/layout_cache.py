"""Files with a bundle's ternary and int4 matrices in the kernels' layout.

Matrices are converted once and loaded from then on.

The file is in the bundle's folder, whose format permits caches, or in the user's cache folder if the bundle cannot be
written. It has a header of 4,096 bytes, and then each matrix at a multiple of 64 bytes, and the scale of a matrix that has
only one at the next such place. Offsets and sizes follow from the manifest. The header has the hash of the bundle and the
hash of the rest of the file. A file that is damaged, or was linked or copied from another bundle, is written again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import ALIGNMENT, Tensor, naming
from edgedec.bundle.verified import LEAST_BYTES, SETTLED_S, is_verified, verifying
from edgedec.digests import sha256, sha256_of_size
from edgedec.errors import BundleError, EdgedecError
from edgedec.host.paths import cache_folder
from edgedec.onnx.grid_layout import grid_layout
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.products.grid import pack_grid
from edgedec.runtime.kernels.weights.huge_pages import file_bytes
from edgedec.schemes import Int4Scheme, TernaryScheme

__all__ = [
    "LOAD_BYTES",
    "Layout",
    "LayoutEntry",
    "charged_folders",
    "layout_bytes",
    "layout_entries",
    "open_layout",
]

FILE = ".cpu-kernels.layout"  # name of the file in a bundle's folder
LOAD_BYTES = 4 << 20  # peak memory of a conversion or check, which is a few pieces
_HEADER_BYTES = 4096  # size of the header
_VERSION = 3  # version of the file, which is increased with every change of the layouts in ternary.hpp and grid.hpp
_PIECE_BYTES = 1 << 20  # bytes that are converted or hashed at a time
_GRID_EXPANSION = 4  # bytes of arrays during the conversion of a matrix with evenly spaced levels, for each stored byte
_TILE_ROWS, _LINE_COLUMNS, _LINE_BYTES = 16, 16, 64  # kTileRows, kLineColumns and kLineBytes of ternary.hpp
_SCALE_BYTES = 4  # bytes of the scale of a whole matrix
_LOG = logging.getLogger(__name__)
_FOUND, _WRITTEN = (
    f"%s: %d bytes of weights in the kernels' layout, {how}" for how in ("found and checked", "made now")
)


@dataclass(frozen=True, kw_only=True)
class LayoutEntry:
    """The place of one matrix in the file.

    Members:
        codes_offset, codes_bytes: place of its codes, with the scales of groups.
        scale_offset: place of the scale of a matrix that has one for all, float32; None: it has groups.
    """

    codes_offset: int
    codes_bytes: int
    scale_offset: int | None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A verified file with its entries by name of the matrix."""

    path: Path
    entries: Mapping[str, LayoutEntry]

    def arrays(
        self, read: Callable[[Path], NDArray[np.uint8]] = file_bytes
    ) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.float32] | None]]:
        """Load the file and return the codes, uint8 [bytes], and the scale, [1] or None, of each matrix.

        Args:
            read: returns the bytes of a file; with ``FileReader.begin`` they have their values later.
        """
        loaded = read(self.path)
        return {
            name: (
                loaded[entry.codes_offset : entry.codes_offset + entry.codes_bytes],
                None
                if entry.scale_offset is None
                else loaded[entry.scale_offset : entry.scale_offset + _SCALE_BYTES].view(np.float32),
            )
            for name, entry in self.entries.items()
        }

    def matrix(
        self, name: str, codes: NDArray[np.uint8] | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
        """Read one matrix into usual memory, and return its codes, uint8 [bytes], and its scale, [1] or None.

        Args:
            codes: bytes that are returned in the place of those of the file; None: those of the file.

        Raises:
            OSError: the file cannot be read.
        """
        entry = self.entries[name]
        if codes is None:
            codes = np.fromfile(self.path, np.uint8, entry.codes_bytes, offset=entry.codes_offset)
        if entry.scale_offset is None:
            return codes, None
        return codes, np.fromfile(self.path, np.float32, 1, offset=entry.scale_offset)


def _scheme(tensor: Tensor) -> TernaryScheme | Int4Scheme:
    assert isinstance(tensor.scheme, TernaryScheme | Int4Scheme)
    return tensor.scheme


def _entries(tensors: Mapping[str, Tensor], names: Sequence[str]) -> tuple[dict[str, LayoutEntry], int]:
    """Return the entry of each matrix, and the size of the file in bytes."""
    entries, end = {}, _HEADER_BYTES
    for name in names:
        (outputs, inputs), scheme = tensors[name].shape, _scheme(tensors[name])
        scale_bytes = 0
        if grid := grid_layout(scheme):
            codes = grid.nbytes((outputs, inputs))
        else:
            assert isinstance(scheme, TernaryScheme)
            lines, scale_bytes = -(-inputs // _LINE_COLUMNS), 0 if scheme.group_size else _SCALE_BYTES
            if scheme.group_size:
                lines += -(-scheme.groups(inputs) * _TILE_ROWS * scheme.scale_dtype.itemsize // _LINE_BYTES)
            codes = -(-outputs // _TILE_ROWS) * scheme.planes * lines * _LINE_BYTES
        after = end + codes  # aligned, because the size of a tile is a multiple of the alignment
        entry = LayoutEntry(codes_offset=end, codes_bytes=codes, scale_offset=after if scale_bytes else None)
        entries[name], end = entry, -(-(after + scale_bytes) // ALIGNMENT) * ALIGNMENT
    return entries, end


def layout_entries(tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, LayoutEntry]:
    """Return the places of matrices in the file of ``open_layout``, computed from their manifest entries only."""
    return _entries(tensors, names)[0]


def layout_bytes(tensor: Tensor) -> int:
    """Return the bytes of a ternary or int4 matrix in the file, computed from its manifest entry only."""
    return _entries({"": tensor}, [""])[1] - _HEADER_BYTES


def _header(bundle: Bundle, names: Sequence[str], content_hash: str) -> bytes:
    matrices = sha256(json.dumps(list(names)).encode()).hexdigest()
    stated = {"format": "edgedec-cpu-layout", "version": _VERSION, "bundle": bundle.sha256, "matrices": matrices}
    return json.dumps(stated | {"sha256": content_hash}).encode().ljust(_HEADER_BYTES)


class _DamagedError(Exception):
    """A file is not the layout that it should be."""


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(_HEADER_BYTES)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _whole(path: Path, bundle: Bundle, names: Sequence[str], nbytes: int) -> bool:
    """Return whether ``path`` is the complete and undamaged layout of this bundle.

    A file that was checked before and has not changed since is not read, unless ``bundle.verify`` is set.
    """
    claim = f"layout {sha256(_header(bundle, names, '')).hexdigest()} of {nbytes} bytes"
    if not bundle.verify and is_verified(path, claim):
        return True
    try:
        with verifying(path, claim):
            if path.stat().st_size != nbytes:
                raise _DamagedError
            digest = sha256_of_size(nbytes)
            for piece in _pieces(path):
                digest.update(piece)
            with path.open("rb") as file:
                if file.read(_HEADER_BYTES) != _header(bundle, names, digest.hexdigest()):
                    raise _DamagedError
    except (OSError, _DamagedError):
        return False
    return True


def _converted(bundle: Bundle, kernels: Kernels, name: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of one matrix in order: tiles, then the scale of all. The stored arrays are read piece by piece, not
    mapped.
    """
    tensor = bundle.tensors[name]
    (outputs, inputs), scheme = tensor.shape, _scheme(tensor)
    parts = scheme.parts(tensor.shape)
    if grid_layout(scheme):
        yield from _converted_grid(bundle, name)
        return
    assert isinstance(scheme, TernaryScheme)
    stored = ("codes", "scale") if scheme.group_size else ("codes",)
    row_bytes = {part: parts[part].nbytes // (scheme.planes * outputs) for part in stored}
    step = max(1, _PIECE_BYTES // (_TILE_ROWS * scheme.planes * sum(row_bytes.values()))) * _TILE_ROWS
    weights_file = bundle.holder(name)[0].weights_file
    with weights_file.open("rb", buffering=0) as file:
        for first in range(0, outputs, step):
            rows = min(step, outputs - first)
            shape, pieces = (rows, inputs), {}
            for part, piece in scheme.parts(shape).items():
                if part not in stored:
                    continue
                at = [
                    tensor.offsets[part] + (plane * outputs + first) * row_bytes[part] for plane in range(scheme.planes)
                ]
                data = b"".join(os.pread(file.fileno(), rows * row_bytes[part], start) for start in at)
                pieces[part] = np.frombuffer(data, piece.dtype).reshape(piece.shape)
            try:
                yield kernels.pack(pieces["codes"], pieces.get("scale"), shape, scheme)
            except BundleError:
                raise
            except EdgedecError as error:
                raise BundleError(
                    f"{weights_file}: tensor {name}, from row {first}: {error}; quantize the checkpoint again"
                ) from error
        if not scheme.group_size:
            yield np.frombuffer(os.pread(file.fileno(), _SCALE_BYTES, tensor.offsets["scale"]), np.uint8)


def _converted_grid(bundle: Bundle, name: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of one matrix with evenly spaced levels, as ``_converted`` does."""
    tensor = bundle.tensors[name]
    (outputs, inputs), scheme = tensor.shape, _scheme(tensor)
    parts = scheme.parts(tensor.shape)
    stored = max(1, tensor.nbytes // outputs)
    step = max(1, _PIECE_BYTES // (_TILE_ROWS * stored * _GRID_EXPANSION)) * _TILE_ROWS
    weights_file = bundle.holder(name)[0].weights_file
    with weights_file.open("rb", buffering=0) as file:
        for first in range(0, outputs, step):
            rows = min(step, outputs - first)
            pieces = {}
            for part, piece in scheme.parts((rows, inputs)).items():
                # Ternary parts have a first dimension of planes; the rows of a plane are contiguous.
                planes = piece.shape[0] if isinstance(scheme, TernaryScheme) else 1
                row_bytes = parts[part].nbytes // (planes * outputs)
                at = [tensor.offsets[part] + (plane * outputs + first) * row_bytes for plane in range(planes)]
                data = b"".join(os.pread(file.fileno(), rows * row_bytes, start) for start in at)
                pieces[part] = np.frombuffer(data, piece.dtype).reshape(piece.shape)
            with naming(weights_file):
                yield pack_grid(name, scheme, pieces, (rows, inputs))


def _write(path: Path, bundle: Bundle, kernels: Kernels, entries: Mapping[str, LayoutEntry], nbytes: int) -> None:
    digest = sha256_of_size(nbytes)
    # Do not follow a link, which would lead to the layout of another bundle.
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


def _read_back(path: Path, bundle: Bundle, names: Sequence[str], nbytes: int) -> None:
    """Check a large file that was just written, so that it is remembered as checked and the next start need not do it.

    Raises:
        EdgedecError: the file does not have the bytes that were written.
    """
    if nbytes >= LEAST_BYTES:
        time.sleep(SETTLED_S)
        if not _whole(path, bundle, names, nbytes):
            raise EdgedecError(f"{path}: reads other bytes than were just written; check the disk, and start again")


def open_layout(bundle: Bundle, kernels: Kernels, names: Sequence[str]) -> Layout:
    """Return the file with the ternary and int4 matrices ``names`` in the kernels' layout.

    If there is none, it is written first.

    Raises:
        BundleError: a matrix has a code that is not a trit.
        EdgedecError: neither the bundle's folder nor the cache folder can be written.
    """
    entries, nbytes = _entries(bundle.tensors, names)
    beside = bundle.path / FILE
    if _whole(beside, bundle, names, nbytes):
        _LOG.info(_FOUND, beside, nbytes)
        return Layout(path=beside, entries=entries)
    if os.access(bundle.path, os.W_OK):
        try:
            _write(beside, bundle, kernels, entries, nbytes)
            _LOG.info(_WRITTEN, beside, nbytes)
            _read_back(beside, bundle, names, nbytes)
            return Layout(path=beside, entries=entries)
        except BundleError:
            raise
        except EdgedecError as error:
            _LOG.info("%s; trying the cache folder", error)
    cached = _cached_layouts() / f"{bundle.sha256}.layout"
    if _whole(cached, bundle, names, nbytes):
        _LOG.info(_FOUND, cached, nbytes)
    else:
        _write(cached, bundle, kernels, entries, nbytes)
        _LOG.info(_WRITTEN, cached, nbytes)
        _read_back(cached, bundle, names, nbytes)
    return Layout(path=cached, entries=entries)


def _cached_layouts() -> Path:
    return cache_folder() / "layouts"


def charged_folders(bundle: Path) -> tuple[Path, ...]:
    """Return the folders from which a run of the bundle maps files: the bundle's own, and the cache of layouts."""
    try:
        return bundle, _cached_layouts()
    except EdgedecError:  # without a cache folder no file can be mapped from it
        return (bundle,)
