"""Compare TreeAttention with ONNX Runtime's GroupQueryAttention for 1 and 8 queries after 256 and 1500 positions.

Each is the only node of a session, and runs over the caches of 24 layers in turn, so that its keys are not in the
processor's cache. GroupQueryAttention keeps float32 and gets its tree as an additive bias. TreeAttention rotates queries and
keys in the node, and GroupQueryAttention here does not. The rounds are interleaved and medians are reported.

``--sequences`` compares eight sequences of one query each whose leading blocks are the same with eight that share none.

    .venv/bin/python -m benchmarks.cpu.attention [--json] [--rounds 9] [--sequences]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgedec.graph.graph import KvState
from edgedec.host.ort import onnxruntime as ort
from edgedec.onnx.kv_cache import BLOCK_ROWS, blocks_of, kv_bytes
from edgedec.runtime import visibility
from edgedec.runtime.kernels import Kernels
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.sessions.registration import register

LAYERS = 24
SHAPES = {"0.73B (16 heads of 96)": (16, 16, 96), "2B4T (20 heads of 128, 5 KV heads)": (20, 5, 128)}
PASTS, QUERIES, THREADS, BITS = (256, 1500), (1, 8), (1, 2), (16, 8, 4, 32)
SEQUENCES, SHARED, OWN = 8, 1008, 16  # sequences, and their common and own rows
FEW_LAYERS = 6  # the caches of eight sequences are not in the processor's cache either
Run = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    heads: int
    kv_heads: int
    head_dim: int
    past: int
    queries: int  # rows of each sequence in the pass
    threads: int
    sequences: int = 1
    shared: int = 0  # leading rows of all sequences that lie in the same blocks, a multiple of 16
    layers: int = LAYERS

    @property
    def capacity(self) -> int:
        return self.past + 32

    @property
    def blocks(self) -> NDArray[np.int32]:
        """The tables of the sequences one after another, without blocks that no pass uses."""
        size = blocks_of(self.past + self.queries)
        tables = np.arange(self.sequences * size, dtype=np.int32).reshape(self.sequences, size)
        tables[:, : self.shared // BLOCK_ROWS] = tables[0, : self.shared // BLOCK_ROWS]
        return tables.ravel()

    def rows(self, seed: int = 0) -> dict[str, NDArray[np.float32]]:
        rng = np.random.default_rng(seed)
        widths = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        return {
            name: rng.normal(size=(1, self.sequences * self.queries, heads * self.head_dim)).astype(np.float32)
            for name, heads in widths.items()
        }


def session(
    case: AttentionCase,
    node: Any,
    inputs: Mapping[str, int],
    outputs: list[str],
    tables: list[Any],
    ours: Kernels | None,
) -> Any:
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "attention",
        [make(name, dtype, None) for name, dtype in inputs.items()],
        [make(name, TensorProto.FLOAT, None) for name in outputs],
        tables,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(node.domain, 1)]
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, case.threads
    if ours is not None:
        register(options, ours)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def stock(case: AttentionCase) -> Run:
    names = ["q", "k", "v", "past_k", "past_v", "seqlens_k", "total", "", "", "", "bias"]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["out", "new_k", "new_v"],
        domain="com.microsoft",
        num_heads=case.heads,
        kv_num_heads=case.kv_heads,
        scale=case.head_dim**-0.5,
    )
    kinds = {name: TensorProto.FLOAT for name in names if name}
    kinds |= {"seqlens_k": TensorProto.INT32, "total": TensorProto.INT32}
    onnx_session = session(case, node, kinds, ["out", "new_k", "new_v"], [], None)
    total = case.past + case.queries
    bias = np.zeros((1, 1, case.queries, total), np.float32)
    bias[0, 0, :, case.past :] = np.where(np.tri(case.queries, dtype=np.bool_), 0, -np.inf)
    fixed = {
        **case.rows(),
        "bias": bias,
        "seqlens_k": np.array([total - 1], np.int32),
        "total": np.array([total], np.int32),
    }
    bindings = []
    rng = np.random.default_rng(1)
    for _ in range(case.layers):
        binding = onnx_session.io_binding()
        for name, array in fixed.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for part in ("k", "v"):
            cache = rng.normal(size=(1, case.kv_heads, case.capacity, case.head_dim)).astype(np.float32)
            value = ort.OrtValue.ortvalue_from_numpy(cache)
            binding.bind_ortvalue_input(f"past_{part}", value)
            binding.bind_ortvalue_output(f"new_{part}", value)
        binding.bind_output("out")
        bindings.append(binding)

    def run() -> None:
        for binding in bindings:
            onnx_session.run_with_iobinding(binding)

    return run


def ours(case: AttentionCase, kernels: Kernels, bits: int) -> Run:
    state = KvState(name="kv", kv_heads=case.kv_heads, head_dim=case.head_dim, bits=bits)
    slots = case.sequences * BLOCK_ROWS * blocks_of(case.past + case.queries)
    names = ["q", "k", "v", "positions", "visible", "sequences", "blocks", "cache"]
    node = helper.make_node(
        "TreeAttention",
        [*names, "cos", "sin"],
        ["out"],
        domain="edgedec",
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        bits=bits,
        capacity=case.capacity,
        slots=slots,
        offset=0,
        window=0,
        sinks=0,
        table=0,
        rotary=1,
        scale=case.head_dim**-0.5,
        cap=0.0,
        select=[0, 0, 0, 0, 8, 0, 0, 0, 0, 0],
    )
    tables = [
        numpy_helper.from_array(np.ones((case.capacity, case.head_dim // 2), np.float32), n) for n in ("cos", "sin")
    ]
    kinds = dict.fromkeys("qkv", TensorProto.FLOAT) | {"cache": TensorProto.UINT8}
    kinds |= dict.fromkeys(("positions", "visible", "sequences"), TensorProto.INT64) | {"blocks": TensorProto.INT32}
    onnx_session = session(case, node, kinds, ["out"], tables, kernels)
    fixed = {
        **case.rows(),
        "positions": np.tile(np.arange(case.past, case.past + case.queries), case.sequences)[None],
        "visible": np.tile(visibility.pack(np.tri(case.queries, dtype=np.bool_)).view(np.int64), (case.sequences, 1)),
        "sequences": np.array([[case.queries, case.past]] * case.sequences),
        "blocks": case.blocks[None],
    }
    bindings = []
    rng = np.random.default_rng(1)
    for _ in range(case.layers):
        binding = onnx_session.io_binding()
        for name, array in fixed.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        # Bytes that are small numbers in every type. The time does not depend on values unless they are NaN or denormal.
        cache = rng.integers(0x30, 0x38, kv_bytes(state, slots), np.uint8)
        binding.bind_ortvalue_input("cache", ort.OrtValue.ortvalue_from_numpy(cache))
        binding.bind_output("out")
        bindings.append((binding, cache))

    def run() -> None:
        for binding, _ in bindings:
            onnx_session.run_with_iobinding(binding)

    return run


def measure(case: AttentionCase, kernels: Kernels, rounds: int) -> dict[str, Any]:
    runs = {"stock": stock(case)} | {f"kv{bits}": ours(case, kernels, bits) for bits in BITS}
    medians, spread = timed(runs, rounds)
    ratios = {f"kv{bits}": medians["stock"] / medians[f"kv{bits}"] for bits in BITS}
    return {"ms": medians, "spread_ms": spread, "ratio": ratios}


def measure_sequences(apart: AttentionCase, kernels: Kernels, bits: int, rounds: int) -> dict[str, Any]:
    """Return the times of sequences that share their leading blocks, of others, and of one sequence alone."""
    cases = {"apart": apart, "shared": replace(apart, shared=SHARED), "one": replace(apart, sequences=1)}
    medians, spread = timed({name: ours(case, kernels, bits) for name, case in cases.items()}, rounds)
    return {"ms": medians, "spread_ms": spread, "ratio": medians["apart"] / medians["shared"]}


def timed(runs: Mapping[str, Run], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the medians and the spreads of interleaved rounds, in milliseconds."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if number:  # the first round is a warm-up
                seconds[name].append(time.perf_counter() - began)
    medians = {name: 1000 * median(times) for name, times in seconds.items()}
    return medians, {name: 1000 * (max(times) - min(times)) for name, times in seconds.items()}


def _cells(figures: dict[str, Any]) -> str:
    ours_cells = (f"{name} {figures['ms'][name]:7.2f} ({ratio:.2f}x)" for name, ratio in figures["ratio"].items())
    return "  ".join([f"stock {figures['ms']['stock']:7.2f}", *ours_cells])


def _report_sequences(kernels: Kernels, rounds: int, *, as_json: bool) -> int:
    results = []
    print(f"path {kernels.code_path}; 1 thread; ms a layer, medians", file=sys.stderr)
    for name, (heads, kv_heads, head_dim) in SHAPES.items():
        case = AttentionCase(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            past=SHARED + OWN,
            queries=1,
            threads=1,
            sequences=SEQUENCES,
            layers=FEW_LAYERS,
        )
        for bits in BITS:
            figures = measure_sequences(case, kernels, bits, rounds)
            results.append({"shape": name, "bits": bits, "sequences": SEQUENCES, "shared": SHARED, **figures})
            cells = "  ".join(f"{label} {ms / FEW_LAYERS:.2f}" for label, ms in figures["ms"].items())
            line = f"{name:36} kv{bits}: {cells}; apart / shared {figures['ratio']:.2f}"
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps({"path": kernels.code_path, "layers": FEW_LAYERS, "results": results}))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sequences", action="store_true")
    options = parser.parse_args()
    kernels = usable()
    if kernels is None:
        print("the CPU kernels were not built; run: edgedec doctor", file=sys.stderr)
        return 3
    if options.sequences:
        return _report_sequences(kernels, options.rounds, as_json=options.json)
    results = []
    print(
        f"path {kernels.code_path}; ms for {LAYERS} layers, medians; x: times faster than GroupQueryAttention",
        file=sys.stderr,
    )
    for name, (heads, kv_heads, head_dim) in SHAPES.items():
        for threads in THREADS:
            for past in PASTS:
                for queries in QUERIES:
                    case = AttentionCase(
                        heads=heads, kv_heads=kv_heads, head_dim=head_dim, past=past, queries=queries, threads=threads
                    )
                    figures = measure(case, kernels, options.rounds)
                    results.append({"shape": name, "threads": threads, "past": past, "queries": queries, **figures})
                    line = f"{name:36} {threads} threads  past {past:4}  queries {queries}: {_cells(figures)}"
                    print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"path": kernels.code_path, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
