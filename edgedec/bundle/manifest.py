"""Read and write a bundle's manifest, and check the files against it. See docs/bundle-format.md.

Bundles may come from untrusted sources: every error is a ``BundleError`` that names the file, and no allocation depends on
the manifest alone.
"""

from __future__ import annotations

import json
import math
import mmap
import re
import reprlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec import __version__
from edgedec.bundle.borrows import BORROWS, Borrows, read_borrows
from edgedec.bundle.tensor_entries import ALIGNMENT, Tensor, check_overlaps, is_size, naming, read_tensor
from edgedec.bundle.verified import is_verified, verifying
from edgedec.digests import sha256, sha256_of_size
from edgedec.errors import BundleError, UnsupportedError
from edgedec.kv.policy import KV_POLICY, read_policy
from edgedec.schemes import TernaryScheme

__all__ = [
    "ALIGNMENT",
    "FEATURES",
    "FORMAT",
    "KV_PERPLEXITY",
    "MANIFEST",
    "PASS_FEATURES",
    "READABLE_VERSIONS",
    "ROTATED_WEIGHTS",
    "TEMPLATE",
    "TERNARY_EMBEDDING",
    "TOKENIZER",
    "TOKENIZER_IDENTITY",
    "VERSION",
    "WEIGHTS",
    "Manifest",
    "Tensor",
    "Tokens",
    "encode_manifest",
    "manifest_hash",
    "naming",
    "open_manifest",
]

FORMAT, VERSION = "edgedec-bundle", 1  # name of the format, and the version that is written
READABLE_VERSIONS = (1,)  # versions that are opened, in ascending order; docs/bundle-format.md has the rule
TERNARY_EMBEDDING = "ternary_embedding"  # feature of bundles whose embedding is ternary
ROTATED_WEIGHTS = (
    "hadamard"  # feature of bundles with weights that are stored rotated, and their key in the configuration
)
PASS_FEATURES = "pass_features"  # feature of bundles whose graph reads values beside the ids (``Graph.features``)
# Features of a manifest's "requires" that this edgedec knows.
FEATURES = frozenset(
    {"int4", "tied_planes", "half_scales", TERNARY_EMBEDDING, ROTATED_WEIGHTS, KV_POLICY, BORROWS, PASS_FEATURES}
)
MANIFEST, WEIGHTS, TOKENIZER, TEMPLATE = "manifest.json", "weights.bin", "tokenizer.json", "chat_template.jinja"
KV_PERPLEXITY = "kv_perplexity"  # key of a manifest's "quantization", read by ``edgedec.runtime.kv_precision``
TOKENIZER_IDENTITY = "tokenizer_identity"  # key of a manifest that names what the token ids mean
MAX_MANIFEST_BYTES = 16 << 20  # a tensor takes about 300 bytes; hostile JSON can take 20 times its size in memory
# Bytes of a weight that are checked at once. When a larger, mapped block is freed, glibc keeps all smaller ones after it.
_CHUNK_BYTES = 96 << 10
_HASHED_BYTES = 1 << 18  # bytes that are hashed at once
_FILE_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # a plain name, which cannot lead out of the folder
_KEYS = {"format", "version", "created_by", "config", "quantization", "tokens", "files", "tensors", "sha256"}


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The vocabulary's size and special tokens. Ids from ``size`` on are padding and never sampled."""

    size: int
    bos: int | None = None
    eos: tuple[int, ...] = ()


def manifest_hash(data: bytes, stated: str) -> str:
    """Return the SHA-256 of a manifest's bytes with the ``stated`` hash, which is last in the file, replaced by zeros."""
    before, _, after = data.rpartition(stated.encode())
    return sha256(before + b"0" * 64 + after).hexdigest()


def _hash_file(path: Path, stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the SHA-256 of a file; of its beginning only, once ``stopped`` returns True."""
    digest = sha256_of_size(path.stat().st_size)
    # One buffer for all reads, because peak memory is part of what a run is charged. It is mapped, because the
    # heap of a thread that has ended keeps its pages.
    buffer = memoryview(mmap.mmap(-1, _HASHED_BYTES))
    with path.open("rb", buffering=0) as file:
        while (size := file.readinto(buffer)) and not stopped():
            digest.update(buffer[:size])
    return digest.hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _number(text: str) -> float:
    """Parse a finite number. Python also accepts NaN, Infinity and 1e400, which other JSON readers reject or misread."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{reprlib.repr(text)} is not a finite number")
    return number


def _remedy(file: Path, manifest: Mapping[str, Any]) -> str:
    """Return the two next steps if a newer edgedec wrote the bundle."""
    return (
        f"install a newer edgedec ({reprlib.repr(manifest.get('created_by'))} wrote the bundle), or make the bundle "
        f"again with: edgedec quantize CHECKPOINT -o {file.parent}"
    )


def _check_version(file: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse an unknown version. This is checked before the hash, which another version may define differently."""
    version, readable = manifest.get("version"), ", ".join(map(str, READABLE_VERSIONS))
    if type(version) is not int or version < 1:
        raise BundleError(
            f"{file}: version must be a positive integer, not {reprlib.repr(version)}; copy or quantize the bundle again"
        )
    if version in READABLE_VERSIONS:
        return
    if version > READABLE_VERSIONS[-1]:
        raise UnsupportedError(
            f"{file}: has version {reprlib.repr(version)} of the bundle format, and edgedec {__version__} reads "
            f"{readable}; {_remedy(file, manifest)}"
        )
    raise UnsupportedError(
        f"{file}: has version {version} of the bundle format, which edgedec {__version__} no longer reads (it reads "
        f"{readable}); make the bundle again with: edgedec quantize CHECKPOINT -o {file.parent}"
    )


def _check_features(file: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that requires a feature which this edgedec does not know."""
    required = manifest.get("requires", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise BundleError(f"{file}: requires must be a list of names, not {reprlib.repr(required)}")
    if unknown := sorted(set(required) - FEATURES):
        raise UnsupportedError(
            f"{file}: requires {reprlib.repr(unknown)}, which edgedec {__version__} does not know; "
            f"{_remedy(file, manifest)}"
        )


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise BundleError(f"{file}: larger than {MAX_MANIFEST_BYTES} bytes; this is not a bundle")
    data = file.read_bytes()
    try:
        manifest = json.loads(data, object_pairs_hook=_unique, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not valid JSON ({error}); copy or quantize the bundle again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{file}: not an edgedec bundle")
    _check_version(file, manifest)
    stated = manifest.get("sha256")
    if not re.fullmatch("[0-9a-f]{64}", str(stated)) or manifest_hash(data, str(stated)) != stated:
        raise BundleError(f"{file}: its hash does not match its content; copy or quantize the bundle again")
    _check_features(file, manifest)
    if missing := sorted(_KEYS - set(manifest)):
        raise BundleError(f"{file}: the keys {', '.join(missing)} are missing; quantize the checkpoint again")
    for key in ("config", "quantization", "tokens", "files", "tensors"):
        if not isinstance(manifest[key], dict):
            raise BundleError(f"{file}: {key} must be an object")
    return manifest


def _check_files(path: Path, files: Mapping[str, Any]) -> None:
    """Check that every listed file has a plain name, exists, and has its size; check the hash of all but the weights.

    Files that this edgedec does not know are checked like the others, and then not used.
    """
    if not {WEIGHTS, TOKENIZER} <= set(files):
        raise BundleError(f"{path / MANIFEST}: must list {WEIGHTS} and {TOKENIZER}")
    for name, entry in files.items():
        if not _FILE_NAME.fullmatch(name) or name == MANIFEST:
            raise BundleError(
                f"{path / MANIFEST}: lists the file {reprlib.repr(name)}; a file's name must have 1 to 64 letters, "
                f"digits, '_', '-' or '.', not begin with one of the last two, and not be {MANIFEST}"
            )
        file = path / name
        if not file.is_file():
            raise BundleError(f"{file}: missing; copy or quantize the bundle again")
        if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
            raise BundleError(f"{path / MANIFEST}: file {name} must have bytes and sha256, not {reprlib.repr(entry)}")
        there, stated = file.stat().st_size, entry["bytes"]
        if type(stated) is not int or stated != there:
            raise BundleError(f"{file}: {there} bytes, the manifest says {reprlib.repr(stated)}; copy the bundle again")
        if name != WEIGHTS:
            _match(file, entry, _hash_file(file))


def _check_policy(file: Path, content: Mapping[str, Any]) -> None:
    """Check that the policy of the configuration, if there is one, was made for the weights of this bundle."""
    with naming(file):
        policy = read_policy(content["config"])
    stored = content["files"][WEIGHTS]["sha256"]
    if policy is not None and policy.weights_sha256 != stored:
        raise BundleError(
            f"{file}: has a calibration of another bundle, whose {WEIGHTS} have the hash "
            f"{reprlib.repr(policy.weights_sha256)} and not {stored}; calibrate the bundle of these weights with: edgedec "
            "calibrate-kv"
        )


def _match(file: Path, entry: Mapping[str, Any], actual: str) -> None:
    if actual != entry["sha256"]:
        raise BundleError(f"{file}: its hash does not match the manifest; copy or quantize the bundle again")


def _fault(part: str, ternary: bool, values: NDArray[Any]) -> str | None:
    """Return the fault of some values of a part, or None."""
    if values.dtype == np.uint8 and not ternary:
        return "are not in 0..63" if part == "steps" and values.max() > 63 else None
    if values.dtype == np.uint8:
        # A byte has four codes, and each code has at least one of its two bits set.
        return None if np.bitwise_and.reduce(values | values >> 1) & 0x55 == 0x55 else "are not trits"
    if values.dtype == np.int8:
        return None if values.min() >= -127 else "are not in -127..127"
    return None if np.isfinite(values).all() else "holds NaN or infinity"


def _check_values(weights: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check that no scale and no float is NaN or infinity, no int8 code is -128, no ternary code 0, no step over 63.

    Kernels that read the mapped file rely on this. ``Scheme.open`` checks again, because it also accepts arrays that are not
    from a bundle; it alone checks the padding of rows.
    """
    with weights.open("rb") as file:
        for name, tensor in tensors.items():
            ternary = isinstance(tensor.scheme, TernaryScheme)
            for part, spec in tensor.scheme.parts(tensor.shape).items():
                file.seek(tensor.offsets[part])
                left = spec.nbytes
                while data := file.read(min(left, _CHUNK_BYTES)):
                    left -= len(data)
                    if fault := _fault(part, ternary, np.frombuffer(data, spec.dtype)):
                        raise BundleError(
                            f"{weights}: tensor {name}: its {part} {fault}; quantize the checkpoint again"
                        )


def _check_weights(file: Path, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    from concurrent.futures import ThreadPoolExecutor  # a start with known files does without it

    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:  # hashing releases the GIL, so the values are checked meanwhile
        hashed = pool.submit(_hash_file, file, stop.is_set)
        try:
            try:
                _check_values(file, tensors)
            except Exception:  # a damaged file is reported as damaged, whatever its values are
                _match(file, entry, hashed.result())
                raise
            _match(file, entry, hashed.result())
        except BaseException:  # Ctrl-C must not wait for the rest of a large file
            stop.set()
            raise


def _read_tokens(file: Path, entry: Mapping[str, Any], vocab_size: Any) -> Tokens:
    """Read the entry ``tokens``. An integer ``vocab_size`` limits it; the model family refuses any other type."""
    if set(entry) != {"size", "bos", "eos"} or not isinstance(entry["eos"], list):
        raise BundleError(f"{file}: tokens must have size, bos and a list eos, not {reprlib.repr(entry)}")
    size, bos, eos = entry["size"], entry["bos"], entry["eos"]
    ids = [*eos, *([] if bos is None else [bos])]
    for value in (size, *ids):
        if not is_size(value, 2**31 - 1):
            raise BundleError(f"{file}: tokens: {reprlib.repr(value)} is not a token id")
    limit = vocab_size if type(vocab_size) is int else 2**31 - 1
    if not 1 <= size <= limit:
        raise BundleError(
            f"{file}: tokens: size {size} is not in 1..{reprlib.repr(limit)}; quantize the checkpoint again"
        )
    for value in ids:
        if value >= limit:
            raise BundleError(
                f"{file}: tokens: id {value} is not below the vocabulary's {reprlib.repr(limit)}; "
                "quantize the checkpoint again"
            )
    return Tokens(size=size, bos=bos, eos=tuple(eos))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest that was checked against its folder.

    ``tokenizer_hash`` identifies the tokenizer. ``borrows`` has the tensors that are a target's; None: the bundle has all.
    ``requires`` are the names of ``FEATURES`` that a reader must know to use the bundle.
    """

    config: Mapping[str, Any]
    quantization: Mapping[str, Any]
    tokens: Tokens
    tensors: Mapping[str, Tensor]
    file_bytes: Mapping[str, int]
    tokenizer_hash: str
    sha256: str
    borrows: Borrows | None = None
    requires: frozenset[str] = frozenset()


def _tokenizer_hash(file: Path, content: Mapping[str, Any]) -> str:
    """Return what names the tokenizer: what its ids mean, or the hash of its file in bundles that do not say that."""
    identity = content.get(TOKENIZER_IDENTITY, content["files"][TOKENIZER]["sha256"])
    if not isinstance(identity, str) or not re.fullmatch("[0-9a-f]{64}", identity):
        raise BundleError(f"{file}: {TOKENIZER_IDENTITY} must be a SHA-256, not {reprlib.repr(identity)}")
    return identity


def open_manifest(folder: Path, *, weights: bool = True, verify: bool = False) -> Manifest:
    """Read the manifest and check the folder against it.

    Every byte is checked, apart from large weights that were checked before and have not changed since (``verified``).

    Args:
        weights: check the weights too; if False, only the shapes of the manifest may be used.
        verify: read the weights even if they were checked before and have not changed since.

    Raises:
        BundleError: the bundle is damaged or incomplete; the message names the file.
        UnsupportedError: the bundle has a version or requires a feature that this edgedec does not know.
        OSError: a file cannot be read.
    """
    file = folder / MANIFEST
    content = _read_manifest(folder)
    _check_files(folder, content["files"])
    _check_policy(file, content)
    file_bytes = {name: entry["bytes"] for name, entry in content["files"].items()}
    tensors = {name: read_tensor(file, name, entry, file_bytes[WEIGHTS]) for name, entry in content["tensors"].items()}
    check_overlaps(file, tensors)
    borrows = read_borrows(file, content, tensors)
    claim = f"weights of the manifest {content['sha256']}"  # the manifest has their hash, and the types of their values
    if weights and (verify or not is_verified(folder / WEIGHTS, claim)):
        with verifying(folder / WEIGHTS, claim):
            _check_weights(folder / WEIGHTS, content["files"][WEIGHTS], tensors)
    return Manifest(
        config=content["config"],
        quantization=content["quantization"],
        tokens=_read_tokens(file, content["tokens"], content["config"].get("vocab_size")),
        tensors=tensors,
        file_bytes=file_bytes,
        tokenizer_hash=_tokenizer_hash(file, content),
        sha256=content["sha256"],
        borrows=borrows,
        requires=frozenset(content.get("requires", ())),
    )


def encode_manifest(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest file; ``content`` has every key except format, version and hash."""
    zeros = "0" * 64
    whole = {"format": FORMAT, "version": VERSION, **content, "sha256": zeros}
    data = json.dumps(whole, indent=1).encode() + b"\n"
    before, _, after = data.rpartition(zeros.encode())
    return before + manifest_hash(data, zeros).encode() + after
