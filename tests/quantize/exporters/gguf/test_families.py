"""Test GGUF of every family: the file describes the same model, or is not written; llama.cpp, if built, writes its
text.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.errors import UnsupportedError
from edgedec.families import build_graph
from edgedec.host.paths import cache_folder
from edgedec.plugins import names
from edgedec.quantize.exporters.gguf.export import export_gguf
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatScheme, FloatWeight, Int8Scheme
from tests.edgedec.families.support import make_golden_models, reference_golden
from tests.edgedec.families.support.make_golden_models import F32
from tests.quantize.exporters.gguf.test_export import BOS, CONFIG, tokenizer

PLAIN: Mapping[str, Any] = {
    **CONFIG,
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_hidden_layers": 4,
}
GEMMA: Mapping[str, Any] = {**PLAIN, "tie_word_embeddings": True, "hidden_act": None, "query_pre_attn_scalar": 16}
GEMMA2 = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0, "sliding_window": 6}
LONG = {"rope_type": "longrope", "short_factor": [1 + at / 3 for at in range(8)], "long_factor": [9.0] * 8}
# The families that the writer refuses.
REFUSED = {"mamba2", "falcon_h1", "qwen3_5_text", "qwen3_next", "kimi_linear", "phi4flash", "step3_text"}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**PLAIN},
    "mistral": {**PLAIN, "model_type": "mistral", "sliding_window": None},
    "qwen2": {**PLAIN, "model_type": "qwen2"},
    "qwen3": {**PLAIN, "model_type": "qwen3"},
    "bitnet": {**PLAIN, "model_type": "bitnet", "tie_word_embeddings": True},
    "smollm3": {**PLAIN, "model_type": "smollm3"},
    "phi3": {**PLAIN, "model_type": "phi3"},
    "phi3 partial": {**PLAIN, "model_type": "phi3", "partial_rotary_factor": 0.75},
    "phi3 longrope": {
        **PLAIN,
        "model_type": "phi3",
        "original_max_position_embeddings": 512,
        "max_position_embeddings": 2048,
        "rope_scaling": LONG,
    },
    "gemma": {**GEMMA, "model_type": "gemma"},
    "gemma2": {**GEMMA, **GEMMA2, "model_type": "gemma2"},
    "gemma3_text": {
        **GEMMA,
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "sliding_window": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 5e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3_text pattern": {
        **GEMMA,
        "model_type": "gemma3_text",
        "sliding_window_pattern": 2,
        "sliding_window": 6,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        },
    },
}


def write(path: Path, config: Mapping[str, Any], method: str = "float") -> Bundle:
    """Write weights that make the logits differ by a few units."""
    graph, rng = build_graph(config), np.random.default_rng(0)
    norm = 0.0 if config["model_type"].startswith("gemma") else 1.0  # mean of a norm's weights
    with BundleWriter.create(path) as writer:
        for name, spec in graph.weights.items():
            values = rng.standard_normal(spec.shape, np.float32) * np.float32(3 * spec.shape[-1] ** -0.5)
            if len(spec.shape) == 1:
                writer.add(name, FloatScheme(), spec.shape, {"values": np.float32(norm) + values * np.float32(0.3)})
            elif method == "int8":
                codes, scale = quantize_int8(values)
                writer.add(name, Int8Scheme(rows=True), spec.shape, {"codes": codes, "scale": scale})
            else:
                writer.add(name, FloatScheme(), spec.shape, {"values": values})
        writer.finish(
            config=dict(config),
            quantization={"method": method},
            tokens=Tokens(size=40, bos=BOS, eos=(2, 3)),
            tokenizer_json=tokenizer(),
            chat_template=None,
        )
    return Bundle.open(path)


def logits(reference: ReferenceModel) -> F32:
    values: F32 = reference.forward(np.arange(30, dtype=np.int32), reference.new_cache())[0]
    return values


def test_every_family_is_tested_or_refused_by_name() -> None:
    written = {str(config["model_type"]) for config in FAMILIES.values()}
    assert written | REFUSED == set(names("edgedec.families"))
    assert not written & REFUSED


@pytest.mark.parametrize("name", [f"{family}/plain" for family in sorted(REFUSED)])
def test_models_that_are_not_written_are_refused(tmp_path: Path, name: str) -> None:
    model = reference_golden.read(name)
    bundle = make_golden_models.write_bundle(tmp_path / "m", model, "float")
    with pytest.raises(UnsupportedError, match=f"{model.config['model_type']} is not written as GGUF; known: llama"):
        export_gguf(bundle, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.thorough(sample=5)
@pytest.mark.parametrize(
    ("family", "method"), [*((family, "float") for family in FAMILIES), ("phi3", "int8"), ("gemma2", "int8")]
)
def test_the_file_describes_the_same_model(tmp_path: Path, family: str, method: str) -> None:
    bundle = write(tmp_path / "m", FAMILIES[family], method)
    export_gguf(bundle, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    ours = ReferenceModel(
        build_graph(bundle.config), lambda name: FloatWeight(values=np.asarray(bundle.weight(name).dense()))
    )
    theirs = ReferenceModel(
        build_graph(checkpoint.config), lambda name: FloatWeight(values=checkpoint.load(name).astype(np.float32))
    )
    expected = logits(ours)
    # Q8_0 keeps scales in float16.
    assert np.abs(logits(theirs) - expected).max() < (1e-4 if method == "float" else 0.1) * expected.std()


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "mistral",
            {"sliding_window": 6},
            r"llama cannot express attention layers.0.attn: its window would be None, not 6",
        ),
        ("smollm3", {"no_rope_layer_interval": 2}, r"smollm3 requires rope layers.1.q"),
        (
            "gemma2",
            {"query_pre_attn_scalar": 9},
            r"gemma2 cannot express attention layers.0.attn: its scale would be 0.25",
        ),
        ("gemma2", {"layer_types": ["full_attention"] * 4}, r"layers.0.attn: its window would be 4096, not None"),
        ("gemma2", {"attn_logit_softcapping": None}, r"layers.0.attn: its soft_cap would be 50.0, not None"),
        (
            "gemma",
            {"tie_word_embeddings": False},
            r"the head of a gemma is its embedding, and llama.cpp refuses another",
        ),
        (
            "qwen3",
            {"attention_bias": True},
            r"'blk.0.attn_output.bias' has no place in a qwen3; biases that llama.cpp has there",
        ),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 6},
            r"qwen2 cannot express attention layers.2.attn: its window would be None, not 6",
        ),
    ],
)
def test_models_that_llama_cpp_would_run_differently_are_refused(
    tmp_path: Path, family: str, changes: Mapping[str, Any], message: str
) -> None:
    bundle = write(tmp_path / "m", {**FAMILIES[family], **changes})
    with pytest.raises(UnsupportedError, match=message):
        export_gguf(bundle, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def llama_cpp() -> Path | None:
    """Return what benchmarks/cpu/decode.py built."""
    return next((path.parent for path in cache_folder().glob("peers/llama.cpp-*/build/finished")), None)


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = llama_cpp()
    if build is None:
        pytest.skip("llama.cpp is not built: python -m benchmarks.cpu.decode builds it")
    program = tmp_path_factory.mktemp("llama") / "greedy"
    folders = [f"-I{build.parent / 'source' / part}" for part in ("include", "ggml/include")]
    binaries = [f"-L{build / 'bin'}", f"-Wl,-rpath,{build / 'bin'}", "-lllama", "-lggml", "-lggml-cpu", "-lggml-base"]
    source = Path(__file__).with_name("llama_greedy.cpp")
    subprocess.run(["c++", "-std=c++17", str(source), "-o", str(program), *folders, *binaries], check=True)
    return program


@pytest.mark.compare
@pytest.mark.parametrize("family", FAMILIES)
def test_llama_cpp_writes_the_same_text(tmp_path: Path, greedy: Path, family: str) -> None:
    bundle = write(tmp_path / "m", FAMILIES[family])
    export_gguf(bundle, tmp_path / "m.gguf")
    prompt = [int(token) for token in np.random.default_rng(1).integers(4, 40, 14)]
    command = [str(greedy), str(tmp_path / "m.gguf"), "20", *map(str, prompt)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not process.returncode, process.stderr[-500:]
    reference = ReferenceModel(build_graph(bundle.config), bundle.weight)
    cache, text, rows = reference.new_cache(), list[int](), np.array(prompt, np.int32)
    for _ in range(20):
        text.append(int(reference.forward(rows, cache)[0][-1][:40].argmax()))
        cache.commit(np.arange(len(rows), dtype=np.int32))
        rows = np.array(text[-1:], np.int32)
    assert [int(token) for token in process.stdout.split()] == text
