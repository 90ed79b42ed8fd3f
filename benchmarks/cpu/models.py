"""Write the models that the CPU benchmarks measure, once each, to edgedec's cache folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu import bonsai_model
from benchmarks.peers import llama_cpp
from benchmarks.support import shapes
from edgedec.bundle import manifest
from edgedec.cli.console import progress
from edgedec.host.paths import cache_folder

__all__ = ["BITNET", "BONSAI", "CONFIGS", "Models", "make_models", "peer_kinds"]

CONFIGS: Mapping[str, Mapping[str, Any]] = {"bitnet-0.73b": shapes.BITNET_073B, "bonsai-1.7b": bonsai_model.CONFIG}
BITNET, BONSAI = CONFIGS


@dataclass(frozen=True, kw_only=True)
class Models:
    bundle: Path
    gguf: Path


def peer_kinds(model: str, weights: str) -> tuple[str, ...]:
    """Return llama.cpp's types for a model's matrices, the usual one first."""
    return ("Q2_0", "TQ2_0") if model == BONSAI else ({"ternary": "TQ2_0", "int4": "Q4_0"}[weights],)


def make_models(
    llama: llama_cpp.LlamaCpp | None, kind: str | None = None, weights: str = "ternary", model: str = BITNET
) -> Models:
    """Return the paths of both models, which are written if they are missing. ``kind`` is the peer's type of weights.

    Raises:
        EdgedecError: a model cannot be written, or there is no such type.
    """
    kind = kind or peer_kinds(model, weights)[0]
    revision = f"random-{'' if weights == 'ternary' else f'{weights}-'}{shapes.REVISION}"
    name = str(cache_folder() / "benchmarks" / f"{model}-{revision}")
    label = llama.label if llama else ""
    models = Models(bundle=Path(f"{name}.v{manifest.VERSION}.edgedec"), gguf=Path(f"{name}.{label}{kind}.gguf"))
    if not models.bundle.exists():
        with progress("our model, once") as bar:
            if model == BONSAI:
                bonsai_model.write_bundle(models.bundle, bar)
            else:
                shapes.write_bundle(models.bundle, CONFIGS[model], bar, weights=weights)
    if llama is not None and not models.gguf.exists():
        with progress("llama.cpp's model, once") as bar:
            if model == BONSAI:
                bonsai_model.write_gguf(models.gguf, models.bundle, kind, bar)
                return models
            full = models.gguf.with_suffix(".F16.gguf")
            try:
                shapes.write_gguf(full, CONFIGS[model], bar, weights=weights)
                llama_cpp.quantize_gguf(llama, full, models.gguf, kind)
            finally:
                full.unlink(missing_ok=True)  # 1.5 GB
    return models
