"""A small Llama in torch: the float teacher and student of everything that edgedec trains.

Weight names and shapes are those of Hugging Face's ``LlamaForCausalLM`` (``q_proj`` is [heads * head_dim, hidden], rope
is the rotate-half layout), so that ``export_hf`` writes a folder that edgedec and ``transformers`` both read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Cache", "LlamaConfig", "TorchLlama", "export_hf"]


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Field names are Hugging Face's."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True


@dataclass(kw_only=True)
class Cache:
    """Keys and values of a batch, in the layout that makes one-token decoding two batched matrix products."""

    keys: list[Tensor]  # per layer [batch, kv_heads, head_dim, positions]
    values: list[Tensor]  # per layer [batch, kv_heads, positions, head_dim]
    length: int = 0

    @classmethod
    def empty(cls, config: LlamaConfig, batch: int) -> Cache:
        shape, width, layers = (batch, config.num_key_value_heads), config.head_dim, range(config.num_hidden_layers)
        positions = config.max_position_embeddings
        return cls(
            keys=[torch.zeros(*shape, width, positions) for _ in layers],
            values=[torch.zeros(*shape, positions, width) for _ in layers],
        )

    def keep(self, rows: Tensor) -> None:
        """Drop the sequences that ``rows`` (bool [batch]) leaves out."""
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [batch, heads, positions, head_dim]; cos, sin: [positions, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class _RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache | None, layer: int) -> Tensor:
        batch, n, _ = x.shape
        q = self.q_proj(x).view(batch, n, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, n, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, n, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = _rotate(q, cos, sin).to(v.dtype), _rotate(k, cos, sin).to(v.dtype)
        if cache is None:
            shared = self.heads // self.kv_heads
            k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        else:
            at = cache.length
            cache.keys[layer][..., at] = k[:, :, 0]
            cache.values[layer][:, :, at] = v[:, :, 0]
            grouped = q.reshape(batch, self.kv_heads, -1, self.head_dim)
            scores = grouped @ cache.keys[layer][..., : at + 1] / self.head_dim**0.5
            out = scores.softmax(-1) @ cache.values[layer][:, :, : at + 1]
        return self.o_proj(out.reshape(batch, n, -1))


class _MLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = _MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache | None, index: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache, index)
        return x + self.mlp(self.post_attention_layernorm(x))


class TorchLlama(nn.Module):
    """Decoder-only Llama. ``forward(ids [batch, n])`` gives logits [batch, n, vocab]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.apply(self._init)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):  # GPT-2's scaling of residual writers
                nn.init.normal_(parameter, std=0.02 / (2 * config.num_hidden_layers) ** 0.5)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = torch.outer(torch.arange(config.max_position_embeddings).float(), config.rope_theta**-half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def hidden(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Final-norm output [batch, n, hidden]. With a cache n must be 1, and the cache grows by that position."""
        start = cache.length if cache else 0
        cos = self.get_buffer("cos")[start : start + ids.shape[1]]
        sin = self.get_buffer("sin")[start : start + ids.shape[1]]
        x = self.embed_tokens(ids)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, cache, index)
        if cache:
            cache.length += 1
        return self.norm(x)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        return self.lm_head(self.hidden(ids, cache))


def export_hf(model: TorchLlama, folder: Path, *, bos_token_id: int, eos_token_id: int) -> None:
    """Write ``config.json`` and ``model.safetensors`` (bfloat16) to an existing folder."""
    from safetensors.torch import save_file

    tensors = {
        (name if name.startswith("lm_head") else f"model.{name}"): value.detach().to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if not (model.config.tie_word_embeddings and name.startswith("lm_head"))
    }
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        **asdict(model.config),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
