"""Compare logits of models whose files tie, or do not tie, head and embedding, with those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BundleError
from edgedec.quantize.pipeline import checkpoint_graph
from edgedec.quantize.readers import open_checkpoint
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.schemes import FloatWeight
from tests.quantize.readers.tokenizers.support.folder_styles import byte_level

SIZES = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "smollm3": {},
    "mistral": {},
    "phi3": {},
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 16, "n_groups": 1},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16},
}
IDS = np.array([5, 17, 33, 100, 250, 3, 7, 399], np.int32)


@pytest.mark.compare
@pytest.mark.parametrize("stored", ["as saved", "own head", "equal head", "equal bfloat16 head", "head alone"])
@pytest.mark.parametrize("tied", [True, False, None])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_that_of_transformers(
    tmp_path: Path, family: str, tied: bool | None, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    save_file = pytest.importorskip("safetensors.torch").save_file
    flag = {} if tied is None else {"tie_word_embeddings": tied}
    config = transformers.CONFIG_MAPPING[family](**SIZES | FAMILIES[family], **flag)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    _leave_out_the_flag(tmp_path / "config.json", tied)
    tensors = dict(pytest.importorskip("safetensors.torch").load_file(tmp_path / "model.safetensors"))
    name = next(name for name in tensors if name.endswith(("embed_tokens.weight", "embeddings.weight")))
    embedding = tensors[name].bfloat16().float()
    heads = {"own head": embedding + 1, "equal head": embedding.clone(), "equal bfloat16 head": embedding.bfloat16()}
    if stored in heads:
        tensors |= {name: embedding, "lm_head.weight": heads[stored]}
    elif stored == "head alone":
        tensors["lm_head.weight"] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level()))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')

    checkpoint = open_checkpoint(tmp_path)
    if stored == "head alone" and not checkpoint.config.get("tie_word_embeddings"):
        with pytest.raises(BundleError, match="is missing; the configuration requires it"):
            checkpoint_graph(checkpoint)
        return
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS[None].astype(np.int64))).logits[0].numpy()
    graph, sources = checkpoint_graph(checkpoint)
    ours = ReferenceModel(graph, lambda weight: FloatWeight(values=checkpoint.load(sources[weight]).astype(np.float32)))
    assert np.abs(ours.forward(IDS, ours.new_cache())[0] - expected).max() < 1e-4 * max(1, np.abs(expected).max())


def _leave_out_the_flag(path: Path, tied: bool | None) -> None:
    config = json.loads(path.read_text())
    if tied is None:
        config.pop("tie_word_embeddings", None)
    path.write_text(json.dumps(config))
