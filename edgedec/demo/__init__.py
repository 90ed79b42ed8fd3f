"""The embedded model: a Llama of 4.3 M parameters that tells simple stories, shipped as a bfloat16 checkpoint.

docs/demo-model.md says how it was made. ``-m demo`` names its int8 bundle, which is made on first use and kept in the
cache folder.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from edgedec import __version__, quantize
from edgedec.bundle import Bundle
from edgedec.errors import BundleError, UsageError
from edgedec.paths import cache_folder
from edgedec.progress import Progress, silent

__all__ = ["HELD_OUT", "METHODS", "MODEL", "bundle_path"]

MODEL = Path(__file__).parent / "model"
HELD_OUT = Path(__file__).parent / "held_out.txt"  # stories that it was not trained on, to measure
CALIBRATION = Path(__file__).parent / "calibration.txt"  # others, to calibrate
METHODS = {"int8": 0, "2 planes": 2, "3 planes": 3}  # name -> ternary planes


@cache
def _digest() -> str:
    """Names the checkpoint, the texts, and the code that quantizes: a change of any makes new bundles."""
    digest = hashlib.sha256(__version__.encode())
    code = sorted(Path(quantize.__path__[0]).glob("**/*.py"))
    for file in [*sorted(MODEL.iterdir()), CALIBRATION, HELD_OUT, *code]:
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def bundle_path(method: str = "int8", *, progress: Progress = silent) -> Path:
    """The embedded model's bundle, quantized now if the cache does not hold it.

    Raises:
        UsageError: unknown method.
        EdgedecError: the cache folder cannot be written.
    """
    if method not in METHODS:
        raise UsageError(f"the embedded model has no method {method!r}; known: {', '.join(METHODS)}")
    path = cache_folder() / f"demo-{method.replace(' ', '-')}-{_digest()}.edgedec"
    try:
        Bundle.open(path)
    except (BundleError, UsageError):  # damaged, or not made yet
        _quantize(path, METHODS[method], progress)
    return path


def _quantize(path: Path, planes: int, progress: Progress) -> None:
    # Imported here: a runtime that opens the kept bundle needs no quantizer.
    from edgedec.quantize.calibration import cut_windows, full_windows
    from edgedec.quantize.pipeline import QuantizeOptions
    from edgedec.quantize.pipeline import quantize as write_bundle
    from edgedec.quantize.readers import open_checkpoint
    from edgedec.runtime.tokenizer import Tokenizer

    checkpoint = open_checkpoint(MODEL)
    tokenizer = Tokenizer(checkpoint.tokenizer_json)
    text = tokenizer.encode(CALIBRATION.read_text("utf-8"), add_special=False)
    calibration = full_windows(cut_windows(text, length=256, bos=checkpoint.bos_token_id))
    options = QuantizeOptions(method="ternary" if planes else "int8", planes=planes)
    write_bundle(
        checkpoint,
        path,
        options,
        vocab_limit=tokenizer.size,
        calibration=calibration if planes else None,
        progress=progress,
    )
