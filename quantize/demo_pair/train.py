"""Train the embedded pair: a ternary target, the float twin that it is measured against, and a draft.

    python -m edgedec.quantize.demo_pair.train -o build/demo-pair        (make train-demo)

1. ``text``: stories, scenes, conversations and facts of ``talk``, and a tokenizer trained on them.
2. ``trunk``: a float model at the full learning rate.
3. ``twin``: the trunk as floats to the end of the schedule.
4. ``target``: the same trunk, with the same remaining steps and batches, as ternary weights and int8 activations, taught
   by the twin. Twin and target therefore have the same size and have seen the same tokens.
5. ``draft``: a small float model from random weights, taught by the target; its bundle is int8.

Every stage can be killed and resumes; a finished stage is not repeated. A stage's weights are packaged in the folder
``--stages`` when it is done, and every ``--package-every`` steps before that. If ``-o`` is lost, training continues from the
packages. ``--earlier`` goes on from the packages of a finished run, or from the shipped pair in ``edgedec/demo``.

Source: 2502.11895 for the order of the stages; there, float training followed by a change to 1.58 bits is better than
ternary training from the start.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from edgedec.errors import UsageError
from edgedec.quantize.demo_pair.options import new_parser, run_training, with_options
from edgedec.quantize.demo_pair.shipped import shipped_pair
from edgedec.quantize.demo_pair.stage_run import BatchRecipe, StageRun, new_model
from edgedec.quantize.demo_pair.stages import Earlier, read_earlier
from edgedec.quantize.demo_pair.text_folder import CONTEXT, VOCAB
from edgedec.quantize.distil.objective import ObjectiveOptions
from edgedec.quantize.distil.schedule import Schedule
from edgedec.quantize.distil.torch_graph import Ternary

__all__ = ["Recipe", "target_config"]

_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": 96,
}
# The width ratios to BitNet 0.73B (1536/96/4096) are powers of 4, so that padding to its shape leaves all results unchanged.
TARGET = {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4}
DRAFT = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 1, "num_key_value_heads": 1}


@dataclass(frozen=True, kw_only=True)
class Recipe(BatchRecipe):
    """Settings that the result depends on. ``steps`` counts the steps of twin and target, including the trunk's."""

    trunk_share: float = 0.6
    draft_share: float = 0.4
    long_share: float = 0.1
    learning_rate: float = 2e-3
    layers: int = 4
    draft_layers: int = 2

    @property
    def trunk_steps(self) -> int:
        return 0 if self.earlier_steps else max(1, round(self.trunk_share * self.steps))


def target_config(layers: int) -> dict[str, Any]:
    """Return the Hugging Face configuration of target and twin."""
    return {**_CONFIG, **TARGET, "num_hidden_layers": layers}


def _train(run: StageRun, recipe: Recipe, earlier: Mapping[str, Mapping[str, Tensor]] | None) -> tuple[str, ...]:
    """Run all stages, write the checkpoints of target, draft and twin as Hugging Face folders, and return their names.

    Args:
        earlier: weights of twin, target and draft that this run goes on from; None: it begins with random weights.
    """
    config = target_config(recipe.layers)
    begin: Mapping[str, Mapping[str, Tensor]]
    if earlier is None:
        whole = Schedule(steps=recipe.trunk_steps, learning_rate=recipe.learning_rate, hold_share=1.0)
        trunk = dict(run.stage("trunk", new_model(config, 0), whole, seed=1).tensors.items())
        begin = {"twin": trunk, "target": trunk}
    else:
        begin = earlier

    # The branches start with new moments of the optimizer and therefore need a short warm-up.
    rest = Schedule(
        steps=max(1, recipe.steps - recipe.trunk_steps), learning_rate=recipe.learning_rate, warmup_steps=20
    )
    long, first = recipe.long_share, recipe.earlier_steps or recipe.trunk_steps
    twin = run.stage("twin", new_model(config, begin["twin"]), rest, seed=2, long_share=long, first_step=first)
    run.write("twin", twin, config)
    student = new_model(config, begin["target"], Ternary())
    target = run.stage("target", student, rest, teacher=twin, seed=2, long_share=long, first_step=first)
    run.write("target", target, config)

    small = {**_CONFIG, **DRAFT, "num_hidden_layers": recipe.draft_layers}
    draft = run.stage(
        "draft",
        new_model(small, begin.get("draft", 1)),
        Schedule(steps=max(1, round(recipe.draft_share * recipe.steps)), learning_rate=recipe.learning_rate),
        teacher=target,
        options=ObjectiveOptions(text=0.1, logits=0.9, hidden=0.0),
        seed=3,
        long_share=long,
        first_step=recipe.earlier_steps,
    )
    run.write("draft", draft, small)
    return "target", "draft", "twin"


def _holds_models(folder: Path) -> bool:
    """Return whether the folder holds checkpoints, as the shipped pair's, and not packages."""
    return (folder / "target" / "config.json").is_file()


def _begin(folder: Path, recipe: Recipe) -> Earlier:
    """Return what ``--earlier`` names.

    Raises:
        UsageError: its models have another number of layers than the recipe, or a package is missing.
    """
    if _holds_models(folder):
        found = shipped_pair(folder, recipe.shard_documents, recipe.shard_steps)
    else:
        found = read_earlier(folder)
    if found.layers != recipe.layers:
        raise UsageError(
            f"--layers {recipe.layers}: the models of --earlier {folder} have {found.layers} layers; give --layers "
            f"{found.layers}"
        )
    return found


def main() -> int:
    defaults = Recipe()
    parser = new_parser(__doc__, Path("build/demo-pair"), defaults, learning_rate=defaults.learning_rate)
    parser.add_argument(
        "--layers",
        type=int,
        default=defaults.layers,
        help="layers of trunk, twin and target; 1.8 million parameters each",
    )
    parser.add_argument(
        "--earlier",
        type=Path,
        help="folder of packaged stages of a finished run: twin, target and draft go on from its weights, with later text "
        "and without a trunk. Or edgedec/demo, the shipped pair: the twin goes on from the target's weights",
    )
    args = parser.parse_args()
    recipe, earlier = with_options(defaults, args), None

    def prepare() -> Recipe:
        nonlocal recipe, earlier
        if args.earlier is not None:
            begin = _begin(args.earlier, recipe)
            recipe, earlier = replace(recipe, earlier_steps=begin.steps), begin.weights
        return recipe

    tokenizer = args.earlier / "target" if args.earlier and _holds_models(args.earlier) else args.earlier
    return run_training(parser, args, prepare, lambda run: _train(run, recipe, earlier), tokenizer=tokenizer)


if __name__ == "__main__":
    sys.exit(main())
