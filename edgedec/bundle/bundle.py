"""The bundle: a folder with a quantized model and everything that is needed to run it. docs/bundle-format.md defines it.

``BundleWriter`` writes a bundle, and ``Bundle.open`` opens one. Opening checks every byte against the manifest before
anything is used, apart from large weights that were checked before and have not changed since, and maps the weights without
reading them into memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from edgedec import __version__
from edgedec.bundle.atomic import new_folder
from edgedec.bundle.file_kinds import identify, refusal
from edgedec.bundle.manifest import (
    ALIGNMENT,
    MANIFEST,
    PASS_FEATURES,
    ROTATED_WEIGHTS,
    TEMPLATE,
    TERNARY_EMBEDDING,
    TOKENIZER,
    TOKENIZER_IDENTITY,
    WEIGHTS,
    Manifest,
    Tensor,
    Tokens,
    encode_manifest,
    naming,
    open_manifest,
)
from edgedec.bundle.missing import nothing_at
from edgedec.bundle.row_reader import RowReader
from edgedec.digests import large_sha256, sha256
from edgedec.errors import BundleError, UsageError
from edgedec.graph.graph import Graph
from edgedec.graph.ops import Embed
from edgedec.kv.policy import KV_POLICY
from edgedec.schemes import (
    Int4Scheme,
    Int8Scheme,
    Scheme,
    TernaryScheme,
    Weight,
    scheme_features,
    scheme_to_json,
)

__all__ = ["Bundle", "BundleWriter", "bits_per_weight"]

Array = NDArray[Any]


def bits_per_weight(stored_bytes: int, parameters: int) -> float:
    """Return the bits that a model stores per weight: the definition in docs/glossary.md, wherever the figure is printed.

    Args:
        stored_bytes: bytes of all stored tensors: codes, scales and values, of the layers, the embedding and the head.
        parameters: weights of the model; a head that the checkpoint ties to the embedding counts once, even if it is stored
            a second time. 0 gives 0.0.

    Example: a matrix of 64 weights as int4 takes 32 bytes of codes and 2 float16 scales: ``bits_per_weight(36, 64) == 4.5``.
    """
    return 8 * stored_bytes / parameters if parameters else 0.0


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An opened, verified bundle.

    Members:
        path: its folder.
        manifest: its manifest.
        verify: files that belong to it are read even if they were checked before and have not changed since.
        lender: the target of a draft that borrows tensors (``edgedec.bundle.lending``); None: there is none.
        resident: True if these tensors are in memory for the target, where the bundle's model runs, too.
    """

    path: Path
    manifest: Manifest
    verify: bool = False
    lender: Bundle | None = None
    resident: bool = False

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, weights: bool = True, verify: bool = False, borrows: bool = False
    ) -> Bundle:
        """Verify a bundle and read its manifest; weights stay on disk.

        Args:
            weights: verify the weights too, which takes a second for some hundred megabytes; if False, only the shapes of
                the bundle may be used.
            verify: read the weights even if they were checked before and have not changed since.
            borrows: the bundle may borrow tensors of a target; then its model runs only after ``lend_tensors``.

        Raises:
            UsageError: nothing exists at ``path``, or the bundle borrows tensors and ``borrows`` is False.
            BundleError: ``path`` is not a bundle, or the bundle is damaged; the message names the file.
            UnsupportedError: the bundle has a version or requires a feature that this edgedec does not know; the message
                names the command that makes the bundle again.
        """
        folder = Path(path)
        file = folder / MANIFEST
        try:
            if not folder.exists():
                raise UsageError(nothing_at(folder, "bundle"))
            if not file.is_file():
                if (folder / "board.json").is_file():
                    raise BundleError(
                        f"{folder}: is a board bundle; run it on its board with --device pynq, or run the bundle that it "
                        "was made from"
                    )
                kind = identify(folder)
                if not folder.is_dir() or kind.role != "other" or kind.advice:
                    raise BundleError(refusal(folder, "bundle"))
                raise BundleError(
                    f"{folder}: holds no {MANIFEST}; make a bundle with: edgedec quantize CHECKPOINT -o NAME"
                )
            manifest = open_manifest(folder, weights=weights, verify=verify)
        except OSError as error:
            raise BundleError(f"{folder}: cannot be read: {error.strerror}") from error
        if manifest.borrows is not None and not borrows:
            raise UsageError(
                f"{folder}: borrows {next(iter(manifest.borrows.tensors))} of its target {manifest.borrows.target}, so it "
                f"is a draft model of that target only; run: edgedec generate -m TARGET --spec-type model -md {folder}"
            )
        return cls(path=folder, manifest=manifest, verify=verify)

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's Hugging Face style configuration."""
        return self.manifest.config

    @property
    def quantization(self) -> Mapping[str, Any]:
        """Settings of the quantization, for information only."""
        return self.manifest.quantization

    @property
    def tokens(self) -> Tokens:
        return self.manifest.tokens

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by name, with those that a lender lends; these have their offsets in the lender's file."""
        return self.manifest.tensors if self.lender is None else self._with_borrowed

    @cached_property
    def _with_borrowed(self) -> Mapping[str, Tensor]:
        assert self.lender is not None
        lent = {name: self.lender.tensors[theirs] for name, theirs in self.borrowed.items()}
        return {**self.manifest.tensors, **lent}

    @property
    def borrowed(self) -> Mapping[str, str]:
        """The names of the borrowed tensors in the target, by the bundle's own names."""
        borrows = self.manifest.borrows
        return {} if borrows is None else {name: one.tensor for name, one in borrows.tensors.items()}

    def holder(self, name: str) -> tuple[Bundle, str]:
        """Return the bundle whose file has a tensor, and the tensor's name there."""
        if self.lender is not None and name in self.borrowed:
            return self.lender, self.borrowed[name]
        return self, name

    @property
    def parameters(self) -> int:
        """The number of the model's weights; a head that is tied to the embedding counts once, even if both are stored.

        The quantizer states it, because only the checkpoint tells whether a head that is stored was tied. It is the number
        of stored weights if nothing is stated, or more than there are.
        """
        stored = sum(tensor.count for tensor in self.tensors.values())
        stated = self.quantization.get("parameters")
        return stated if type(stated) is int and 0 < stated <= stored else stored

    @property
    def weight_bytes(self) -> int:
        """The bytes of all stored tensors, scales included."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        """The bits that the bundle stores per weight, see the function ``bits_per_weight``."""
        return bits_per_weight(self.weight_bytes, self.parameters)

    @property
    def file_bytes(self) -> Mapping[str, int]:
        return self.manifest.file_bytes

    @property
    def sha256(self) -> str:
        return self.manifest.sha256

    @property
    def tokenizer_hash(self) -> str:
        return self.manifest.tokenizer_hash

    @property
    def weights_file(self) -> Path:
        return self.path / WEIGHTS

    @property
    def tokenizer_file(self) -> Path:
        return self.path / TOKENIZER

    @property
    def chat_template(self) -> str | None:
        """The chat template; None if the bundle has none.

        Raises:
            BundleError: the template is not UTF-8.
        """
        if TEMPLATE not in self.file_bytes:
            return None
        try:
            return (self.path / TEMPLATE).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise BundleError(f"{self.path / TEMPLATE}: {error}; quantize the checkpoint again") from None

    @property
    def needs_features(self) -> bool:
        """True if passes need features beside their ids (``Graph.features``), so that the model is no model by itself."""
        return PASS_FEATURES in self.manifest.requires

    @property
    def schemes(self) -> dict[str, Scheme]:
        return {name: tensor.scheme for name, tensor in self.tensors.items()}

    @cached_property
    def derived(self) -> dict[Any, Any]:
        """Cache for values that other modules derive from the manifest; it exists as long as the bundle."""
        return {}

    @cached_property
    def _mapped(self) -> NDArray[np.uint8]:
        return np.memmap(self.weights_file, np.uint8, mode="r")

    def array(self, name: str, part: str) -> Array:
        """Return one stored part, mapped from disk."""
        holder, own = self.holder(name)
        if holder is not self:
            return holder.array(own, part)
        tensor = self._tensor(name)
        spec, start = tensor.scheme.parts(tensor.shape)[part], tensor.offsets[part]
        raw = np.asarray(self._mapped[start : start + spec.nbytes])
        return raw.view(spec.dtype).reshape(spec.shape)

    def copied(self, name: str, part: str) -> Array:
        """Return one stored part in memory of its own.

        A look into the mapped file may map a megabyte around it, because the system maps what lies together in its cache.
        """
        tensor = self._tensor(name)
        spec = tensor.scheme.parts(tensor.shape)[part]
        count = math.prod(spec.shape)
        return np.fromfile(self.holder(name)[0].weights_file, spec.dtype, count, offset=tensor.offsets[part]).reshape(
            spec.shape
        )

    def weight(self, name: str) -> Weight:
        """Return a weight with its arrays; float and int8 arrays are views of the mapped file.

        Raises:
            BundleError: the tensor does not exist, or its scheme does not allow its content (NaN scales, codes without a
                trit).
        """
        tensor = self._tensor(name)
        parts = {part: self.array(name, part) for part in tensor.scheme.parts(tensor.shape)}
        with naming(self.holder(name)[0].weights_file):
            return tensor.scheme.open(name, tensor.shape, parts)

    def row_reader(self, name: str) -> RowReader:
        """Return a reader of an embedding, which reads rows from the file when they are needed.

        Raises:
            BundleError: the tensor does not exist, or is not stored by rows.
        """
        tensor = self._tensor(name)
        if isinstance(tensor.scheme, Int4Scheme) or (isinstance(tensor.scheme, Int8Scheme) and not tensor.scheme.rows):
            raise BundleError(f"{self.path}: tensor {name} is not stored by rows; quantize the checkpoint again")
        scale = self.copied(name, "scale") if _has_small_scale(tensor.scheme) else None
        return RowReader(self.holder(name)[0].weights_file, tensor, scale)

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            if self.quantization.get("board_bundle") is True:
                raise BundleError(
                    f"{self.path}: is a board bundle's model, which has the embedding and no other weight; run the board "
                    "bundle on its board, or the bundle that it was made from"
                )
            raise BundleError(f"{self.path}: has no tensor {name}; quantize the checkpoint again")
        return self.tensors[name]

    def check(self, graph: Graph) -> None:
        """Check that the bundle has all weights of a graph, and that its manifest says whether passes need features.

        Raises:
            BundleError: a tensor is missing, has another shape, or is an embedding of int4, or the manifest requires
                "pass_features" and the graph has no such input, or the other way round.
        """
        if bool(graph.features) != self.needs_features:
            reads, states = ("reads", "does not require") if graph.features else ("does not read", "requires")
            raise BundleError(
                f"{self.path}: its model {reads} features beside ids, and its manifest {states} {PASS_FEATURES!r}; quantize "
                "the checkpoint again"
            )
        for name, spec in graph.weights.items():
            if self._tensor(name).shape != spec.shape:
                raise BundleError(
                    f"{self.path}: tensor {name} is {self.tensors[name].shape}, the configuration says {spec.shape}"
                )
        for operation in graph.operations:
            if not isinstance(operation, Embed):
                continue
            scheme = self.tensors[operation.weight].scheme
            if isinstance(scheme, Int4Scheme):
                raise BundleError(
                    f"{self.path}: tensor {operation.weight} is {scheme.kind}, which an embedding never is"
                )


def _has_small_scale(scheme: Scheme) -> bool:
    """Return whether a tensor has at most one scale for each row; groups have more, which are read with their row."""
    return isinstance(scheme, Int8Scheme) or (isinstance(scheme, TernaryScheme) and not scheme.group_size)


@dataclass(kw_only=True)
class BundleWriter:
    """Write tensors one after the other. ``BundleWriter.create`` makes a writer."""

    folder: Path
    file: IO[bytes]
    tensors: dict[str, Any] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)
    _hash: Any = field(default_factory=large_sha256)

    @classmethod
    @contextmanager
    def create(cls, path: str | os.PathLike[str]) -> Iterator[BundleWriter]:
        """Yield a writer whose complete bundle appears at ``path`` when the body ends; the body must call ``finish`` last.

        Raises:
            UsageError, EdgedecError: ``edgedec.bundle.atomic.new_folder`` raises them.
        """
        with new_folder(Path(path), MANIFEST) as folder, (folder / WEIGHTS).open("wb") as file:
            writer = cls(folder=folder, file=file)
            yield writer
            assert (folder / MANIFEST).exists(), "finish was not called"

    def _write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self._hash.update(data)

    def add(
        self, name: str, scheme: Scheme, shape: tuple[int, ...], parts: Mapping[str, Array], *, embedding: bool = False
    ) -> None:
        """Append one tensor; the arrays must have the dtypes and shapes of ``scheme.parts(shape)``.

        Args:
            embedding: an embedding reads the tensor, which is a feature of the bundle if the scheme is ternary.
        """
        offsets = {}
        assert name not in self.tensors, f"tensor {name} was already written"
        for part, spec in scheme.parts(shape).items():
            array = np.ascontiguousarray(parts[part])
            assert (array.dtype, array.shape) == (spec.dtype, spec.shape), f"{name}: {part} is {array.shape}"
            self._write(b"\0" * (-self.file.tell() % ALIGNMENT))
            offsets[part] = self.file.tell()
            self._write(array.view(np.uint8).reshape(-1).data)
        self.features |= scheme_features(scheme)
        if embedding and isinstance(scheme, TernaryScheme):
            self.features.add(TERNARY_EMBEDDING)
        self.tensors[name] = {"shape": list(shape), "scheme": scheme_to_json(scheme), "offsets": offsets}

    def weights_entry(self) -> dict[str, Any]:
        """Return the manifest's entry of the file with the tensors that were added; no tensor may follow."""
        self.file.flush()
        return {"bytes": self.file.tell(), "sha256": self._hash.hexdigest()}

    def require_inputs(self, graph: Graph) -> None:
        """Let the manifest require the inputs of the model's graph that an older edgedec does not have."""
        if graph.features:
            self.features.add(PASS_FEATURES)

    def finish(
        self,
        *,
        config: Mapping[str, Any],
        quantization: Mapping[str, Any],
        tokens: Tokens,
        tokenizer_json: str,
        chat_template: str | None,
        tokenizer_identity: str | None = None,
    ) -> None:
        """Write the remaining files and the manifest. The tokenizer gets its canonical form, so that its hash names it.

        ``tokenizer_identity`` names it instead if another file may describe the same tokenizer.
        """
        self.features |= {key for key in (ROTATED_WEIGHTS, KV_POLICY) if config.get(key) is not None}
        tokenizer_json = json.dumps(
            json.loads(tokenizer_json), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        files = {WEIGHTS: self.weights_entry()}
        for name, text in ((TOKENIZER, tokenizer_json), (TEMPLATE, chat_template)):
            if text is not None:
                data = text.encode("utf-8")
                (self.folder / name).write_bytes(data)
                files[name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        content = {
            **({"requires": sorted(self.features)} if self.features else {}),
            "created_by": f"edgedec {__version__}",
            **({} if tokenizer_identity is None else {TOKENIZER_IDENTITY: tokenizer_identity}),
            "config": dict(config),
            "quantization": dict(quantization),
            "tokens": asdict(tokens),
            "files": files,
            "tensors": self.tensors,
        }
        (self.folder / MANIFEST).write_bytes(encode_manifest(content))
