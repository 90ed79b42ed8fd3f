"""Make small teachers with a byte tokenizer, and run distillation on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgedec.families import build_graph
from edgedec.quantize.distil.devices import Place
from edgedec.quantize.distil.distil import DistilOptions, DistilReport
from edgedec.quantize.distil.distil import distil as distil_everywhere
from edgedec.quantize.distil.schedule import Schedule
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from tests.edgedec.cli.support.make_known_model import BOS, EOS, byte_tokenizer

CPU = Place(device=torch.device("cpu"), autocast=False)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 264,
    "max_position_embeddings": 48,
    "rms_norm_eps": 1e-5,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": True,
}


def weights(config: dict[str, Any], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return norms around 1, matrices that keep the size of their inputs, and a head with logits of a few units."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, spec in build_graph(config).weights.items():
        values = rng.standard_normal(spec.shape)
        if len(spec.shape) == 1:
            values = values / 10 + (0 if name.endswith("bias") else 1)
        elif name.endswith("_proj.weight"):
            values /= np.sqrt(spec.shape[1])
        else:
            values /= 2
        tensors[name] = values.astype(np.float32)
    return tensors


def write_teacher(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a Hugging Face folder; config keys that are None are left out."""
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    folder.mkdir(parents=True)
    save_file(weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def open_teacher(folder: Path, **changes: Any) -> Checkpoint:
    return open_checkpoint(write_teacher(folder, **changes))


def model(*, seed: int = 0, positions: int = 48, ternary: Ternary | None = None, **changes: Any) -> TorchGraph:
    """Return such a teacher without files."""
    config = CONFIG | changes
    network = TorchGraph(build_graph(config), positions=positions, ternary=ternary)
    network.fill(weights(config, seed).__getitem__)
    return network


def some_ids(rows: int = 2, length: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 258, (rows, length)))


def options(*, steps: int = 4, learning_rate: float = 1e-3, warmup_steps: int = 0, **changes: Any) -> DistilOptions:
    """Return the options of a run of a second."""
    schedule = Schedule(steps=steps, learning_rate=learning_rate, warmup_steps=warmup_steps)
    return DistilOptions(schedule=schedule, **({"batch_tokens": 64, "length": 16} | changes))


def distil(
    checkpoint: Checkpoint, output: Path, run_options: DistilOptions | None = None, **arguments: Any
) -> DistilReport:
    """Run in this process, on one thread, with checkpoints every other step."""
    defaults: dict[str, Any] = {"place": CPU, "threads": 1, "every": 2}
    report = distil_everywhere(checkpoint, output, run_options or options(), **defaults | arguments)
    assert report is not None
    return report


def tensors(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a checkpoint folder."""
    opened = open_checkpoint(folder)
    return {name: opened.load(name) for name in opened.tensors}
