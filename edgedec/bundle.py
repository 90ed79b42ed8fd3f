"""The bundle: a folder with a quantized model and all that is needed to run it. docs/bundle-format.md is its definition.

Two verbs: ``BundleWriter`` makes one, ``Bundle.open`` opens it. Opening checks every byte against the manifest before
anything is used, and maps the weights without reading them into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from edgedec import __version__
from edgedec.atomic import new_folder
from edgedec.errors import BundleError, UnsupportedError, UsageError
from edgedec.graph import Graph
from edgedec.ops import Embed
from edgedec.schemes import FloatScheme, Int8Scheme, Scheme, TernaryScheme, Weight, scheme_from_json

__all__ = ["Bundle", "BundleWriter", "RowReader", "Tensor", "Tokens"]

FORMAT, VERSION = "edgedec-bundle", 1
MANIFEST, WEIGHTS, TOKENIZER, TEMPLATE = "manifest.json", "weights.bin", "tokenizer.json", "chat_template.jinja"
ALIGNMENT = 64  # bytes: a cache line, and any vector register
MAX_MANIFEST_BYTES = 16 << 20  # a tensor takes about 300; parsed, hostile JSON takes 20 times its size
MAX_DIMENSIONS = 8
_CHUNK_BYTES = 1 << 20
_KEYS = {"format", "version", "created_by", "config", "quantization", "tokens", "files", "tensors", "sha256"}

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What the runtime must know of the vocabulary. ``size``: ids at and above it are padding and never sampled."""

    size: int
    bos: int | None = None
    eos: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A manifest entry: where the parts of one weight stand in ``weights.bin``."""

    shape: tuple[int, ...]
    scheme: Scheme
    offsets: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.scheme.parts(self.shape).values())

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=object))


def _manifest_hash(data: bytes, stated: str) -> str:
    """SHA-256 of a manifest's bytes, where the ``stated`` hash itself counts as zeros; it stands last in the file."""
    before, _, after = data.rpartition(stated.encode())
    return hashlib.sha256(before + b"0" * 64 + after).hexdigest()


def _is_size(value: Any, limit: int) -> bool:
    """An integer in 0..limit; JSON's true and 1.0 are none."""
    return type(value) is int and 0 <= value <= limit


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{file}: larger than {MAX_MANIFEST_BYTES} bytes; this is no bundle")
    data = file.read_bytes()
    try:
        manifest = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not valid JSON ({error}); copy or quantize the bundle again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{file}: not an edgedec bundle")
    version, stated = manifest.get("version"), manifest.get("sha256")
    if type(version) is not int or version != VERSION:
        raise UnsupportedError(
            f"{file}: bundle version {reprlib.repr(version)}, this edgedec reads {VERSION}; "
            "quantize the checkpoint again with this edgedec, or install the one that wrote the bundle"
        )
    if not re.fullmatch("[0-9a-f]{64}", str(stated)) or _manifest_hash(data, str(stated)) != stated:
        raise BundleError(f"{file}: its hash does not match its content; copy or quantize the bundle again")
    if set(manifest) != _KEYS:
        raise BundleError(f"{file}: unknown or missing keys {reprlib.repr(sorted(set(manifest) ^ _KEYS))}")
    for key in ("config", "quantization", "tokens", "files", "tensors"):
        if not isinstance(manifest[key], dict):
            raise BundleError(f"{file}: {key} must be an object")
    return manifest


def _check_files(path: Path, files: Mapping[str, Any]) -> None:
    """Every listed file is a plain name, there, of the right size and content."""
    if not {WEIGHTS, TOKENIZER} <= set(files):
        raise BundleError(f"{path / MANIFEST}: must list {WEIGHTS} and {TOKENIZER}")
    for name, entry in files.items():
        if name not in (WEIGHTS, TOKENIZER, TEMPLATE):
            raise BundleError(f"{path / MANIFEST}: lists the file {reprlib.repr(name)}, which a bundle does not have")
        file = path / name
        if not file.is_file():
            raise BundleError(f"{file}: missing; copy or quantize the bundle again")
        if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
            raise BundleError(f"{path / MANIFEST}: file {name} must have bytes and sha256, not {reprlib.repr(entry)}")
        there, stated = file.stat().st_size, entry["bytes"]
        if type(stated) is not int or stated != there:
            raise BundleError(f"{file}: {there} bytes, the manifest says {reprlib.repr(stated)}; copy the bundle again")
        if _hash_file(file) != entry["sha256"]:
            raise BundleError(f"{file}: its hash does not match the manifest; copy or quantize the bundle again")


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Schemes know no files; their complaints get the name here."""
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{file}: {error}") from None


def _read_tensor(file: Path, name: str, entry: Any, available: int) -> Tensor:
    where = f"{file}: tensor {name}"
    if not isinstance(entry, dict) or set(entry) != {"shape", "scheme", "offsets"}:
        raise BundleError(f"{where}: must have shape, scheme and offsets, not {reprlib.repr(entry)}")
    shape, offsets = entry["shape"], entry["offsets"]
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= MAX_DIMENSIONS
        or not all(_is_size(size, 2**40) and size for size in shape)
    ):
        raise BundleError(f"{where}: impossible shape {reprlib.repr(shape)}")
    with _naming(file):
        scheme = scheme_from_json(name, entry["scheme"])
    if scheme.kind != "float" and len(shape) != 2:
        raise BundleError(f"{where}: {scheme.kind} needs two dimensions, not {shape}")
    tensor = Tensor(shape=tuple(shape), scheme=scheme, offsets=offsets)
    parts = scheme.parts(tensor.shape)
    if not isinstance(offsets, dict) or set(offsets) != set(parts):
        raise BundleError(f"{where}: offsets must name {', '.join(parts)}, not {reprlib.repr(offsets)}")
    for part, spec in parts.items():
        start = offsets[part]
        if not _is_size(start, available - spec.nbytes) or start % ALIGNMENT:
            raise BundleError(
                f"{where}: {part} of {spec.nbytes} bytes at offset {reprlib.repr(start)} "
                f"does not fit {WEIGHTS} of {available} bytes"
            )
    return tensor


def _check_overlaps(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """No byte of the weights belongs to two parts."""
    ranges = sorted(
        (tensor.offsets[part], tensor.offsets[part] + spec.nbytes, name)
        for name, tensor in tensors.items()
        for part, spec in tensor.scheme.parts(tensor.shape).items()
    )
    for (_, stop, name), (start, _, other) in pairwise(ranges):
        if start < stop:
            raise BundleError(f"{file}: tensors {name} and {other} overlap at byte {start} of {WEIGHTS}")


def _check_finite(weights: Path, tensors: Mapping[str, Tensor]) -> None:
    """No scale and no float tensor holds NaN or infinity; whoever maps the file need not look again."""
    with weights.open("rb") as file:
        for name, tensor in tensors.items():
            for part, spec in tensor.scheme.parts(tensor.shape).items():
                if np.issubdtype(spec.dtype, np.integer):
                    continue
                file.seek(tensor.offsets[part])
                left = spec.nbytes
                while data := file.read(min(left, _CHUNK_BYTES)):
                    left -= len(data)
                    if not np.isfinite(np.frombuffer(data, spec.dtype)).all():
                        raise BundleError(
                            f"{weights}: tensor {name}: its {part} holds NaN or infinity; quantize the checkpoint again"
                        )


def _read_tokens(file: Path, entry: Mapping[str, Any]) -> Tokens:
    ids = entry.get("eos")
    if set(entry) != {"size", "bos", "eos"} or not isinstance(ids, list):
        raise BundleError(f"{file}: tokens must have size, bos and a list eos, not {reprlib.repr(entry)}")
    for value in (entry["size"], *ids, *([] if entry["bos"] is None else [entry["bos"]])):
        if not _is_size(value, 2**31 - 1):
            raise BundleError(f"{file}: tokens: {reprlib.repr(value)} is no token id")
    return Tokens(size=entry["size"], bos=entry["bos"], eos=tuple(ids))


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An opened, verified bundle."""

    path: Path
    config: Mapping[str, Any]
    quantization: Mapping[str, Any]
    tokens: Tokens
    tensors: Mapping[str, Tensor]
    sha256: str
    tokenizer_hash: str
    file_bytes: Mapping[str, int]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """Verify a bundle and read its manifest; weights stay on disk.

        Raises:
            UsageError: there is nothing at ``path``.
            BundleError: no bundle, or a damaged one; names the file.
            UnsupportedError: written by another version of the format.
        """
        folder = Path(path)
        file = folder / MANIFEST
        try:
            if not folder.exists():
                raise UsageError(f"{folder}: no such bundle; make one with: edgedec quantize CHECKPOINT -o {folder}")
            if not file.is_file():
                raise BundleError(
                    f"{folder}: holds no {MANIFEST}; make a bundle with: edgedec quantize CHECKPOINT -o NAME"
                )
            manifest = _read_manifest(folder)
            _check_files(folder, manifest["files"])
            file_bytes = {name: entry["bytes"] for name, entry in manifest["files"].items()}
            tensors = {
                name: _read_tensor(file, name, entry, file_bytes[WEIGHTS])
                for name, entry in manifest["tensors"].items()
            }
            _check_overlaps(file, tensors)
            _check_finite(folder / WEIGHTS, tensors)
        except OSError as error:
            raise BundleError(f"{folder}: cannot be read: {error.strerror}") from error
        return cls(
            path=folder,
            config=manifest["config"],
            quantization=manifest["quantization"],
            tokens=_read_tokens(file, manifest["tokens"]),
            tensors=tensors,
            sha256=manifest["sha256"],
            tokenizer_hash=manifest["files"][TOKENIZER]["sha256"],
            file_bytes=file_bytes,
        )

    @property
    def weights_file(self) -> Path:
        return self.path / WEIGHTS

    @property
    def tokenizer_file(self) -> Path:
        return self.path / TOKENIZER

    @property
    def chat_template(self) -> str | None:
        """Raises:
        BundleError: it is not UTF-8.
        """
        if TEMPLATE not in self.file_bytes:
            return None
        try:
            return (self.path / TEMPLATE).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise BundleError(f"{self.path / TEMPLATE}: {error}; quantize the checkpoint again") from None

    @property
    def schemes(self) -> dict[str, Scheme]:
        return {name: tensor.scheme for name, tensor in self.tensors.items()}

    @cached_property
    def _mapped(self) -> NDArray[np.uint8]:
        return np.memmap(self.weights_file, np.uint8, mode="r")

    def array(self, name: str, part: str) -> Array:
        """One stored part, mapped from disk."""
        tensor = self._tensor(name)
        spec, start = tensor.scheme.parts(tensor.shape)[part], tensor.offsets[part]
        raw = np.asarray(self._mapped[start : start + spec.nbytes])
        return raw.view(spec.dtype).reshape(spec.shape)

    def weight(self, name: str) -> Weight:
        """A weight with its arrays; float and int8 arrays are views of the mapped file.

        Raises:
            BundleError: no such tensor, or its content is not what its scheme allows (NaN scales, codes without a trit).
        """
        tensor = self._tensor(name)
        parts = {part: self.array(name, part) for part in tensor.scheme.parts(tensor.shape)}
        with _naming(self.weights_file):
            return tensor.scheme.open(name, tensor.shape, parts)

    def row_reader(self, name: str) -> RowReader:
        """Rows of an embedding, read from the file as they are asked for.

        Raises:
            BundleError: no such tensor, or one whose rows are not stored together.
        """
        tensor = self._tensor(name)
        part = "values" if isinstance(tensor.scheme, FloatScheme) else "codes"
        if isinstance(tensor.scheme, TernaryScheme) or (
            isinstance(tensor.scheme, Int8Scheme) and not tensor.scheme.rows
        ):
            raise BundleError(f"{self.path}: tensor {name} is not stored by rows; quantize the checkpoint again")
        scale = self.array(name, "scale").copy() if isinstance(tensor.scheme, Int8Scheme) else None
        dtype = tensor.scheme.parts(tensor.shape)[part].dtype
        return RowReader(self.weights_file, tensor.offsets[part], dtype, tensor.shape[1], scale)

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise BundleError(f"{self.path}: has no tensor {name}; quantize the checkpoint again")
        return self.tensors[name]

    def check(self, graph: Graph) -> None:
        """Does the bundle hold what its configuration asks for?

        Raises:
            BundleError: a tensor is missing, has another shape, or is an embedding in trits.
        """
        for name, spec in graph.weights.items():
            if self._tensor(name).shape != spec.shape:
                raise BundleError(
                    f"{self.path}: tensor {name} is {self.tensors[name].shape}, the configuration says {spec.shape}"
                )
        for operation in graph.operations:
            if isinstance(operation, Embed) and isinstance(self.tensors[operation.weight].scheme, TernaryScheme):
                raise BundleError(f"{self.path}: tensor {operation.weight} is ternary, which an embedding never is")


class RowReader:
    """Looks up rows of a stored matrix [rows, width] without mapping it.

    A mapped table would be charged far more than its touched rows: the system maps neighbouring pages by the megabyte.
    """

    def __init__(
        self, file: Path, offset: int, dtype: np.dtype[Any], width: int, scale: NDArray[np.float32] | None
    ) -> None:
        self._file = file.open("rb", buffering=0)
        self._offset, self._dtype, self._width, self._scale = offset, dtype, width, scale

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """ids int32 [n], none negative -> float32 [n, width]."""
        nbytes = self._width * self._dtype.itemsize
        data = b"".join(os.pread(self._file.fileno(), nbytes, self._offset + int(i) * nbytes) for i in ids)
        found = np.frombuffer(data, self._dtype).reshape(len(ids), self._width).astype(np.float32)
        return found if self._scale is None else found * self._scale[ids, None]


@dataclass(kw_only=True)
class BundleWriter:
    """Writes tensors one after the other; use through ``BundleWriter.create``."""

    folder: Path
    file: IO[bytes]
    tensors: dict[str, Any] = field(default_factory=dict)
    _hash: Any = field(default_factory=hashlib.sha256)

    @classmethod
    @contextmanager
    def create(cls, path: str | os.PathLike[str]) -> Iterator[BundleWriter]:
        """A writer whose bundle appears at ``path``, whole, when the body ends; call ``finish`` last.

        Raises:
            UsageError, EdgedecError: as ``edgedec.atomic.new_folder``.
        """
        with new_folder(Path(path), MANIFEST) as folder, (folder / WEIGHTS).open("wb") as file:
            writer = cls(folder=folder, file=file)
            yield writer
            assert (folder / MANIFEST).exists(), "finish was not called"

    def _write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self._hash.update(data)

    def add(self, name: str, scheme: Scheme, shape: tuple[int, ...], parts: Mapping[str, Array]) -> None:
        """Append one tensor; the arrays must be exactly what ``scheme.parts(shape)`` says."""
        offsets = {}
        assert name not in self.tensors, f"tensor {name} was already written"
        for part, spec in scheme.parts(shape).items():
            array = np.ascontiguousarray(parts[part])
            assert (array.dtype, array.shape) == (spec.dtype, spec.shape), f"{name}: {part} is {array.shape}"
            self._write(b"\0" * (-self.file.tell() % ALIGNMENT))
            offsets[part] = self.file.tell()
            self._write(array.view(np.uint8).reshape(-1).data)
        scheme_json = {"kind": scheme.kind, **asdict(scheme)}
        self.tensors[name] = {"shape": list(shape), "scheme": scheme_json, "offsets": offsets}

    def finish(
        self,
        *,
        config: Mapping[str, Any],
        quantization: Mapping[str, Any],
        tokens: Tokens,
        tokenizer_json: str,
        chat_template: str | None,
    ) -> None:
        """Write the remaining files and the manifest; the tokenizer in canonical form, so that its hash names it."""
        self.file.flush()
        tokenizer_json = json.dumps(
            json.loads(tokenizer_json), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        files = {WEIGHTS: {"bytes": self.file.tell(), "sha256": self._hash.hexdigest()}}
        for name, text in ((TOKENIZER, tokenizer_json), (TEMPLATE, chat_template)):
            if text is not None:
                data = text.encode("utf-8")
                (self.folder / name).write_bytes(data)
                files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "created_by": f"edgedec {__version__}",
            "config": dict(config),
            "quantization": dict(quantization),
            "tokens": asdict(tokens),
            "files": files,
            "tensors": self.tensors,
        }
        zeros = "0" * 64
        data = json.dumps(manifest | {"sha256": zeros}, indent=1).encode() + b"\n"
        before, _, after = data.rpartition(zeros.encode())
        (self.folder / MANIFEST).write_bytes(before + _manifest_hash(data, zeros).encode() + after)
