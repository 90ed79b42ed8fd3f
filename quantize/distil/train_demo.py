"""Train the embedded model (``edgedec/demo/model``): a float Llama of 4.3 M parameters on simple stories.

    python -m edgedec.quantize.distil.train_demo --stories stories.txt --tales GrimmsFairyTales.txt -o build/demo-run

Resumable: the run folder holds the last checkpoint, and batches depend on the step number alone, so a killed run goes
on to the same result. The schedule is warm-up, constant, then a linear decay over the last quarter; ``--steps`` may be
changed until the decay begins. Every checkpoint also writes the Hugging Face folder, so that a half-trained model can
be tried.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from edgedec.quantize.distil.demo_data import (
    CHAT_TEMPLATE,
    documents,
    pack,
    read_stories,
    read_tales,
    train_tokenizer,
)
from edgedec.quantize.distil.torch_llama import LlamaConfig, TorchLlama, export_hf

Ids = NDArray[np.uint16]

WARM_UP_STEPS = 60
DECAY_SHARE = 0.25
LONG_SHARE = 0.1  # the last steps run at the full context, so that late positions are trained too


def _rate(step: int, steps: int) -> float:
    left = (steps - step) / (DECAY_SHARE * steps)
    return min(1.0, (step + 1) / WARM_UP_STEPS, 0.05 + 0.95 * max(0.0, left))


def _batch(data: Ids, step: int, steps: int, tokens: int, context: int) -> torch.Tensor:
    """int64 [rows, length + 1], a function of the step alone."""
    length = context if step > steps * (1 - LONG_SHARE) else context // 2
    starts = np.random.default_rng((1, step)).integers(0, len(data) - length - 1, tokens // length)
    return torch.from_numpy(np.stack([data[i : i + length + 1] for i in starts]).astype(np.int64))


def _loss(model: TorchLlama, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def _save(folder: Path, state: dict[str, object]) -> None:
    torch.save(state, folder / "checkpoint.pt.tmp")
    os.replace(folder / "checkpoint.pt.tmp", folder / "checkpoint.pt")


def _plot(folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [list(map(float, row)) for row in csv.reader((folder / "loss.csv").open()) if row[0] != "step"]
    step, train, valid = zip(*rows, strict=True)
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(step, train, label="training", linewidth=1)
    axes.plot(step, valid, label="held-out stories", linewidth=1.5)
    axes.set(xlabel="step", ylabel="cross-entropy, nats per token", title="embedded model, float")
    axes.set_ylim(top=min(5.0, max(train)))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(folder / "loss.png", dpi=120)
    pyplot.close(figure)


def _prepare(args: argparse.Namespace) -> tuple[Ids, Ids]:
    """Tokenizer and packed ids, made once and kept in the run folder."""
    folder: Path = args.output
    (folder / "model").mkdir(parents=True, exist_ok=True)
    if not (folder / "train.npy").exists():
        stories, tales = read_stories(args.stories), read_tales(args.tales)
        held_out, stories = stories[: len(stories) // 100], stories[len(stories) // 100 :]
        print(f"{len(stories)} stories, {len(held_out)} held out, {len(tales)} pieces of tales", flush=True)
        tokenizer = train_tokenizer(iter([*stories, *tales]), args.vocab_size)
        tokenizer.save(str(folder / "model" / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": args.context,
            "chat_template": CHAT_TEMPLATE,
        }
        (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        (folder / "held_out.txt").write_text("\n\n".join(held_out) + "\n", encoding="utf-8")
        np.save(folder / "valid.npy", pack(documents(tokenizer, held_out, chat_share=0.0, seed=2), 3))
        docs = documents(tokenizer, stories, chat_share=args.chat_share, seed=4)
        docs += documents(tokenizer, tales, chat_share=0.0, seed=5)
        np.save(folder / "train.npy", pack(docs, 6))
    return np.load(folder / "train.npy"), np.load(folder / "valid.npy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stories", type=Path, nargs="+", required=True)
    parser.add_argument("--tales", type=Path, nargs="*", default=[])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens a step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--chat-share", type=float, default=0.35)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    args = parser.parse_args()
    train, valid = _prepare(args)
    torch.manual_seed(0)
    model = TorchLlama(
        LlamaConfig(
            hidden_size=384,
            intermediate_size=1024,
            num_hidden_layers=args.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=96,
            vocab_size=args.vocab_size,
            max_position_embeddings=args.context,
        )
    )
    matrices = [p for p in model.parameters() if p.ndim > 1]
    gains = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": args.weight_decay}, {"params": gains, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    step, log = 0, args.output / "loss.csv"
    if (args.output / "checkpoint.pt").exists():
        saved = torch.load(args.output / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        print(f"resuming at step {step}", flush=True)
    else:
        log.write_text("step,train,valid\n")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(train):,} training tokens", flush=True)
    length = args.context // 2
    count = min(16, len(valid) // length)
    checks = torch.from_numpy(valid[: count * length].reshape(count, length).astype(np.int64))
    began, first, losses = time.monotonic(), step, []
    while step < args.steps:
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * _rate(step, args.steps)
        loss = _loss(model, _batch(train, step, args.steps, args.tokens, args.context))
        if not math.isfinite(loss.item()):
            raise SystemExit(f"step {step}: the loss is {loss.item()}; the last good checkpoint is in {args.output}")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        step += 1
        if step % args.every == 0 or step == args.steps:
            with torch.inference_mode():
                held_out = _loss(model, checks).item()
            with log.open("a") as file:
                csv.writer(file).writerow([step, f"{np.mean(losses):.4f}", f"{held_out:.4f}"])
            rate = (step - first) * args.tokens / (time.monotonic() - began)
            eta = (args.steps - step) * args.tokens / rate / 60
            print(
                f"step {step}/{args.steps} loss {np.mean(losses):.3f} held-out perplexity {math.exp(held_out):.2f} "
                f"{rate:.0f} tokens/s, {eta:.0f} min to go",
                flush=True,
            )
            losses.clear()
            export_hf(model, args.output / "model", bos_token_id=0, eos_token_id=1)
            _save(args.output, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
    _plot(args.output)


if __name__ == "__main__":
    main()
