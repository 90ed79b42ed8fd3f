"""Make a checkpoint whose every answer is known: a byte alone decides the next one, by this table.

after "?"   Hi! and the end token
after "o"   é€😀, a space, o, and again from the start without end
else        the same byte again
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from edgedec.families import build_graph
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint

BOS, EOS = 256, 257
IDS = 258  # tokens of the tokenizer; the model's vocabulary is padded past them
ENDLESS = "é€😀 o"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 264,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.content == 'refuse' %}{{ raise_exception('no such talk') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}{% endfor %}"
)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token per byte, which puts BOS before a text."""
    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer


def write_checkpoint(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Write the Hugging Face folder of that model."""
    folder.mkdir(parents=True)
    tokenizer = byte_tokenizer()
    rng = np.random.default_rng(0)
    weights = {
        name: 0.05 * rng.standard_normal(spec.shape, np.float32)
        if len(spec.shape) == 2
        else np.ones(spec.shape, np.float32)
        for name, spec in build_graph(CONFIG).weights.items()
    }
    for name in ("self_attn.o_proj", "mlp.down_proj"):  # these layers contribute nothing
        weights[f"model.layers.0.{name}.weight"][...] = 0
    embed = rng.standard_normal((264, 128), np.float32)
    following = np.arange(264)
    (*start, end) = tokenizer.encode("?Hi!", add_special_tokens=False).ids
    for chain in ([*start, end, EOS], tokenizer.encode(f"o{ENDLESS}", add_special_tokens=False).ids):
        following[chain[:-1]] = chain[1:]
    head = np.zeros((264, 128), np.float32)
    np.add.at(head, following, embed / 16)
    weights |= {"model.embed_tokens.weight": embed, "lm_head.weight": head}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def write_bundle(checkpoint: Path, path: Path) -> Path:
    quantize(open_checkpoint(checkpoint), path, QuantizeOptions(method="float"), vocab_limit=IDS)
    return path
