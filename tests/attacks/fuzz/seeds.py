"""Make small sound files of every format, from which all inputs of a campaign come, with the tests' own builders."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.families import build_graph
from edgedec.quantize.readers.gguf.blocks import KINDS
from edgedec.quantize.readers.gguf.names import gguf_name
from tests.attacks.fuzz.framing import framed
from tests.attacks.fuzz.mutators.protobuf import field
from tests.quantize.readers.support import make_checkpoints, make_gguf_checkpoint, make_qwen35_gguf
from tests.quantize.readers.support import make_gguf as gguf
from tests.quantize.readers.support.make_gguf import RawTensor
from tests.quantize.readers.tokenizers.support.folder_styles import STYLES
from tests.quantize.support import make_bitnet_models

__all__ = [
    "RANKS",
    "bitnet_folders",
    "gguf_files",
    "gguf_parts",
    "huggingface_folders",
    "llama2c_files",
    "rank_lists",
    "sentencepiece_models",
    "sharded_folders",
    "tokenizer_bins",
    "tokenizer_folders",
    "tokenizer_texts",
    "vocab_listings",
]

RANKS = 258  # ranks, instead of Llama 3's 128,000
SIZES: Mapping[str, Any] = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 13,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_FAMILIES: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "rope_scaling": {**_LLAMA3, "original_max_position_embeddings": 32}},
    {"model_type": "llama", "tie_word_embeddings": True, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {
        "model_type": "mistral",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
    {"model_type": "qwen3", "attention_bias": False},
    {"model_type": "bitnet", "tie_word_embeddings": True},
    {"model_type": "phi3", "partial_rotary_factor": 0.5, "sliding_window": 5},
    {
        "model_type": "phi3",
        "original_max_position_embeddings": 32,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]},
    },
    {"model_type": "gemma"},
    {"model_type": "gemma2", "query_pre_attn_scalar": 4, "sliding_window": 5, "layer_types": ["sliding_attention"]},
    {"model_type": "gemma3_text", "query_pre_attn_scalar": 4, "sliding_window": 5, "sliding_window_pattern": 2},
    {"model_type": "smollm3", "no_rope_layers": [1]},
)


def _weights(config: Mapping[str, Any], dtype: Any = np.float16) -> dict[str, NDArray[Any]]:
    """Return small whole numbers, which compress well."""
    tensors = {}
    for at, (name, spec) in enumerate(build_graph(config).weights.items()):
        count = int(np.prod(spec.shape))
        tensors[name] = ((np.arange(count) * 7 + at) % 5 - 1).astype(dtype).reshape(spec.shape)
    return tensors


def _folder_files(folder: Path, names: tuple[str, ...]) -> bytes:
    return framed([(folder / name).read_bytes() if (folder / name).exists() else b"{}" for name in names])


def huggingface_folders(names: tuple[str, ...]) -> Iterator[bytes]:
    """Yield a model of each family, and two with other spellings."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoints.write_json(
            folder / "tokenizer_config.json",
            {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0].content }}"},
        )
        make_checkpoints.write_json(folder / "generation_config.json", {"eos_token_id": [2, 1]})
        for family in _FAMILIES:
            config = {**SIZES, **family}
            make_checkpoints.write_hf(folder, _weights(config), **config)
            yield _folder_files(folder, names)
        yield from _other_spellings(folder, names)


def _other_spellings(folder: Path, names: tuple[str, ...]) -> Iterator[bytes]:
    config = {**SIZES, **_FAMILIES[6]}
    packed = _weights(config)
    at = "model.layers.0."
    for fused_name, olds in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
        home = fused_name.partition(".")[0]
        parts = [packed.pop(f"{at}{home}.{part}_proj.weight") for part in olds]
        packed[f"{at}{fused_name}.weight"] = np.concatenate(parts)
    make_checkpoints.write_hf(folder, packed, **config)
    yield _folder_files(folder, names)

    config = {**SIZES, **_FAMILIES[10]}
    seeing = {name.replace("model.", "language_model.model.", 1): values for name, values in _weights(config).items()}
    seeing["vision_tower.x.weight"] = np.ones(2, np.float16)
    (folder / "config.json").unlink()
    make_checkpoints.write_hf(folder, seeing, model_type="gemma3", text_config=config, vocab_size=13)
    yield _folder_files(folder, names)


def sharded_folders(names: tuple[str, ...]) -> Iterator[bytes]:
    with TemporaryDirectory() as name:
        config = {**SIZES, "model_type": "llama"}
        folder = make_checkpoints.write_hf(Path(name), _weights(config), shards=2, **config)
        yield _folder_files(folder, names)


def bitnet_folders(names: tuple[str, ...]) -> Iterator[bytes]:
    """Yield both conventions of the scale, scales per group, float weights with scales, and weights that become
    ternary on load.
    """
    small: dict[str, Any] = {
        "hidden_size": 8,
        "intermediate_size": 10,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    whole = make_bitnet_models.model(**small, dense_type=np.float16)
    biased = make_bitnet_models.model(**small, dense_type=np.float16, attention_bias=True)
    grouped = make_bitnet_models.model(group_size=32, **(small | {"hidden_size": 40}), dense_type=np.float16)
    normed = make_bitnet_models.model("bitnet", **small, dense_type=np.float16, num_key_value_heads=2)
    loose = make_bitnet_models.tensors(whole, packed=False)
    online = {name: values for name, values in loose.items() if not name.endswith("_scale")}
    automatic = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
    folders: tuple[tuple[make_bitnet_models.Model, dict[str, NDArray[Any]] | None, dict[str, Any]], ...] = (
        (whole, make_bitnet_models.tensors(whole, divides=True), {"linear_class": "bitlinear"}),
        (whole, None, automatic),
        (biased, None, automatic),
        (normed, None, automatic),
        (whole, loose, automatic),
        (grouped, None, {**automatic, "group_size": 32}),
        (whole, online, {"linear_class": "autobitlinear", "quantization_mode": "online"}),
    )
    for model, contents, quantization in folders:
        with TemporaryDirectory() as name:
            yield _folder_files(make_bitnet_models.write(Path(name), model, contents, **quantization), names)
    with TemporaryDirectory() as name:  # the class of the reproduction and its names of norms
        config = {**SIZES, **_FAMILIES[5], "hidden_act": "silu"}
        renamed = {
            one.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm"): values
            for one, values in _weights(config).items()
        }
        config |= {"model_type": "llama", "architectures": ["BitnetForCausalLM"], "weight_bits": 1, "input_bits": 8}
        yield _folder_files(make_checkpoints.write_hf(Path(name), renamed, **config), names)


_ARCHITECTURES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama", {"rope__freq_base": 5e5, "vocab_size": 13, "attention__key_length": 4}, {}),
    ("qwen2", {}, {}),
    ("qwen3", {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, {}),
    ("bitnet", {}, {"tie_word_embeddings": True}),
    ("bitnet-b1.58", {}, {"tie_word_embeddings": True}),
    ("phi3", {"rope__dimension_count": 2, "attention__sliding_window": 5}, {}),
    ("gemma", {}, {"tie_word_embeddings": True}),
    ("gemma2", {"attn_logit_softcapping": 4.0, "attention__sliding_window": 5}, {"tie_word_embeddings": True}),
    ("gemma3", {"attention__sliding_window": 5, "attention__key_length": 4}, {"tie_word_embeddings": True}),
    ("smollm3", {}, {}),
)
_YARN: dict[str, Any] = {
    "llama__rope__scaling__type": "yarn",
    "llama__rope__scaling__factor": 2.0,
    "llama__rope__scaling__original_context_length": 32,
}


def _gguf_tensors(architecture: str, config: Mapping[str, Any]) -> list[RawTensor]:
    """Return the tensors of a model with one layer; phi3's gate and up are one."""
    family = {"bitnet-b1.58": "bitnet", "gemma3": "gemma3_text"}.get(architecture, architecture)
    post_norms = architecture in ("gemma2", "gemma3")
    shapes = {
        gguf_name(name, post_norms=post_norms): values
        for name, values in _weights({**SIZES, "model_type": family, **config}, np.float32).items()
    }
    if architecture == "phi3":
        shapes["blk.0.ffn_up.weight"] = np.concatenate(
            [shapes.pop("blk.0.ffn_gate.weight"), shapes["blk.0.ffn_up.weight"]]
        )
    return [gguf.tensor(*item) for item in shapes.items()]


def _of_kind(name: bytes, number: int, columns: int, rows: int) -> RawTensor:
    kind = KINDS[number]
    return RawTensor(name, (columns, rows), number, bytes(rows * kind.row_bytes(columns)))


def _delta_net_file() -> bytes:
    """Return a Qwen 3.5 whose delta net has two value heads for each key head, and a layer that guesses."""
    config = make_qwen35_gguf.config(4, **{**SIZES, "num_hidden_layers": 2, "head_dim": 8, "linear_key_head_dim": 4})
    tensors = make_gguf_checkpoint.tensors("qwen35", config, make_qwen35_gguf.random_weights(config))
    raw = [gguf.tensor(name, np.ascontiguousarray(values)) for name, values in tensors.items()]
    raw.append(gguf.tensor("blk.2.nextn.enorm.weight", np.ones(8, np.float32)))
    changes: dict[str, Any] = {"qwen35__block_count": 3, "qwen35__nextn_predict_layers": 1}
    return gguf.file_bytes(make_qwen35_gguf.metadata(config, **changes), raw)


def gguf_files() -> Iterator[bytes]:
    """Yield a model of each architecture, both vocabularies, and types of tensors that are not floats."""
    for architecture, keys, config in _ARCHITECTURES:
        own: dict[str, Any] = {f"{architecture}.{key}": value for key, value in keys.items()}
        metadata = gguf.metadata(architecture, **own)
        yield gguf.file_bytes(metadata, _gguf_tensors(architecture, config))
    tensors = _gguf_tensors("llama", {})
    words: dict[str, Any] = {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__pre": "qwen2"}
    words |= {"tokenizer__ggml__merges": ["t h", "th e"], "tokenizer__ggml__add_eos_token": True}
    words |= {"tokenizer__chat_template": "{{ x }}", "general__alignment": 32}
    factors = gguf.tensor("rope_freqs.weight", np.array([1, 8], np.float32))
    yield gguf.file_bytes(gguf.metadata(**words, **_YARN), tensors)
    yield gguf.file_bytes(gguf.metadata(), [*tensors, factors])
    yield gguf.file_bytes(gguf.metadata(), [*tensors, gguf.tensor("blk.0.attn_q.scale", np.ones(1, np.float32))])
    yield gguf.file_bytes(gguf.metadata(), [*tensors, *_fused()], version=2)
    for number in (gguf.TQ1_0, gguf.TQ2_0, gguf.Q8_0, gguf.Q4_0, 14, 39, 1, 30, 42, 142, 143):
        width = max(32, KINDS[number].block)
        changes: dict[str, Any] = {"llama__feed_forward_length": width}
        wide = [
            _of_kind(tensor.name, number, width, 8) if tensor.name == b"blk.0.ffn_down.weight" else tensor
            for tensor in _gguf_tensors("llama", {"intermediate_size": width, "tie_word_embeddings": True})
        ]
        yield gguf.file_bytes(gguf.metadata(**changes), wide)
    yield from _i2_s_files()
    yield from _rotated_files()
    yield _delta_net_file()


def _rotated_files() -> Iterator[bytes]:
    """Yield files whose metadata say that weights are rotated, with and without signs."""
    keys: dict[str, Any] = {"version": 1, "block_size": 4, "transform": "normalized-sylvester-walsh-hadamard"}
    keys |= {"axis": "input-last-dimension", "weight_names": ["blk.0.ffn_up.weight"]}
    keys |= {"inverse_weight_names": ["token_embd.weight"]}
    signs = {"sign_mode": "explicit", "sign_widths": [8], "sign_values": [1, -1] * 4}
    for more in ({"sign_mode": "identity"}, signs):
        changes = {f"prism__hadamard__{key}": value for key, value in (keys | more).items()}
        yield gguf.file_bytes(gguf.metadata(**changes), _gguf_tensors("llama", {}))


def _i2_s(trits: NDArray[np.int8]) -> bytes:
    """Encode in bitnet.cpp's layout on ARM: 16 bytes hold 64 columns, the first 16 of them in the two highest bits."""
    four = (trits + 1).astype(np.uint8).reshape(-1, 4, 16) << np.array([6, 4, 2, 0], np.uint8)[:, None]
    packed: NDArray[np.uint8] = four.sum(axis=1, dtype=np.uint8)
    return packed.tobytes() + struct.pack("<f", 0.5) + bytes(28)


def _i2_s_files() -> Iterator[bytes]:
    """Yield files whose shape tells the layout, and files whose weights alone do: neurons with different shares of
    zeros.
    """
    changes: dict[str, Any] = {"llama__attention__key_length": 4, "llama__feed_forward_length": 64}
    for hidden, inner, names in ((10, 64, ("ffn_down",)), (64, 256, ("ffn_gate", "ffn_up", "ffn_down"))):
        rng = np.random.default_rng(0)
        changes |= {"llama__embedding_length": hidden, "llama__feed_forward_length": inner}
        config = {**SIZES, "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner}
        share = rng.uniform(0.1, 0.9, inner)
        tensors = []
        for tensor in _gguf_tensors("llama", config | {"tie_word_embeddings": True}):
            columns, *rows = tensor.sizes
            if tensor.name.decode().split(".")[-2] in names:
                nonzero = rng.random((*rows, columns)) < (share if columns == inner else share[:, None])
                trits = np.where(nonzero, rng.choice([-1, 1], nonzero.shape), 0).astype(np.int8)
                tensor = RawTensor(tensor.name, tensor.sizes, 36, _i2_s(trits))
            tensors.append(tensor)
        yield gguf.file_bytes(gguf.metadata(**changes), tensors)


def _fused() -> list[RawTensor]:
    return [gguf.tensor("blk.1.attn_qkv.weight", np.ones((16, 8), np.float32))]


def gguf_parts() -> Iterator[bytes]:
    """Yield two parts: the first has the model's metadata; both of them, or only the first, have tensors."""
    tensors = _gguf_tensors("llama", {})
    counts: dict[str, Any] = {"split__count": 2, "split__tensors__count": len(tensors)}
    bare = {"split.no": 1, "split.count": 2, "split.tensors.count": len(tensors)}
    first = gguf.metadata(split__no=0, **counts)
    for cut in (5, len(tensors)):
        yield framed([gguf.file_bytes(first, tensors[:cut]), gguf.file_bytes(bare, tensors[cut:])])
    second = gguf.metadata(split__no=1, **counts)
    yield framed([gguf.file_bytes(first, tensors[:5]), gguf.file_bytes(second, tensors[5:])])


def llama2c_files() -> Iterator[bytes]:
    for version in (0, 1, 2):
        for tied in (True, False):
            tensors = {name: np.sign(values) for name, values in make_checkpoints.llama2c_tensors(tied).items()}
            yield make_checkpoints.llama2c_file(version, tensors)


def tokenizer_bins() -> Iterator[bytes]:
    yield make_checkpoints.tokenizer_bin(make_checkpoints.small_pieces())
    yield make_checkpoints.tokenizer_bin(make_checkpoints.small_pieces(with_bytes=True))


def vocab_listings() -> Iterator[bytes]:
    for with_bytes in (False, True):
        pieces = make_checkpoints.small_pieces(with_bytes)
        yield "".join(f"{text.replace(' ', chr(0x2581))}\t{score:g}\n" for text, score in pieces).encode()


def _piece(text: str, score: float, kind: int) -> bytes:
    return field(1, field(1, text.encode()) + field(2, struct.pack("<f", score), 5) + field(3, kind))


def sentencepiece_models() -> Iterator[bytes]:
    """Yield BPE and unigram, with the 256 bytes and without, and one that normalizes by a compiled map."""
    special = [_piece("<unk>", 0, 2), _piece("<s>", 0, 3), _piece("</s>", 0, 3)]
    words = [_piece(text.replace(" ", "\u2581"), -float(at), 1) for at, text in enumerate(make_checkpoints.LETTERS)]
    bytes_ = [_piece(f"<0x{byte:02X}>", 0, 6) for byte in range(256)]
    users = [_piece("<sep>", 0, 4), _piece("old", 0, 5)]
    for kind in (1, 2):
        trainer = field(2, field(3, kind) + field(41, 1) + field(35, 1))
        rules = field(3, field(1, b"identity") + field(3, 1) + field(4, 0))
        yield b"".join([*special, *words]) + trainer + rules
        yield b"".join([*special, *bytes_, *words, *users]) + trainer
    yield b"".join([*special, *words]) + field(2, field(3, 2)) + field(3, field(2, _charsmap()))


def _charsmap() -> bytes:
    """Encode a map of "a" to "b": the size of a trie, its units, and the texts to which they map."""
    units = [0] * 256
    units[97] = 97 | 1 << 8 | 2 << 10  # the label, that a value follows, and that it is at 97 ^ 2
    units[99] = 1 << 31  # the value: a place in the texts
    return struct.pack("<I256I", 1024, *units) + b"b\0"


def rank_lists() -> Iterator[bytes]:
    """Yield the 256 bytes and pieces joined of them, as many as the target's reader requires."""
    tokens = [bytes([at]) for at in range(256)] + [b"th", b"the"]
    assert len(tokens) == RANKS
    yield b"".join(base64.b64encode(token) + f" {at}\n".encode() for at, token in enumerate(tokens))


def tokenizer_texts() -> Iterator[bytes]:
    """Yield models with their surroundings, of every common kind."""
    vocab = {text: at for at, text in enumerate(("<unk>", "<s>", "</s>", "a", "b", "ab", "\u2581", "\u2581a"))}
    bpe = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]], "unk_token": "<unk>", "byte_fallback": True}
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [[text, -float(at)] for text, at in vocab.items()]}
    pieces = {
        "type": "WordPiece",
        "vocab": vocab,
        "unk_token": "<unk>",
        "max_input_chars_per_word": 100,
        "continuing_subword_prefix": "##",
    }
    words = {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    split = {"type": "Split", "pattern": {"Regex": "\\s+|a+"}, "behavior": "Isolated", "invert": False}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "\u2581"},
                  {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}  # fmt: skip
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
               {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}  # fmt: skip
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "<unk>"}  # fmt: skip
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"model": bpe, "normalizer": normalizer, "decoder": decoder},
        {
            "model": {**bpe, "merges": ["a b"], "ignore_merges": True},
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
        },
        {"model": unigram, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}},
        {
            "model": pieces,
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        },
        {"model": words, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}},
        {"model": bpe, "truncation": truncation, "padding": padding},
        {
            "model": bpe,
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(_charsmap()).decode()},
        },
    )
    for change in changes:
        yield json.dumps(make_checkpoints.hf_tokenizer(**change)).encode()


def tokenizer_folders(names: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the folders of tokenizers in all styles that have the vocabulary ``names[0]``."""
    small = list(sentencepiece_models())[3]  # BPE with bytes
    if names[0].endswith(".json"):
        small = json.dumps(make_checkpoints.hf_tokenizer()).encode()
    for _, files in STYLES.values():
        if names[0] in files:
            yield framed([small, *(files.get(name, b"{}") for name in names[1:])])
