"""Make a target, a draft model with some of the target's tensors, and the bundle of this draft that borrows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgedec.borrowing_bundle import write_borrowing
from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.lending import lend_tensors
from edgedec.bundle.manifest import MANIFEST, Tokens, encode_manifest
from edgedec.families import build_graph
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.schemes import Int8Scheme
from tests.edgedec.cli.support.make_known_model import byte_tokenizer
from tests.support.make_tiny import SCHEMES, random_schemes, random_tensors

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SHAPE: Mapping[str, Any] = {**SHAPES["demo"], "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256}


class Pair(NamedTuple):
    """The folders of a target, of a draft model that has all its tensors, and of the same one that borrows some."""

    target: Path
    whole: Path
    borrowing: Path

    def draft(self, *, resident: bool = False) -> Bundle:
        """Return the borrowing draft with the target's tensors."""
        return lend_tensors(Bundle.open(self.borrowing, borrows=True), Bundle.open(self.target), resident=resident)


def write_model(
    path: Path, kind: str, config: Mapping[str, Any], *, seed: int, like: Path | None = None, shared: Sequence[str] = ()
) -> None:
    """Write a model with random weights, and with the tensors ``shared`` of ``like``; the embedding is int8 or float."""
    graph = build_graph(config)
    schemes = random_schemes(graph, SCHEMES[kind])
    if SCHEMES[kind].kind != "float":
        schemes[EMBEDDING] = Int8Scheme(rows=True)
    parts = random_tensors(graph, schemes, seed)[0]
    if like is not None:
        model = Bundle.open(like)
        for name in shared:
            parts[name] = {
                part: model.array(name, part) for part in model.tensors[name].scheme.parts(model.tensors[name].shape)
            }
    with BundleWriter.create(path) as writer:
        for name, spec in graph.weights.items():
            writer.add(name, schemes[name], spec.shape, parts[name])
        writer.finish(
            config=config,
            quantization={"method": kind},
            tokens=Tokens(size=258, bos=256, eos=(257,)),
            tokenizer_json=byte_tokenizer().to_str(),
            chat_template=None,
        )


def write_pair(
    folder: Path,
    kind: str = "int8",
    *,
    shared: Sequence[str] = (EMBEDDING, HEAD),
    changes: Mapping[str, Any] | None = None,
) -> Pair:
    """Write the three bundles to ``folder``; the draft has one layer, and the target two."""
    config = {**SHAPE, **(changes or {})}
    pair = Pair(folder / "target", folder / "whole", folder / "borrowing")
    write_model(pair.target, kind, {**config, "num_hidden_layers": 2}, seed=1)
    write_model(pair.whole, kind, {**config, "num_hidden_layers": 1}, seed=2, like=pair.target, shared=shared)
    write_borrowing(Bundle.open(pair.whole), Bundle.open(pair.target), pair.borrowing)
    return pair


def forge(folder: Path, change: Any) -> Path:
    """Let ``change`` alter the manifest's content, sign it again as its maker would, and return the folder."""
    content = json.loads((folder / MANIFEST).read_bytes())
    change(content)
    kept = {key: value for key, value in content.items() if key not in ("format", "version", "sha256")}
    (folder / MANIFEST).write_bytes(encode_manifest(kept))
    return folder
