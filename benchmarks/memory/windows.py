"""Measure the memory of keys and values that windows save: small random models shaped like Mistral and Gemma 3.

    .venv/bin/python -m benchmarks.memory.windows [--ctx-size 2048] [--window 512] [--json]

Each model runs twice, in a process of its own, until its context is full: as it is, with the rows of windows only, and with
the same weights, but layers that see everything and keep all rows. The table has the planned bytes of keys and values, the
whole plan, and the measured peak, which must not be above the plan.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.memory.budget import child
from benchmarks.memory.budget_child import BudgetRun
from edgedec import demo
from edgedec.cli.console import print_json, print_table
from edgedec.errors import DeviceError
from edgedec.memory.byte_sizes import format_bytes
from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle

_LAYERS, _PERIOD = 6, 6  # layers, and each how many of Gemma 3 see everything


def models(window: int, ctx_size: int) -> dict[str, dict[str, Any]]:
    """Return the configurations of the models."""
    size = {"num_hidden_layers": _LAYERS, "sliding_window": window, "max_position_embeddings": ctx_size}
    gemma = {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 96,
        "query_pre_attn_scalar": 96,
        "sliding_window_pattern": _PERIOD,
        "tie_word_embeddings": True,
    }
    return {
        "mistral": {**SHAPES["demo"], **size, "model_type": "mistral"},
        "gemma3": {**SHAPES["demo"], **size, **gemma},
    }


def without_windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a model whose layers see everything."""
    if config["model_type"] == "mistral":
        return {**config, "sliding_window": None}
    return {**config, "layer_types": ["full_attention"] * _LAYERS}


def measure(path: Path, config: Mapping[str, Any], ctx_size: int) -> dict[str, int]:
    """Return the planned bytes of keys and values, the planned total, and the measured peak.

    Raises:
        DeviceError: the run failed, or its peak is above the plan.
    """
    tokenizer = (demo.bundle_path() / "tokenizer.json").read_text("utf-8")
    write_random_bundle(path, config, tokenizer_json=tokenizer)
    code, stdout, stderr = child(BudgetRun(bundle=str(path), ctx_size=ctx_size, kv_bits=16))
    if code:
        raise DeviceError(f"the run of {path.name} failed with code {code}:\n{stderr.strip() or stdout}")
    report = json.loads(stdout)
    items, planned, peak = report["plan"]["items"], report["plan"]["total_bytes"], report["peak_bytes"]
    if peak > planned:
        raise DeviceError(f"{path.name} took {peak} bytes, and {planned} were planned")
    return {"kv_bytes": items["kv"] + items.get("kv_ring", 0), "planned_bytes": planned, "peak_bytes": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ctx-size", type=int, default=2048, help="tokens of the context")
    parser.add_argument("--window", type=int, default=512, help="positions of the windows")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    options = parser.parse_args()
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="edgedec-windows-") as folder:
        for name, config in models(options.window, options.ctx_size).items():
            for rows_kept, kind in (("window", dict(config)), ("all", without_windows(config))):
                figures = measure(Path(folder) / f"{name}-{rows_kept}", kind, options.ctx_size)
                rows.append({"model": name, "rows": rows_kept, **figures})
    if options.json:
        print_json({"ctx_size": options.ctx_size, "window": options.window, "runs": rows})
        return
    heads = ("model", "rows", "keys and values, planned", "plan", "measured peak")
    sizes = ([format_bytes(row[name]) for name in ("kv_bytes", "planned_bytes", "peak_bytes")] for row in rows)
    print_table([heads, *((row["model"], row["rows"], *each) for row, each in zip(rows, sizes, strict=True))])


if __name__ == "__main__":
    main()
