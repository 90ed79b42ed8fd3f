"""The embedded models: a ternary target of 7.9 M parameters that tells simple stories and answers questions about them, a
draft of 0.4 M, and a hybrid of the target's size, most of whose layers have recurrent states. Their tokenizer is the same.

docs/demo-model.md says how they were made. ``-m demo`` names the target's bundle, ``-m demo-int8`` the same in int8,
``-m demo-draft`` the draft's, ``-m demo-hybrid`` the hybrid's; they are made on first use and kept in the cache folder.
"""

from __future__ import annotations

import logging
import zlib
from functools import cache
from pathlib import Path

from edgedec import __version__, quantize
from edgedec.api import quantize_checkpoint
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.digests import sha256
from edgedec.errors import BundleError, UsageError
from edgedec.host.paths import cache_folder, clear_cached
from edgedec.host.spelling import did_you_mean
from edgedec.progress import Progress, silent

__all__ = [
    "CHOICES",
    "DRAFT",
    "DRAFTS",
    "HELD_OUT",
    "HYBRID",
    "NAMES",
    "TARGET",
    "bundle_path",
    "figures_path",
    "kept_path",
]

_HERE = Path(__file__).parent
TARGET = _HERE / "target"  # one ternary plane, in the BitNet layout of Hugging Face
DRAFT = _HERE / "draft"  # bfloat16
HYBRID = _HERE / "hybrid"  # one ternary plane; three of four layers are gated delta nets
HELD_OUT = _HERE / "held_out.txt"  # stories that neither was trained on
DRAFTS = _HERE / "drafts.json"  # measured acceptance of drafts of several sizes of an earlier target, and their recipe
CHOICES = _HERE / "choices.jsonl"  # multiple choice about such stories, and simple facts

_PIECE_BYTES = 1 << 18  # a file is read in pieces, because the heap would keep the room of a whole one

# Name on the command line -> (checkpoint, method of its bundle).
NAMES = {
    "demo": (TARGET, "ternary"),
    "demo-int8": (TARGET, "int8"),
    "demo-draft": (DRAFT, "int8"),
    "demo-hybrid": (HYBRID, "ternary"),
}


@cache
def _digest() -> str:
    """Return the name of the checkpoints and the code that quantizes: a change of either makes new bundles.

    The content of a file counts by its size and its checksum. This is enough to notice changes, and a start reads all files:
    SHA-256 would take several times as long, or map libcrypto.
    """
    digest, piece = sha256(__version__.encode()), memoryview(bytearray(_PIECE_BYTES))
    trained = {"distil", "kv_calibration"}  # folders of code that quantizes nothing
    code = sorted(file for file in Path(quantize.__path__[0]).glob("**/*.py") if trained.isdisjoint(file.parts))
    for file in [*(file for folder in (TARGET, DRAFT, HYBRID) for file in sorted(folder.iterdir())), *code]:
        size = checksum = 0
        with file.open("rb", buffering=0) as opened:
            while count := opened.readinto(piece):
                size, checksum = size + count, zlib.crc32(piece[:count], checksum)
        digest.update(f"{file.name}\0{size}\0{checksum}\0".encode())
    return digest.hexdigest()[:12]


def bundle_path(name: str = "demo", *, progress: Progress = silent) -> Path:
    """An embedded model's bundle, quantized now if the cache does not hold it.

    Raises:
        UsageError: unknown name.
        EdgedecError: the cache folder cannot be written.
    """
    if name not in NAMES:
        raise UsageError(f"there is no embedded model {name!r}; known: {', '.join(NAMES)}{did_you_mean(name, NAMES)}")
    path = kept_path(name)
    try:
        Bundle.open(path)
    except (BundleError, UsageError):  # damaged, or not made yet
        clear_cached(path, MANIFEST)
        _quantize(*NAMES[name], path, progress)
    return path


def kept_path(name: str) -> Path:
    """Return the place of an embedded model's bundle in the cache, which may not hold it yet.

    Raises:
        EdgedecError: there is no cache folder.
    """
    return cache_folder() / f"{name}-{_digest()}.edgedec"


def figures_path(bundle: Path) -> Path:
    """Return the place beside an embedded model's bundle in which the demo keeps the figures that it measured."""
    return bundle.with_suffix(".json")


def _quantize(source: Path, method: str, path: Path, progress: Progress) -> None:
    """Quantize without the notes, which are for whoever chooses a method: the twin in int8 is there for comparison."""
    log = logging.getLogger("edgedec.quantize")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        quantize_checkpoint(source, path, method=method, progress=progress)
    finally:
        log.setLevel(before)
