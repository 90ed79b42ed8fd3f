"""The embedded model padded to the shape of BitNet b1.58 0.73B: it writes the same text at the speed of the larger shape.

The padding adds weights that change no bit of the logits (``quantize/synthetic/padded_bundle.py``), so the model knows no
more than the embedded one. It is for measuring what speculation is worth where a pass is expensive.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleError, UsageError
from edgedec.host.paths import cache_folder, clear_cached
from edgedec.memory.budget import find_budget
from edgedec.memory.byte_sizes import format_bytes
from edgedec.progress import Progress, silent
from edgedec.quantize.synthetic.padded_bundle import pad_bundle

__all__ = ["DISK_BYTES", "MEMORY_BYTES", "PADDED_SIZES", "padded_bundle", "padded_path", "why_no_room"]

PADDED_SIZES: Mapping[str, int] = {
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 32002,
}
DISK_BYTES = 500_000_000  # bytes on disk: the bundle, 318 MB, and its weights in the kernels' layout, 170 MB
MEMORY_BYTES = (
    600_000_000  # bytes of memory to have free: a run is planned with 385 MB, and making the bundle takes less
)
_SEED = 0  # seed of the padding


def padded_path(source: Bundle) -> Path:
    """Return the place of the padded model of ``source`` in the cache folder, whether it is there or not.

    Raises:
        EdgedecError: the cache folder cannot be used.
    """
    return cache_folder() / f"padded-0.73b-{_SEED}-{source.sha256[:12]}.edgedec"


def padded_bundle(source: Path, progress: Progress = silent) -> Path:
    """Return the path of the padded model, which is written on first use (seconds; ``DISK_BYTES``) and kept.

    Raises:
        EdgedecError: the cache folder cannot be written, or ``source`` is damaged.
    """
    bundle = Bundle.open(source)
    path = padded_path(bundle)
    try:
        Bundle.open(path)
    except (BundleError, UsageError):  # damaged, or not made yet
        clear_cached(path, MANIFEST)
        sizes: dict[str, Any] = dict(PADDED_SIZES)
        pad_bundle(bundle, path, **sizes, seed=_SEED, progress=progress)
    return path


def why_no_room(path: Path) -> str | None:
    """Return why this machine has no room for the padded model at ``path``, as words; None: it has.

    Args:
        path: the place of ``padded_path``. What is there already needs no more room on the disk.
    """
    free = shutil.disk_usage(path.parent).free
    if not path.exists() and free < DISK_BYTES:
        return f"it takes {format_bytes(DISK_BYTES)} on the disk of {path.parent}, which has {format_bytes(free)} free"
    bound = find_budget().bound_by
    if bound is not None and bound.room_bytes < MEMORY_BYTES:
        return (
            f"it takes {format_bytes(MEMORY_BYTES)} of memory, and {format_bytes(bound.room_bytes)} are free under the "
            f"limit of {bound.explain()}"
        )
    return None
