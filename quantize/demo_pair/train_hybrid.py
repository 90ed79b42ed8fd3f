"""Train the embedded hybrid: a ternary model of the target's size, three of whose four layers are gated delta nets.

    python -m edgedec.quantize.demo_pair.train_hybrid -o build/demo-hybrid
    python -m edgedec.quantize.demo_pair.train_hybrid -o build/demo-mamba2 --model mamba2 --steps 800

``--model mamba2`` trains a smaller Mamba 2 instead, which is not shipped: the quality of the integer profile is measured
with it.

1. ``trunk``: a float model at the full learning rate.
2. ``target``: the trunk with ternary weights and int8 activations.

Both are taught by the checkpoint in ``--teacher``, as floats, and have its tokenizer. It is the shipped target by default.
The pair's float twin, which taught the shipped hybrid, is not kept: ``train`` makes one in ``models/twin``. The stages are
kept, packaged and resumed like those of ``train``.

Source: 2412.06464 for the layers, and the ratio of three to one that Qwen3-Next and Qwen 3.5 have.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgedec.errors import UsageError
from edgedec.quantize.demo_pair.options import new_parser, run_training, with_options
from edgedec.quantize.demo_pair.stage_run import BatchRecipe, StageRun, new_model
from edgedec.quantize.demo_pair.text_folder import CONTEXT, VOCAB
from edgedec.quantize.distil.objective import ObjectiveOptions
from edgedec.quantize.distil.schedule import Schedule
from edgedec.quantize.distil.student import load_teacher
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.readers import open_checkpoint

__all__ = ["CONFIG", "MAMBA2", "HybridRecipe"]

# The model has as many parameters as the pair's target. Fewer of them are in the embedding, whose elements take two bytes,
# so that the files take 3.0 MB. In this family each ternary matrix has a scale of its own, and the two narrow matrices that
# steer a delta net keep their floats.
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 256,
    "intermediate_size": 1664,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
MAMBA2: dict[str, Any] = {
    "model_type": "mamba2",
    "architectures": ["Mamba2ForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_heads": 8,
    "head_dim": 64,
    "state_size": 64,
    "n_groups": 1,
    "conv_kernel": 4,
    "expand": 2,
}
_CONFIGS = {"hybrid": CONFIG, "mamba2": MAMBA2}


@dataclass(frozen=True, kw_only=True)
class HybridRecipe(BatchRecipe):
    """Settings that the result depends on. ``steps`` counts the steps of trunk and target together."""

    model: str = "hybrid"
    steps: int = 13_600
    trunk_share: float = 0.6
    long_share: float = 0.1
    learning_rate: float = 2e-3

    @property
    def trunk_steps(self) -> int:
        return max(1, min(self.steps - 1, round(self.trunk_share * self.steps)))


def _teacher(folder: Path) -> TorchGraph:
    """Return the model that teaches, as floats.

    Raises:
        UsageError: there is no checkpoint with a tokenizer.json in the folder, or its vocabulary is not the student's.
    """
    checkpoint = open_checkpoint(folder)
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(
            f"cannot teach from {folder}: it has no tokenizer.json, which the student takes; give --teacher a folder"
        )
    if (size := int(checkpoint.config["vocab_size"])) != VOCAB:
        raise UsageError(
            f"cannot teach from {folder}: its vocabulary has {size:,} tokens, and the student's {VOCAB:,}; give --teacher "
            "the target or the twin of a pair"
        )
    return load_teacher(checkpoint, CONTEXT)


def _train(run: StageRun, recipe: HybridRecipe, teacher: TorchGraph) -> tuple[str, ...]:
    """Run both stages, write the checkpoint as a Hugging Face folder, and return its name."""
    if run.place.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # delta nets compute in float32, for which 10 bits of mantissa do
    # The hidden states of the teacher's layers are those of attention, which a delta net need not have.
    options = ObjectiveOptions(text=0.2, logits=0.8, hidden=0.0)
    whole = Schedule(steps=recipe.trunk_steps, learning_rate=recipe.learning_rate, hold_share=1.0)
    config = _CONFIGS[recipe.model]
    trunk = run.stage("trunk", new_model(config, 0), whole, teacher=teacher, options=options, seed=1)
    rest = Schedule(steps=recipe.steps - recipe.trunk_steps, learning_rate=recipe.learning_rate, warmup_steps=20)
    target = run.stage(
        "target",
        new_model(config, trunk.tensors, Ternary()),
        rest,
        teacher=teacher,
        options=options,
        seed=2,
        long_share=recipe.long_share,
        first_step=recipe.trunk_steps,
    )
    run.write("target", target, config)
    return ("target",)


def main() -> int:
    defaults = HybridRecipe()
    parser = new_parser(__doc__, Path("build/demo-hybrid"), defaults, learning_rate=defaults.learning_rate)
    parser.add_argument("--model", choices=tuple(_CONFIGS), default=defaults.model)
    parser.add_argument(
        "--teacher",
        type=Path,
        default=Path("edgedec/demo/target"),
        help="checkpoint that teaches, with the tokenizer; default: the shipped target",
    )
    args = parser.parse_args()
    if args.steps < 2:
        parser.error(f"--steps must be at least 2, one for each stage, not {args.steps}")
    recipe, teachers = with_options(defaults, args), list[TorchGraph]()

    def prepare() -> HybridRecipe:
        teachers.append(_teacher(args.teacher))
        return recipe

    return run_training(parser, args, prepare, lambda run: _train(run, recipe, *teachers), tokenizer=args.teacher)


if __name__ == "__main__":
    sys.exit(main())
