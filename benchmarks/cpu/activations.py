"""Compare scales for the int8 activations of a bundle: one per token, or one per group of columns.

    .venv/bin/python -m benchmarks.cpu.activations [BUNDLE ...] [--text FILE] [--tokens 2047] [--json]

Each bundle is computed with its own weights, as floats, in NumPy. Before each matrix product the activations stay floats,
or are rounded to codes of 8 bits with a scale absmax / 127 for each token, or for each token and group of columns. No clock
decides, so the figures of two runs are equal.

JSON: {BUNDLE: {"tokens", "float": PPL, "ratios": {"token": PPL / float, "128": ..., "32": ...}}}.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.families import build_graph
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.protocols import F32, I32
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.schemes import FloatWeight

GROUPS = {"token": 0, "128": 128, "32": 32}  # columns that share a scale; 0: all of them
WINDOW = 512


def rounded(x: F32, group: int) -> F32:
    """Return float32 [n, width] rounded to codes of 8 bits with a scale for each row and ``group`` columns."""
    parts = np.split(x, range(group, x.shape[1], group), axis=1) if group else [x]
    result = []
    for part in parts:
        scale = np.abs(part).max(axis=1, keepdims=True) / np.float32(127)
        codes = np.rint(np.divide(part, scale, out=np.zeros_like(part), where=scale > 0))
        result.append(codes * scale)
    return np.concatenate(result, axis=1)


class RoundingModel(ReferenceModel):
    """A model in floats whose matrices read rounded activations; ``group`` None leaves the activations as they are."""

    def __init__(self, bundle: Bundle, group: int | None) -> None:
        graph = build_graph(bundle.config)
        bundle.check(graph)
        weights = {name: FloatWeight(values=bundle.weight(name).dense()) for name in graph.weights}
        super().__init__(graph, weights.__getitem__)
        if group is not None:
            linear, columns = self._run["linear"], group
            self._run["linear"] = lambda op, inputs, context: linear(op, [rounded(inputs[0], columns)], context)


def perplexity(model: ReferenceModel, windows: list[I32]) -> float:
    """Return the perplexity of all tokens but the first of each window."""
    nats, tokens = 0.0, 0
    for ids in windows:
        logits = model.forward(ids[:-1], model.new_cache())[0].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        likely = logits[np.arange(len(ids) - 1), ids[1:]]
        nats += float((np.log(np.exp(logits).sum(axis=1)) - likely).sum())
        tokens += len(ids) - 1
    return float(np.exp(nats / tokens))


def measure(bundle: Bundle, text: str, tokens: int) -> dict[str, Any]:
    """Return the entry of a bundle in the JSON, for the first ``tokens`` tokens of the text."""
    ids = np.asarray(Tokenizer.load(bundle.tokenizer_file).encode(text)[: tokens + 1], np.int32)
    windows = [ids[start : start + WINDOW + 1] for start in range(0, len(ids) - 1, WINDOW)]
    plain = perplexity(RoundingModel(bundle, None), windows)
    ratios = {name: perplexity(RoundingModel(bundle, group), windows) / plain for name, group in GROUPS.items()}
    return {"tokens": len(ids) - 1, "float": plain, "ratios": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", type=Path, metavar="BUNDLE", help="default: the embedded pair")
    parser.add_argument("--text", type=Path, help="default: the embedded pair's held-out stories")
    parser.add_argument("--tokens", type=int, default=2047)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    text = args.text or demo.HELD_OUT
    try:
        result = {
            str(path): measure(Bundle.open(path), text.read_text(encoding="utf-8"), args.tokens)
            for path in args.bundles or [demo.bundle_path(name) for name in ("demo", "demo-draft")]
        }
    except EdgedecError as error:
        sys.stderr.write(f"edgedec: {error}\n")
        return error.exit_code
    if args.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return 0
    for name, entry in result.items():
        ratios = ", ".join(f"{group} {ratio:.4f}" for group, ratio in entry["ratios"].items())
        sys.stdout.write(f"{name}: {entry['tokens']} tokens, perplexity {entry['float']:.4f} in floats; {ratios}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
