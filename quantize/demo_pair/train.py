"""Train the embedded pair: a ternary target, the float twin that it is measured against, and a draft.

    python -m edgedec.quantize.demo_pair.train -o build/demo-pair        (make train-demo)

1. ``text``: stories, questions and facts of ``story_world``, and a tokenizer trained on them.
2. ``trunk``: a float model at the full learning rate.
3. ``twin``: the trunk as floats to the end of the schedule.
4. ``target``: the same trunk, with the same remaining steps and batches, as ternary weights and int8 activations, taught
   by the twin. So twin and target have the same size and have seen the same tokens.
5. ``draft``: a small float model from random weights, taught by the target; its bundle is int8.

Every stage can be killed and resumes; a finished one is not done again. Source of the order: 2502.11895, where float
training first, and the change to 1.58 bits on the way, beats ternary from the start.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgedec.atomic import new_file
from edgedec.errors import EdgedecError
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
from edgedec.quantize.demo_pair.world import tale
from edgedec.quantize.distil.devices import Place, find_place
from edgedec.quantize.distil.export import write_checkpoint
from edgedec.quantize.distil.objective import Objective, ObjectiveOptions
from edgedec.quantize.distil.run_folder import RunFolder
from edgedec.quantize.distil.schedule import Batches, Schedule
from edgedec.quantize.distil.torch_graph import Ternary, TorchGraph
from edgedec.quantize.distil.trainer import Trainer

log = logging.getLogger(__name__)

VOCAB, CONTEXT = 2048, 1024
TOKENIZER_STORIES, VALID_STORIES, HELD_OUT_STORIES, QUESTIONS = 3000, 400, 40, 200
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
# Width ratios to BitNet 0.73B (1536/96/4096) are powers of 4, so that the pair pads into its shape without a changed bit.
TARGET = {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4}
DRAFT = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 1, "num_key_value_heads": 1}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the result depends on. ``steps`` are those of the twin and of the target, the trunk's included."""

    steps: int = 1000
    trunk_share: float = 0.55
    draft_share: float = 0.5
    batch_tokens: int = 4096
    length: int = 256
    learning_rate: float = 2e-3
    layers: int = 4
    draft_layers: int = 2
    train_tokens: int = 5_000_000
    threads: int = 2

    @property
    def trunk_steps(self) -> int:
        return max(1, round(self.trunk_share * self.steps))


def _chunk(tokenizer_json: str, first: int) -> NDArray[np.uint16]:
    """The documents of some seeds, in a process of their own."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    return pack(documents(tokenizer, range(first, first + _DOCUMENTS_AT_ONCE)))


def _vocabulary_texts() -> Iterator[str]:
    for story in map(tale, range(TOKENIZER_STORIES)):
        yield story.text
        yield "\n".join(f"Q: {item.question} A: {item.answer}" for item in story.questions)


def make_text(recipe: Recipe, folder: Path) -> None:
    """``tokenizer.json``, ``train.npy`` and ``valid.npy``, ``held_out.txt`` and ``choices.jsonl``; nothing if it is done."""
    if (folder / "train.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    log.info("writing stories and training the tokenizer")
    tokenizer = train_tokenizer(_vocabulary_texts(), VOCAB)
    with new_file(folder / "tokenizer.json") as file:
        tokenizer.save(str(file))
    valid = pack(documents(tokenizer, range(HELD_OUT_SEED, HELD_OUT_SEED + VALID_STORIES)))
    stories = "\n\n".join(tale(HELD_OUT_SEED + 10_000 + at).text for at in range(HELD_OUT_STORIES))
    with new_file(folder / "held_out.txt") as file:
        file.write_text(stories + "\n", encoding="utf-8")
    with new_file(folder / "choices.jsonl") as file:
        choices(QUESTIONS, file)
    parts: list[NDArray[np.uint16]] = []
    tokens = 0
    with ProcessPoolExecutor(recipe.threads, mp_context=get_context("spawn")) as pool:
        write = partial(_chunk, tokenizer.to_str())
        while tokens < recipe.train_tokens:
            first = len(parts) * _DOCUMENTS_AT_ONCE
            for part in pool.map(write, range(first, first + recipe.threads * _DOCUMENTS_AT_ONCE, _DOCUMENTS_AT_ONCE)):
                parts.append(part)
                tokens += len(part)
            log.info("%s of %s tokens", f"{tokens:,}", f"{recipe.train_tokens:,}")
    for name, ids in (("valid", valid), ("train", np.concatenate(parts))):
        with new_file(folder / f"{name}.npy") as path, path.open("wb") as stream:
            np.save(stream, ids)


def tokenizer_settings() -> dict[str, Any]:
    """``tokenizer_config.json`` of the pair."""
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


def _trained(folder: RunFolder, shape: Mapping[str, Any], layers: int, ternary: Ternary | None = None) -> TorchGraph:
    """The model at the end of a finished stage."""
    model = _model(shape, layers, ternary)
    Objective(model, None, ObjectiveOptions()).load_state_dict(
        {k: v for k, v in folder.load()["model"].items() if not k.startswith("maps.")}
    )
    return model


class _Pair:
    """The stages, in a folder."""

    def __init__(self, recipe: Recipe, folder: Path, place: Place, *, every: int, compiled: bool) -> None:
        self.recipe, self.folder, self.place, self.every, self.compiled = recipe, folder, place, every, compiled
        text = folder / "text"
        self.train, self.valid = (np.load(text / f"{name}.npy", mmap_mode="r") for name in ("train", "valid"))
        self.tokenizer = Tokenizer.from_file(str(text / "tokenizer.json"))

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
    ) -> RunFolder:
        """Train ``student`` to the end of ``schedule``, from the folder's checkpoint if there is one."""
        folder, recipe = RunFolder(path=self.folder / name), self.recipe
        options = options or ObjectiveOptions()
        resume = folder.begin({"recipe": asdict(recipe), "schedule": asdict(schedule), "objective": asdict(options)})
        batches = Batches(
            train=self.train,
            valid=self.valid,
            tokens=recipe.batch_tokens,
            length=recipe.length,
            long_length=CONTEXT if long_share else 0,
            long_share=long_share,
            seed=seed,
        )
        if teacher is not None:
            teacher.to(self.place.device).requires_grad_(False)
        torch.compiler.reset()  # what was compiled for the stage before counts against the limit of this one
        objective = Objective(student, teacher, options)
        trainer = Trainer(objective, batches, schedule, folder, self.place, every=self.every, compiled=self.compiled)
        if resume:
            trainer.resume()
        if trainer.step < schedule.steps:
            log.info(
                "%s: %s parameters, from step %s", name, sum(p.numel() for p in student.parameters()), trainer.step
            )
            trainer.train(tell=lambda checked: log.info("%s: %s", name, checked.line(schedule.steps)))
            folder.plot(f"embedded pair: {name}")
        return folder

    def run(self) -> None:
        """All stages, and the checkpoints of target, twin and draft as Hugging Face folders."""
        recipe = self.recipe
        whole = Schedule(steps=recipe.trunk_steps, learning_rate=recipe.learning_rate, hold_share=1.0)
        model = _model(TARGET, recipe.layers)
        model.draw(0)
        trunk = self.stage("trunk", model, whole, seed=1)

        # The branches go on with the optimizer's moments begun anew, hence the short warm-up.
        rest = Schedule(
            steps=max(1, recipe.steps - recipe.trunk_steps), learning_rate=recipe.learning_rate, warmup_steps=20
        )
        twin = self.stage("twin", _trained(trunk, TARGET, recipe.layers), rest, seed=2, long_share=0.1)
        float_twin = _trained(twin, TARGET, recipe.layers)
        student = _trained(trunk, TARGET, recipe.layers, Ternary())
        target = self.stage("target", student, rest, teacher=float_twin, seed=2, long_share=0.1)
        ternary_target = _trained(target, TARGET, recipe.layers, Ternary())

        small = _model(DRAFT, recipe.draft_layers)
        small.draw(1)
        gentle = Schedule(steps=max(1, round(recipe.draft_share * recipe.steps)), learning_rate=recipe.learning_rate)
        options = ObjectiveOptions(text=0.1, logits=0.9, hidden=0.0)
        draft = self.stage("draft", small, gentle, teacher=ternary_target, options=options, seed=3, long_share=0.1)
        for name, trained, shape in (
            ("twin", float_twin, TARGET),
            ("target", ternary_target, TARGET),
            ("draft", _trained(draft, DRAFT, recipe.draft_layers), DRAFT),
        ):
            layers = recipe.draft_layers if name == "draft" else recipe.layers
            write_checkpoint(
                trained,
                self.folder / "models" / name,
                config={**_CONFIG, **shape, "num_hidden_layers": layers},
                tokenizer_json=self.tokenizer.to_str(),
                tokenizer_config=tokenizer_settings(),
            )
            log.info("%s: %s", name, self.folder / "models" / name)


def main() -> int:
    defaults = Recipe()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/demo-pair"))
    parser.add_argument("--steps", type=int, default=defaults.steps, help="of twin and target, the trunk's included")
    parser.add_argument("--batch-tokens", type=int, default=defaults.batch_tokens)
    parser.add_argument(
        "--train-tokens", type=int, default=0, help="tokens of text to write; 0: by the steps, at most 5 million"
    )
    parser.add_argument("--threads", type=int, default=defaults.threads, help="part of the result: sums depend on it")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--compile", action="store_true", help="torch.compile: a minute first, then faster")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    # Twin and target see a quarter more text than they are trained on, so that little of it comes twice.
    tokens = args.train_tokens or min(defaults.train_tokens, max(200_000, args.steps * args.batch_tokens * 5 // 4))
    recipe = Recipe(steps=args.steps, batch_tokens=args.batch_tokens, train_tokens=tokens, threads=args.threads)
    torch.set_num_threads(recipe.threads)
    try:
        make_text(recipe, args.output / "text")
        place = find_place(args.device, args.precision)
        _Pair(recipe, args.output, place, every=args.every, compiled=args.compile).run()
    except EdgedecError as error:
        sys.stderr.write(f"edgedec: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on from the last checkpoint\n")
        return 130
    sys.stdout.write(
        json.dumps({name: str(args.output / "models" / name) for name in ("target", "draft", "twin")}) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
