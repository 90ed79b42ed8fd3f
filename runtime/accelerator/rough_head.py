"""The rough head of a model, fitted to the codes of its own text, and a cache of it on disk, because that takes minutes."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from edgedec import quantize
from edgedec.bundle.atomic import new_file
from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.families import context_size
from edgedec.host.paths import cache_folder
from edgedec.progress import Progress
from edgedec.quantize.methods.planes import Statistics, balanced_trits
from edgedec.quantize.methods.rough import quantize_rows
from edgedec.reference.integer_profile.calibrate import default_windows
from edgedec.reference.integer_profile.model import IntegerModel
from edgedec.reference.integer_profile.rough_head import head_codes, head_of, with_rough_head
from edgedec.runtime.accelerator.calibrated import profile_code
from edgedec.runtime.accelerator.weights import head_weight
from edgedec.schemes import Int8Weight

__all__ = ["rough_model"]

_LOG = logging.getLogger(__name__)
_MOST = (0, 1, 4)  # the largest weight of so many planes

I8 = NDArray[np.int8]
F32 = NDArray[np.float32]


def rough_model(
    bundle: Bundle, model: IntegerModel, planes: int, *, candidates: int, progress: Progress
) -> IntegerModel:
    """Return a bundle's model with a rough head.

    It is from the cache folder if it was fitted for the same bundle by the same code.

    Args:
        bundle: the bundle.
        model: its model in the integer profile.
        planes: planes of trits, 1 or 2.
        candidates: ids of a row that are scored again.
        progress: called while the text is made to which it is fitted.

    Raises:
        UnsupportedError: the head is not int8.
    """
    weight = head_weight(bundle, head_of(model.graph).weights[0])
    file = cache_folder() / "rough-heads" / f"{bundle.sha256[:16]}-{planes}-{_code()}.npz"
    kept = _read(file, weight, _MOST[planes])
    codes, scale = _fitted(bundle, model, weight, _MOST[planes], progress) if kept is None else kept
    if kept is None:
        try:
            with new_file(file) as partial, partial.open("wb") as stream:
                np.savez(stream, codes=_pack(codes), scale=scale)
        except EdgedecError as error:
            _LOG.warning("the rough head is not kept: %s", error)
    return with_rough_head(model, weight, balanced_trits(codes, planes), scale, candidates=candidates)


def _fitted(bundle: Bundle, model: IntegerModel, weight: Int8Weight, most: int, progress: Progress) -> tuple[I8, F32]:
    """Return the rough weights -most..most, int8 [vocab, width], and their scales, float32 [vocab]."""
    kept = {name: bundle.weight(name) for name in model.graph.weights}
    context = context_size(bundle.config)
    windows = default_windows(model.graph, kept.__getitem__, bundle.tokens, context=context, progress=progress)
    codes = head_codes(model, windows).astype(np.float64)
    return quantize_rows(weight.dense(), most, Statistics(gram=codes.T @ codes))


def _pack(codes: I8) -> NDArray[np.uint8]:
    """Return weights -4..4 as bytes of two, uint8 [vocab, width rounded up to pairs]."""
    even: NDArray[np.uint8] = np.pad((codes + _MOST[-1]).astype(np.uint8), ((0, 0), (0, codes.shape[1] % 2)))
    packed: NDArray[np.uint8] = even[:, 0::2] | even[:, 1::2] << np.uint8(4)
    return packed


def _read(file: Path, weight: Int8Weight, most: int) -> tuple[I8, F32] | None:
    """Return the weights -most..most and scales in a file; None if it is missing or damaged."""
    vocab, width = weight.codes.shape
    try:
        with np.load(file, allow_pickle=False) as content:
            packed, scale = content["codes"], content["scale"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    if packed.dtype != np.uint8 or packed.shape != (vocab, (width + 1) // 2) or scale.shape != (vocab,):
        return None
    both = np.stack([packed & 15, packed >> 4], axis=2).reshape(vocab, -1)[:, :width].astype(np.int8) - np.int8(
        _MOST[-1]
    )
    usable = (
        scale.dtype == np.float32 and np.isfinite(scale).all() and (scale >= 0).all() and np.abs(both).max() <= most
    )
    return (both, scale) if usable else None


def _code() -> str:
    """Return a hash of the source code on which a rough head depends."""
    digest = hashlib.sha256(profile_code().encode())
    for path in sorted((Path(quantize.__path__[0]) / "methods").glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
