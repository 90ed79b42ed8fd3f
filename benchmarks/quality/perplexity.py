"""Measure the perplexity of every quantization method on one checkpoint, and compare it with the float model's.

    .venv/bin/python -m benchmarks.quality.perplexity CHECKPOINT [--tokenizer FILE] [--json]

Calibration and evaluation text are sampled from the float model, with different seeds; the bundles run on the CPU target.
"Q4_0" has the codes and scales that llama.cpp's llama-quantize would choose, in a bundle that otherwise equals that of int4.
The measurement runs on this machine.

JSON: {"float": PPL, "methods": {NAME: {"perplexity", "ratio", "bits_per_weight", "seconds"}}}.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.q4_0 import write_q4_0_bundle
from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.quantize.calibration import float_perplexity, sample_ids
from edgedec.quantize.pipeline import QuantizeOptions, checkpoint_graph, quantize, tensor_loader
from edgedec.quantize.readers import open_checkpoint
from edgedec.runtime.measure.perplexity import perplexity
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer

METHODS = {
    "int8": QuantizeOptions(method="int8"),
    "int4": QuantizeOptions(method="int4"),
    "Q4_0": QuantizeOptions(method="int4"),
    "planes 1": QuantizeOptions(method="ternary", planes=1),
    "planes 2": QuantizeOptions(method="ternary", planes=2),
    "planes 2, groups of 128": QuantizeOptions(method="ternary", planes=2, group_size=128),
    "planes 2 tied": QuantizeOptions(method="ternary", planes=2, tied=True),
    "planes 2 tied, groups of 32": QuantizeOptions(method="ternary", planes=2, tied=True, group_size=32),
    "planes 3": QuantizeOptions(method="ternary", planes=3, tied=False),
    "planes 3 tied": QuantizeOptions(method="ternary", planes=3, tied=True),
}
CALIBRATION_TOKENS, EVALUATION_TOKENS, WINDOW = 8192, 6144, 256


def measure(checkpoint_path: Path, tokenizer: Path | None, methods: list[str]) -> dict[str, Any]:
    checkpoint = open_checkpoint(checkpoint_path, tokenizer)
    limit = Tokenizer(checkpoint.tokenizer_json).size
    calibration = sample_ids(checkpoint, tokens=CALIBRATION_TOKENS, vocab_limit=limit, seed=0, length=WINDOW)
    windows = list(sample_ids(checkpoint, tokens=EVALUATION_TOKENS, vocab_limit=limit, seed=1, length=WINDOW))
    before = float_perplexity(checkpoint, windows, vocab_limit=limit)
    result: dict[str, Any] = {"float": before, "methods": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in methods:
            options, output, began = METHODS[name], Path(folder) / name, time.perf_counter()
            ids = calibration if options.fitted_scheme and name != "Q4_0" else None
            report = quantize(checkpoint, output, options, vocab_limit=limit, calibration=ids)
            seconds = time.perf_counter() - began
            bundle = Bundle.open(output)
            if name == "Q4_0":
                load = tensor_loader(checkpoint, checkpoint_graph(checkpoint)[1])
                write_q4_0_bundle(bundle, load, Path(folder) / "rounded")
                bundle = Bundle.open(Path(folder) / "rounded")
            limits = make_plan(bundle, RunSettings(ctx_size=len(windows[0]))).limits
            after = perplexity(open_target(bundle, limits=limits), limits, windows, vocab_limit=limit).perplexity
            result["methods"][name] = {
                "perplexity": after,
                "ratio": after / before,
                "bits_per_weight": report.bits_per_weight,
                "seconds": seconds,
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        result = measure(args.checkpoint, args.tokenizer, args.methods)
    except EdgedecError as error:
        sys.exit(f"quality: {error}")
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'method':<28} {'bits/weight':>11} {'perplexity':>10} {'to float':>8} {'seconds':>8}")
    print(f"{'float':<28} {'':>11} {result['float']:>10.4f} {1:>8.4f}")
    for name, row in result["methods"].items():
        print(
            f"{name:<28} {row['bits_per_weight']:>11.2f} {row['perplexity']:>10.4f} {row['ratio']:>8.4f} "
            f"{row['seconds']:>8.1f}"
        )


if __name__ == "__main__":
    main()
