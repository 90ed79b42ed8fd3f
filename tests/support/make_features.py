"""Bundles of a family that reads features beside ids, registered for a test as a plug-in is: by its place alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import families
from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.families import build_graph
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.protocols import F32
from edgedec.schemes import FloatScheme
from tests.support.make_tiny import TOKENIZER, random_schemes, random_tensors

__all__ = ["FAMILIES", "FEATURES", "HEAD", "features", "head_family", "write_head"]

FAMILIES = Path(__file__).with_name("families")  # folder of the families that tests add
_FAMILY = "feature_head"
FEATURES = 40  # width of the features
# Odd sizes as in test_targets.py; the width of the features is no multiple of 64 and not the width of the model.
HEAD: dict[str, Any] = {
    "model_type": _FAMILY,
    "feature_size": FEATURES,
    "hidden_size": 72,
    "intermediate_size": 172,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 101,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-5,
}


@contextmanager
def head_family() -> Iterator[None]:
    """Let edgedec find the family of ``tests/support/families``."""
    module = f"{families.__name__}.{_FAMILY}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families, "__path__", [*families.__path__, str(FAMILIES)])
        try:
            yield
        finally:
            sys.modules.pop(module, None)
            vars(families).pop(_FAMILY, None)


def write_head(path: Path, method: str = "int8", *, config: dict[str, Any] | None = None, **options: Any) -> Bundle:
    """Write a bundle of the family with random weights and open it.

    Args:
        path: the folder.
        method: one of ``write_random_bundle``, or "float".
        config: changes of ``HEAD``.
        options: further arguments of ``write_random_bundle``.
    """
    changed = HEAD | (config or {})
    if method != "float":
        write_random_bundle(path, changed, method, **options)
        return Bundle.open(path)
    graph = build_graph(changed)
    schemes = random_schemes(graph, FloatScheme())
    parts, _ = random_tensors(graph, schemes)
    with BundleWriter.create(path) as writer:
        writer.require_inputs(graph)
        for name, spec in graph.weights.items():
            writer.add(name, schemes[name], spec.shape, parts[name])
        writer.finish(
            config=changed,
            quantization={"method": method},
            tokens=Tokens(size=changed["vocab_size"]),
            tokenizer_json=TOKENIZER,
            chat_template=None,
        )
    return Bundle.open(path)


def features(rows: int, seed: int = 0, width: int = FEATURES) -> F32:
    """Return random features float32 [rows, width]."""
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
