"""Write a random model of Ternary-Bonsai 1.7B's shape, with the same trits as a bundle and as llama.cpp's GGUF.

Embedding, head and all matrices of the layers are ternary in groups of 128 columns. All scales are equal, so that
llama.cpp's types hold the same weights exactly, whether their blocks have 64 columns (Q2_0) or 256 (TQ2_0).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.support.shapes import BONSAI_17B
from edgedec import demo
from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.families import build_graph
from edgedec.progress import Progress, silent
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.schemes import FloatScheme, TernaryScheme

__all__ = ["CONFIG", "write_bundle", "write_gguf"]

# One matrix is embedding and head, and queries and keys have norms, as in the checkpoint.
CONFIG: Mapping[str, Any] = MappingProxyType({**BONSAI_17B, "model_type": "qwen3", "tie_word_embeddings": True})
_SCHEME = TernaryScheme(group_size=128, half_scales=True)
_SCALE = 2.0**-5  # exact in float16, and about the size that keeps activations near 1


def write_bundle(path: Path, progress: Progress = silent, *, config: Mapping[str, Any] = CONFIG) -> None:
    """Write the bundle (0.43 GB). Its tokenizer is the embedded model's, because speed does not depend on it."""
    rng = np.random.default_rng(0)
    specs = build_graph(config).weights
    with BundleWriter.create(path) as writer:
        for done, (name, spec) in enumerate(specs.items()):
            progress(name, done, len(specs))
            if len(spec.shape) == 1:
                writer.add(name, FloatScheme(), spec.shape, {"values": np.ones(spec.shape, np.float32)})
                continue
            codes = _SCHEME.pack(rng.integers(-1, 2, (1, *spec.shape), np.int8))
            scale = np.full(_SCHEME.parts(spec.shape)["scale"].shape, _SCALE, _SCHEME.scale_dtype)
            writer.add(name, _SCHEME, spec.shape, {"codes": codes, "scale": scale})
        writer.finish(
            config=config,
            quantization={"method": "ternary", "made_by": "benchmarks/cpu/bonsai_model.py, at random"},
            tokens=Tokens(size=config["vocab_size"]),
            tokenizer_json=Bundle.open(demo.bundle_path("demo")).tokenizer_file.read_text("utf-8"),
            chat_template=None,
        )


def write_gguf(path: Path, bundle: Path, kind: str, progress: Progress = silent) -> None:
    """Write the bundle as a GGUF whose matrices are all of ``kind``, "Q2_0" or "TQ2_0".

    Raises:
        EdgedecError: the file cannot be written.
        UsageError: there is no such kind.
    """
    export_gguf(Bundle.open(bundle), path, trit_type=kind, progress=progress)
