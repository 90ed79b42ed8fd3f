"""Measure that recurrent states do not grow with the text: random models of 24 layers and 512 columns on the CPU kernels.

    .venv/bin/python -m benchmarks.cpu.recurrent [--layers 24] [--short 128] [--ctx-size 8192] [--steps 48] [--json]

The models are a Mamba 2, a hybrid in which three of four layers are gated delta nets, and the hybrid's twin, whose layers
all have attention. Each runs in processes of its own, on one thread, with keys and values of 16 bits: once for each context,
which one text fills, for the plan and the measured peak, which must not be above the plan; and once for the time of a step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgedec.cli.console import print_json, print_table
from edgedec.errors import DeviceError
from edgedec.memory.byte_sizes import format_bytes
from edgedec.quantize.synthetic.random_bundle import write_random_bundle

_CHILD = Path(__file__).parent / "recurrent_child.py"


def models(layers: int, ctx_size: int) -> dict[str, dict[str, Any]]:
    """Return the configurations of the models."""
    common = {
        "hidden_size": 512,
        "num_hidden_layers": layers,
        "vocab_size": 2048,
        "max_position_embeddings": ctx_size,
        "tie_word_embeddings": True,
    }
    mamba2 = {"num_heads": 16, "head_dim": 64, "state_size": 128, "n_groups": 1, "expand": 2, "conv_kernel": 4}
    hybrid = {
        "intermediate_size": 1536,
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "full_attention_interval": 4},
        **{"linear_num_key_heads": 8, "linear_num_value_heads": 8, "linear_key_head_dim": 64},
        **{"linear_value_head_dim": 64, "linear_conv_kernel_dim": 4},
    }
    return {
        "mamba2": {**common, **mamba2, "model_type": "mamba2"},
        "hybrid": {**common, **hybrid, "model_type": "qwen3_5_text"},
        "attention": {**common, **hybrid, "model_type": "qwen3_5_text", "full_attention_interval": 1},
    }


def _child(path: Path, **options: int) -> dict[str, Any]:
    """Return the figures of a process.

    Raises:
        DeviceError: it failed.
    """
    command = [sys.executable, str(_CHILD), str(path), json.dumps(options)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise DeviceError(f"the run of {path.name} failed with code {process.returncode}:\n{process.stderr.strip()}")
    figures: dict[str, Any] = json.loads(process.stdout)
    return figures


def memory(path: Path, positions: int) -> dict[str, Any]:
    """Return the bytes of a model with a full context of ``positions`` rows.

    Raises:
        DeviceError: the run failed, or its peak is above the plan.
    """
    figures = _child(path, positions=positions, short=0, steps=0)
    items, peak = figures["items"], figures["peak_bytes"]
    planned = sum(items.values())
    if peak > planned:
        raise DeviceError(f"{path.name} took {peak} bytes, and {planned} were planned")
    return {
        "model": path.name,
        "positions": positions,
        "recurrent_bytes": items.get("recurrent", 0),
        "kv_bytes": items["kv"],
        "held_bytes": figures["held_bytes"],
        "planned_bytes": planned,
        "peak_bytes": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24, help="layers of each model")
    parser.add_argument("--short", type=int, default=128, help="tokens of the short context")
    parser.add_argument("--ctx-size", type=int, default=8192, help="tokens of the long context")
    parser.add_argument("--steps", type=int, default=48, help="timed steps at the end of each context")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout")
    options = parser.parse_args()
    runs, times = list[dict[str, Any]](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="edgedec-recurrent-") as folder:
        for name, config in models(options.layers, options.ctx_size).items():
            path = Path(folder) / name
            write_random_bundle(path, config)
            runs += [memory(path, positions) for positions in (options.short, options.ctx_size)]
            seconds = _child(path, positions=options.ctx_size, short=options.short, steps=options.steps)
            times.append({"model": name, **{f"{text}_step_ms": 1000 * value for text, value in seconds.items()}})
    if options.json:
        print_json({"layers": options.layers, "short": options.short, "runs": runs, "steps": times})
        return
    keys = ("recurrent_bytes", "kv_bytes", "held_bytes", "planned_bytes", "peak_bytes")
    heads = ("model", "positions", "recurrent, planned", "keys and values, planned", "held", "plan", "measured peak")
    lines = [(run["model"], str(run["positions"]), *(format_bytes(run[key]) for key in keys)) for run in runs]
    print_table([heads, *lines])
    step_heads = ("model", f"step at {options.short}, ms", f"step at {options.ctx_size}, ms", "ratio")
    steps = [(run["model"], run["short_step_ms"], run["long_step_ms"]) for run in times]
    print_table([step_heads, *((name, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}") for name, a, b in steps)])


if __name__ == "__main__":
    main()
