"""Compare what is read from GGUF files with llama.cpp itself: ids, the ids that end a text, and logits."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError
from edgedec.families import build_graph
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.gguf.header import read_header
from edgedec.quantize.readers.gguf.tokenizer import gguf_tokenizer, special_ids
from edgedec.quantize.readers.tokenizers.byte_tokenizer import CUTS
from edgedec.reference.float_profile.model import ReferenceModel
from tests.quantize.readers.support import make_gguf as builder
from tests.quantize.readers.support.make_vocabularies import CONTROLS, byte_level, drawn_text, pieces
from tests.support.llama_cpp import Model

pytestmark = pytest.mark.compare

AT = "tokenizer.ggml."
TEXTS = (
    "Hello king",
    "<|im_start|>user\nHi<|im_end|>\nx",
    "a</s>b <s> c",
    "  two  spaces\n\n x",
    "q<|end|> <|return|>\t\n y<|call|>  <|endoftext|>  q",
    "12345 \u4e2d\u6587 \U0001f999 \u00e9t\u00e9",
    "<think>  x  <unk>a<eos> [EOT][INST]  z",
    "<0x41> x",
    " ",
)


def written(path: Path, changes: Mapping[str, Any]) -> Path:
    """Write a file of metadata alone; None removes a key."""
    keys = {key: value for key, value in (builder.metadata() | dict(changes)).items() if value is not None}
    path.write_bytes(builder.file_bytes(keys, []))
    return path


@pytest.mark.parametrize("cut", CUTS)
def test_texts_are_split_in_each_way_that_has_a_name(cut: str, tmp_path: Path) -> None:
    tokens, merges = byte_level(6000, across=True)
    keys: dict[str, Any] = {
        "model": "gpt2",
        "pre": cut,
        "tokens": tokens,
        "merges": merges,
        "scores": None,
        "add_bos_token": False,
    }
    keys |= {"token_type": [1] * len(tokens), "bos_token_id": 0, "eos_token_id": 0}
    path = written(tmp_path / "v.gguf", {f"{AT}{key}": value for key, value in keys.items()})
    theirs, ours = Model(path, vocab_only=True), Tokenizer.from_str(gguf_tokenizer(read_header(path)))
    rng = random.Random(cut)
    for _ in range(500):
        text = drawn_text(rng, rng.randint(2, 12))
        if ours.normalizer is not None:  # Qwen's models normalize their texts, and llama.cpp does not
            text = unicodedata.normalize("NFC", text)
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text), text


def drawn_vocabulary(rng: random.Random) -> dict[str, Any]:
    """Return the metadata of a vocabulary with control tokens of any type, and with keys that are missing or wrong."""
    by_pieces = rng.random() < 0.5
    tokens, scores, types = pieces() if by_pieces else (byte_level()[0], [0.0], [1] * len(byte_level()[0]))
    special = [text for text in rng.sample(CONTROLS, rng.randint(0, 12)) if text not in tokens]
    special += [text for text in ("<unk>", "<s>", "</s>", "<|endoftext|>") if text not in (*tokens, *special)]
    special += rng.choice([[], ["", ""]])
    tokens, types = [*tokens, *special], [*types, *(rng.choice([1, 1, 3, 3, 4, 0, 9, 5]) for _ in special)]
    chosen = [*types], None, [1] * len(types)
    keys: dict[str, Any] = {
        "model": "llama" if by_pieces else "gpt2",
        "tokens": tokens,
        "token_type": rng.choices(chosen, (6, 1, 1))[0],
        "scores": [*scores, *[-3000.0 - at for at in range(len(special))]] if by_pieces else None,
    }
    if not by_pieces:
        wrong = rng.choice([[], ["zzq qqz"], [byte_level()[1][3]]])
        keys["merges"] = [*wrong, *byte_level()[1]] if wrong != [byte_level()[1][3]] else [*byte_level()[1], *wrong]
        keys["pre"] = rng.choice(["gpt-2", "llama-bpe", "qwen2", "default", None, "tekken", "gpt-4o", "glm4"])
    count = len(tokens)
    for key in ("bos", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep", "fim_pre", "suffix"):
        missing = rng.random() < (0.2 if key in ("bos", "eos") else 0.85)
        keys[f"{key}_token_id"] = None if missing else rng.choice([0, 1, 2, 5, count - 1, count, 4294967295])
    for key in ("add_bos_token", "add_eos_token", "add_space_prefix"):
        keys[key] = rng.choice([None, None, True, False])
    name = {"general.name": rng.choice(["model", "My-Phi-3-mini"])}
    return {f"{AT}{key}": value for key, value in keys.items()} | name


@pytest.mark.parametrize("seed", range(20))
def test_control_tokens_are_known_and_end_a_text(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        path = written(tmp_path / "v.gguf", drawn_vocabulary(rng))
        header, theirs = read_header(path), Model(path, vocab_only=True)
        if theirs.bos < 0 and header.metadata.get(f"{AT}add_bos_token"):  # llama.cpp ends as soon as it encodes
            with pytest.raises(BundleError, match="texts have a BOS, but there is no"):
                gguf_tokenizer(header)
            continue
        ours = Tokenizer.from_str(gguf_tokenizer(header))
        assert sorted(special_ids(header, theirs.tokens)[1]) == theirs.ends()
        for text in TEXTS:
            assert ours.encode(text).ids == theirs.encode(text), text


# --- logits

HIDDEN, INTER, VOCAB, HEADS, KV_HEADS, LAYERS = 32, 48, 64, 4, 2, 7
DIM = HIDDEN // HEADS
PARTS = {"attn_q": HIDDEN, "attn_k": KV_HEADS * DIM, "attn_v": KV_HEADS * DIM, "attn_qkv": HIDDEN + 2 * KV_HEADS * DIM,
         "attn_output": HIDDEN, "ffn_gate": INTER, "ffn_up": INTER, "ffn_down": HIDDEN}  # fmt: skip
IDS = (1, 40, 7, 33, 21, 60, 9, 9, 50, 12)
FACTORS = np.array([1, 1.5, 2, 8], np.float32)
Tensors = dict[str, NDArray[np.float32]]


def drawn(seed: int, *shape: int) -> NDArray[np.float32]:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return (1 + values / 5 if len(shape) == 1 else values * shape[-1] ** -0.5).astype(np.float32)


def model_tensors(architecture: str) -> Tensors:
    def layer(parts: Mapping[str, tuple[int, ...]]) -> Tensors:
        return {
            f"blk.{at}.{name}.weight": drawn(100 * at + number, *shape)
            for at in range(LAYERS)
            for number, (name, shape) in enumerate(parts.items())
        }

    inputs = {"attn_output": HIDDEN, "ffn_down": INTER}
    parts: dict[str, tuple[int, ...]] = {
        name: (rows, inputs.get(name, HIDDEN)) for name, rows in PARTS.items() if name != "attn_qkv"
    }
    norms = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,)}
    if architecture == "phi3":
        parts = {"attn_qkv": (PARTS["attn_qkv"], HIDDEN), "ffn_up": (2 * INTER, HIDDEN)} | {
            name: parts[name] for name in inputs
        }
    if architecture in ("qwen3", "gemma3"):
        norms |= {"attn_q_norm": (DIM,), "attn_k_norm": (DIM,)}
    if architecture in ("gemma2", "gemma3"):
        norms |= {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
    if architecture == "bitnet":
        norms |= {"attn_sub_norm": (HIDDEN,), "ffn_sub_norm": (INTER,)}
    top = {"token_embd.weight": 3 * drawn(1, VOCAB, HIDDEN), "output_norm.weight": drawn(2, HIDDEN)}
    return top | layer(parts | norms)


def biases(*parts: str, layers: range = range(LAYERS)) -> Tensors:
    return {f"blk.{at}.{part}.bias": drawn(at, PARTS[part]) - 1 for at in layers for part in parts}


def write_model(
    path: Path, architecture: str, keys: Mapping[str, Any], more: Tensors, without: tuple[str, ...]
) -> Path:
    sizes = {"block_count": LAYERS, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": INTER}
    sizes |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    if architecture in ("gemma2", "gemma3"):
        sizes["attention.sliding_window"] = 5
    vocabulary: dict[str, Any] = {"tokens": ["<unk>", "<s>", "</s>", *(f"t{at}" for at in range(3, VOCAB))]}
    vocabulary |= {"scores": [-float(at) for at in range(VOCAB)], "token_type": [2, 3, 3, *[1] * (VOCAB - 3)]}
    metadata = builder.metadata(architecture) | {f"{AT}{key}": value for key, value in vocabulary.items()}
    metadata |= {f"{architecture}.{key}": value for key, value in (sizes | dict(keys)).items()}
    tensors = model_tensors(architecture) | more
    kept = {name: values for name, values in tensors.items() if not name.endswith(without)} if without else tensors
    kept |= more
    path.write_bytes(builder.file_bytes(metadata, [builder.tensor(name, values) for name, values in kept.items()]))
    return path


_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
_LONG = {"rope_factors_short.weight": FACTORS, "rope_factors_long.weight": 2 * FACTORS}
ROTATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"rope.scaling.factor": 4.0},
    {"rope.scale_linear": 3.0},
    {"rope.scale_linear": 0.25},
    {"rope.scaling.factor": 0.0, "rope.scale_linear": 3.0},
    {"rope.scaling.factor": 4.0, "rope.scaling.type": "linear", "rope.scaling.attn_factor": 1.3},
    {"rope.scaling.attn_factor": 1.3},
    {"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0},
    _YARN,
    {**_YARN, "rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 0.9},
    {**_YARN, "rope.scaling.yarn_log_multiplier": 0.5, "rope.scaling.yarn_beta_fast": 20.0},
)
LEFT_OUT: dict[str, Any] = {
    "attention.scale": 0.1,
    "attention.clamp_kqv": 0.5,
    "attention.max_alibi_bias": 8.0,
    "logit_scale": 0.5,
    "residual_scale": 0.3,
    "embedding_scale": 2.0,
    "attention.layer_norm_epsilon": 0.1,
    "use_parallel_residual": True,
    "rope.scaling.alpha": 3.0,
    "attention.temperature_length": 4,
    "rope.dimension_sections": [2, 1, 1, 0],
    "pooling_type": 1,
    "vocab_size": 60,
}
_FUSED = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
_QKV = {f"blk.{at}.attn_qkv.weight": drawn(at, PARTS["attn_qkv"], HIDDEN) for at in range(LAYERS)}
ALL = ("llama", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3", "smollm3", "bitnet")
CASES: list[tuple[str, dict[str, Any], Tensors, tuple[str, ...]]] = [
    *((name, keys, {}, ()) for name in ALL for keys in ROTATIONS if name != "phi3" or "yarn" not in keys.values()),
    *((name, LEFT_OUT, {}, ()) for name in ALL),
    *(
        ("llama", keys, {"rope_freqs.weight": FACTORS}, ())
        for keys in ROTATIONS[:7]
    ),
    *(("phi3", keys, _LONG, ()) for keys in ROTATIONS[:7]),
    *(("llama", keys | {"rope.scaling.type": "longrope"}, _LONG, ()) for keys in ROTATIONS[:7]),
    *((name, {}, biases(*parts), ()) for name in ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "smollm3")
      for parts in (("attn_q", "attn_k", "attn_v"), ("attn_q",), ("attn_v", "attn_k"))),
    *(("llama", {}, biases(*parts), ()) for parts in (("attn_output",), ("ffn_up",), ("ffn_down", "attn_output"))),
    *((name, {}, biases("attn_q", "attn_v", layers=range(1, 3)), ()) for name in ("llama", "qwen2", "qwen3")),
    *((name, {}, _QKV | more, _FUSED) for name in ("llama", "qwen2", "qwen3", "gemma3", "smollm3")
      for more in ({}, biases("attn_qkv"), biases("attn_q", "attn_k", "attn_v"))),
    *((name, {}, {"output.weight": drawn(3, VOCAB, HIDDEN)}, ()) for name in ("llama", "qwen2", "qwen3", "phi3", "gemma3",
                                                                            "smollm3")),
    *((name, {"attention.sliding_window_pattern": pattern}, {}, ()) for name in ("gemma2", "gemma3")
      for pattern in (3, [1, 0, 1, 0, 1, 1, 0])),
    ("gemma3", {"attention.sliding_window": 0, "rope.freq_base_swa": 77.0}, {}, ()),
    ("gemma3", {"rope.freq_base_swa": 77.0}, {}, ()),
    ("llama", {"attention.sliding_window": 4}, {}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "keys", "more", "without"), CASES)
def test_logits_are_those_of_llama_cpp(
    architecture: str, keys: dict[str, Any], more: Tensors, without: tuple[str, ...], tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", architecture, keys, more, without)
    expected = Model(path).logits(IDS)
    quantize(open_checkpoint(path), tmp_path / "b", QuantizeOptions(method="float"), vocab_limit=VOCAB)
    bundle = Bundle.open(tmp_path / "b")
    model = ReferenceModel(build_graph(bundle.config), bundle.weight)
    actual = model.forward(np.array(IDS, np.int32), model.new_cache())[0]
    # ggml reads Gemma's GELU from a table in float16.
    assert np.abs(actual - expected).max() < (0.03 if architecture.startswith("gemma") else 1e-3)
