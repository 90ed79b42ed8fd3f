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
packages.

Source: 2502.11895 for the order of the stages; there, float training followed by a change to 1.58 bits is better than
ternary training from the start.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from edgedec.atomic import new_file
from edgedec.errors import EdgedecError, UsageError
from edgedec.families import build_graph
from edgedec.quantize.demo_pair.data import (
    CHAT_TEMPLATE,
    HELD_OUT_SEED,
    SPECIAL_TOKENS,
    choices,
    documents,
    pack,
    train_tokenizer,
)
from edgedec.quantize.demo_pair.shards import ShardedBatches, Shards
from edgedec.quantize.demo_pair.stages import Package, package_path, read_earlier, read_package, write_package
from edgedec.quantize.demo_pair.talk import conversation
from edgedec.quantize.demo_pair.world import tale
from edgedec.quantize.distil.devices import Place, find_place
from edgedec.quantize.distil.export import write_checkpoint
from edgedec.quantize.distil.objective import Objective, ObjectiveOptions
from edgedec.quantize.distil.run_folder import RunFolder, differences
from edgedec.quantize.distil.schedule import Schedule
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.distil.trainer import Trainer, Validation

log = logging.getLogger(__name__)

VOCAB, CONTEXT = 2048, 4096
TOKENIZER_DOCUMENTS, VALID_STORIES, HELD_OUT_STORIES, QUESTIONS = 6000, 400, 40, 200
_DOCUMENTS_AT_ONCE = 500
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
class Recipe:
    """Settings that the result depends on. ``steps`` counts the steps of twin and target, including the trunk's."""

    steps: int = 3750
    trunk_share: float = 0.6
    draft_share: float = 0.4
    batch_tokens: int = 8192
    length: int = 512
    long_share: float = 0.1
    learning_rate: float = 2e-3
    layers: int = 4
    draft_layers: int = 2
    shard_documents: int = 10_000
    shard_steps: int = 250
    earlier_steps: int = 0  # steps of the finished run that this one goes on from; 0: it begins with a trunk

    @property
    def trunk_steps(self) -> int:
        return 0 if self.earlier_steps else max(1, round(self.trunk_share * self.steps))


def _vocabulary_texts() -> Iterator[str]:
    for turns in map(conversation, range(TOKENIZER_DOCUMENTS)):
        yield from (text for turn in turns for text in turn if text)


def text_digest() -> str:
    """Return a hash of the held-out documents, which identifies the present state of the text generator."""
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + VALID_STORIES)
    return hashlib.sha256(json.dumps([conversation(seed) for seed in seeds]).encode()).hexdigest()


def make_text(folder: Path, stages: Path, earlier: Path | None = None) -> None:
    """Write ``tokenizer.json``, ``valid.npy``, ``held_out.txt`` and ``choices.jsonl`` unless they exist.

    The tokenizer in ``earlier``, or else in ``stages``, is reused if there is one, because their weights were trained
    with it.
    """
    if (folder / "valid.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    log.info("writing stories and training the tokenizer")
    kept = stages / "tokenizer.json"
    known = kept if earlier is None else earlier / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(known)) if known.exists() else train_tokenizer(_vocabulary_texts(), VOCAB)
    stages.mkdir(parents=True, exist_ok=True)
    for path in (folder / "tokenizer.json", kept):
        with new_file(path) as file:
            tokenizer.save(str(file))
    valid = pack(documents(tokenizer, range(HELD_OUT_SEED, HELD_OUT_SEED + VALID_STORIES)))
    stories = "\n\n".join(tale(HELD_OUT_SEED + 10_000 + at).text for at in range(HELD_OUT_STORIES))
    with new_file(folder / "held_out.txt") as file:
        file.write_text(stories + "\n", encoding="utf-8")
    with new_file(folder / "choices.jsonl") as file:
        choices(QUESTIONS, file)
    with new_file(folder / "valid.npy") as path, path.open("wb") as stream:
        np.save(stream, valid)


def tokenizer_settings() -> dict[str, Any]:
    """Return the content of the pair's ``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }


def _model(shape: Mapping[str, Any], layers: int, ternary: Ternary | None = None) -> TorchGraph:
    config = {**_CONFIG, **shape, "num_hidden_layers": layers}
    return TorchGraph(build_graph(config), positions=CONTEXT, ternary=ternary)


@torch.no_grad()
def _fill(model: TorchGraph, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.tensors.items():
        parameter.copy_(weights[name])


def _branch(weights: Mapping[str, Tensor], layers: int, ternary: Ternary | None = None) -> TorchGraph:
    """Return a model of the target's shape with a copy of the weights."""
    copy = _model(TARGET, layers, ternary)
    _fill(copy, weights)
    return copy


class _Pair:
    """Training of the pair: its stages in a folder."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        stages: Path,
        place: Place,
        *,
        every: int,
        package_every: int,
        compiled: bool,
        writers: int,
        earlier: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.earlier = earlier
        self.recipe, self.folder, self.stages, self.place = recipe, folder, stages, place
        self.every, self.package_every, self.compiled = every, package_every, compiled
        self.digest = text_digest()
        text = folder / "text"
        self.valid = np.load(text / "valid.npy")
        self.tokenizer = Tokenizer.from_file(str(text / "tokenizer.json"))
        self.shards = Shards(
            folder=text,
            tokenizer_json=self.tokenizer.to_str(),
            documents=recipe.shard_documents,
            writes=place.first,
            ahead=writers,
        )

    def stage(
        self,
        name: str,
        student: TorchGraph,
        schedule: Schedule,
        *,
        teacher: TorchGraph | None = None,
        options: ObjectiveOptions | None = None,
        seed: int,
        long_share: float = 0.0,
        first_step: int = 0,
    ) -> TorchGraph:
        """Train ``student`` to the end of ``schedule`` and return it.

        Training continues from the folder's checkpoint if there is one, or else from the package of the stage if there is
        one. ``first_step`` is the step of the text at which the stage begins.
        """
        folder, recipe = RunFolder(path=self.folder / name), self.recipe
        options = options or ObjectiveOptions()
        settings = {"recipe": asdict(recipe), "schedule": asdict(schedule), "objective": asdict(options)}
        package = self._package(name, settings)
        if package and package.step >= schedule.steps and not folder.checkpoint.exists():
            log.info("%s: finished, from its package", name)
            _fill(student, package.weights)
            return student
        if self.place.first:
            folder.begin(settings)
        self.place.wait()
        resume = folder.checkpoint.exists()
        batches = ShardedBatches(
            train=self.shards.read(first_step // recipe.shard_steps),
            valid=self.valid,
            shards=self.shards,
            steps_per_shard=recipe.shard_steps,
            first_shard=first_step // recipe.shard_steps,
            last_shard=(recipe.earlier_steps + recipe.steps - 1) // recipe.shard_steps,
            tokens=recipe.batch_tokens,
            length=recipe.length,
            long_length=CONTEXT if long_share else 0,
            long_share=long_share,
            seed=seed,
        )
        if teacher is not None:
            teacher.to(self.place.device).requires_grad_(False)
        torch.compiler.reset()  # code compiled for the previous stage would count against the limit of this one
        objective = Objective(student, teacher, options)
        trainer = Trainer(objective, batches, schedule, folder, self.place, every=self.every, compiled=self.compiled)
        if resume:
            trainer.resume()
        elif package:
            _fill(student, package.weights)
            trainer.take_up(package.step)
        if trainer.step < schedule.steps:
            log.info(
                "%s: %s parameters, from step %s", name, sum(p.numel() for p in student.parameters()), trainer.step
            )

            def tell(validation: Validation) -> None:
                log.info("%s: %s", name, validation.line(schedule.steps))
                if validation.step == schedule.steps or validation.step % self.package_every == 0:
                    weights = dict(student.tensors.items())
                    write_package(
                        package_path(self.stages, name),
                        weights,
                        step=validation.step,
                        settings={**settings, "text": self.digest},
                    )
                    with new_file(self.stages / f"{name}.csv") as file:
                        file.write_bytes(folder.losses.read_bytes())

            trainer.train(tell=tell)
            if self.place.first:
                folder.plot(f"embedded pair: {name}")
        return student

    def _package(self, name: str, settings: Mapping[str, Any]) -> Package | None:
        """Return the package of the stage, or None if there is none.

        Raises:
            UsageError: the package belongs to a run with other settings.
        """
        file = package_path(self.stages, name)
        package = read_package(file)
        if package is None:
            return None
        digest = package.settings.pop("text", None)
        changed = differences(package.settings, json.loads(json.dumps(settings)))
        if changed:
            raise UsageError(
                f"{file} was trained with other settings: {changed}. Give the old values to go on with it, or another "
                "--stages for a new run"
            )
        if digest != self.digest:
            log.warning("%s was trained on text from another version of the text generator", file)
        return package

    def run(self) -> None:
        """Run all stages, and write the checkpoints of target, twin and draft as Hugging Face folders."""
        recipe = self.recipe
        begin: Mapping[str, Mapping[str, Tensor]]
        if self.earlier is None:
            whole = Schedule(steps=recipe.trunk_steps, learning_rate=recipe.learning_rate, hold_share=1.0)
            model = _model(TARGET, recipe.layers)
            model.draw(0)
            trunk = dict(self.stage("trunk", model, whole, seed=1).tensors.items())
            begin = {"twin": trunk, "target": trunk}
        else:
            begin = self.earlier

        # The branches start with new moments of the optimizer and therefore need a short warm-up.
        rest = Schedule(
            steps=max(1, recipe.steps - recipe.trunk_steps), learning_rate=recipe.learning_rate, warmup_steps=20
        )
        long, first = recipe.long_share, recipe.earlier_steps or recipe.trunk_steps
        branch = _branch(begin["twin"], recipe.layers)
        twin = self.stage("twin", branch, rest, seed=2, long_share=long, first_step=first)
        self.write("twin", twin, TARGET, recipe.layers)
        student = _branch(begin["target"], recipe.layers, Ternary())
        target = self.stage("target", student, rest, teacher=twin, seed=2, long_share=long, first_step=first)
        self.write("target", target, TARGET, recipe.layers)

        small = _model(DRAFT, recipe.draft_layers)
        small.draw(1)
        if "draft" in begin:
            _fill(small, begin["draft"])
        gentle = Schedule(steps=max(1, round(recipe.draft_share * recipe.steps)), learning_rate=recipe.learning_rate)
        options = ObjectiveOptions(text=0.1, logits=0.9, hidden=0.0)
        draft = self.stage(
            "draft",
            small,
            gentle,
            teacher=target,
            options=options,
            seed=3,
            long_share=long,
            first_step=recipe.earlier_steps,
        )
        self.write("draft", draft, DRAFT, recipe.draft_layers)
        self.shards.close()

    def write(self, name: str, model: TorchGraph, shape: Mapping[str, Any], layers: int) -> None:
        """Write the model as a Hugging Face folder."""
        if not self.place.first:
            return
        folder = self.folder / "models" / name
        write_checkpoint(
            model,
            folder,
            config={**_CONFIG, **shape, "num_hidden_layers": layers},
            tokenizer_json=self.tokenizer.to_str(),
            tokenizer_config=tokenizer_settings(),
        )
        log.info("%s: %s", name, folder)


def main() -> int:
    defaults = Recipe()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/demo-pair"))
    parser.add_argument(
        "--steps", type=int, default=defaults.steps, help="steps of twin and target, including the trunk's"
    )
    parser.add_argument("--batch-tokens", type=int, default=defaults.batch_tokens)
    parser.add_argument(
        "--shard-documents", type=int, default=defaults.shard_documents, help="documents per part of the text"
    )
    parser.add_argument(
        "--shard-steps",
        type=int,
        default=defaults.shard_steps,
        help="steps that take their rows from one part of the text; a document has some 230 tokens",
    )
    parser.add_argument(
        "--layers",
        type=int,
        default=defaults.layers,
        help="layers of trunk, twin and target; 1.8 million parameters each",
    )
    parser.add_argument(
        "--writers", type=int, default=1, help="processes that write text in advance; a GPU is faster than one of them"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="a run may continue with another number; its sums then round differently"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--stages", type=Path, help="folder of packaged stages; default: OUTPUT/stages")
    parser.add_argument(
        "--earlier",
        type=Path,
        help="folder of packaged stages of a finished run: twin, target and draft go on from its weights, with later text "
        "and without a trunk",
    )
    parser.add_argument("--learning-rate", type=float, default=defaults.learning_rate)
    parser.add_argument("--package-every", type=int, default=500, help="steps between packages of an unfinished stage")
    parser.add_argument(
        "--compile", action="store_true", help="use torch.compile, which takes a minute and makes the steps faster"
    )
    args = parser.parse_args()
    level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for option in ("steps", "layers", "shard_steps", "writers"):
        if getattr(args, option) < 1:
            parser.error(f"--{option.replace('_', '-')} must be at least 1, not {getattr(args, option)}")
    torch.set_num_threads(args.threads)
    stages = args.stages or args.output / "stages"
    recipe = Recipe(
        learning_rate=args.learning_rate,
        steps=args.steps,
        layers=args.layers,
        batch_tokens=args.batch_tokens,
        shard_documents=args.shard_documents,
        shard_steps=args.shard_steps,
    )
    try:
        earlier = None
        if args.earlier is not None:
            steps, earlier = read_earlier(args.earlier)
            recipe = replace(recipe, earlier_steps=steps)
        place = find_place(args.device, args.precision)
        if place.first:
            make_text(args.output / "text", stages, args.earlier)
        place.wait()
        _Pair(
            recipe,
            args.output,
            stages,
            place,
            every=args.every,
            package_every=args.package_every,
            compiled=args.compile,
            writers=args.writers,
            earlier=earlier,
        ).run()
    except EdgedecError as error:
        sys.stderr.write(f"edgedec: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on from the last checkpoint\n")
        return 130
    if not place.first:
        return 0
    sys.stdout.write(
        json.dumps({name: str(args.output / "models" / name) for name in ("target", "draft", "twin")}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
