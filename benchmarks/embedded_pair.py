"""What the embedded pair is worth: the target beside its float twin, the draft on the target, and whether greedy text loops.

    .venv/bin/python benchmarks/embedded_pair.py --twin build/demo-pair/models/twin [--json]

Measured on this machine, on stories that were never trained on. Without --twin, which is not shipped, its line is left out.
Perplexity: the stories of --text, each from its own start; the target and the draft as bundles with int8 activations on the
CPU, the twin in float32. Acceptance: on the target's own greedy text, how often the draft's likeliest token is the target's,
the probability that a token drawn from the draft is accepted (the sum of min(draft, target), 2211.17192), and the tokens per
pass of a chain. Loops: share of 4-word sequences of a greedy text that occurred before in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Vocabulary

from edgedec import demo
from edgedec.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.quantize.calibration import float_perplexity
from edgedec.quantize.distil.demo_data import HELD_OUT_SEED
from edgedec.quantize.distil.story_world import repeated_share, tale
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.runtime.evaluate import perplexity
from edgedec.runtime.protocols import Pass
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session

WINDOW = 512
PROMPTS, NEW_TOKENS = 100, 256
CHAIN = 4  # drafted tokens a pass
LOOPS_FROM = 0.2  # of repeated 4-word sequences, a text loops
F64 = NDArray[np.float64]


def _prompts() -> list[str]:
    """The first 3 to 10 words of held-out stories."""
    lengths = np.random.default_rng(0).integers(3, 11, PROMPTS)
    return [" ".join(tale(HELD_OUT_SEED + 20_000 + at).text.split()[: int(words)]) for at, words in enumerate(lengths)]


def _stories(file: Path) -> list[str]:
    return file.read_text("utf-8").strip().split("\n\n")


def _log_probs(session: Session, ids: NDArray[np.int32]) -> F64:
    """log softmax of the logits after each of ids [n], over the tokenizer's ids: [n, size]."""
    session.state.truncate(0)
    parts = []
    for start in range(0, len(ids), session.run.limits.nodes):
        chunk = ids[start : start + session.run.limits.nodes]
        rows = np.arange(len(chunk), dtype=np.int32)
        work = Pass(ids=chunk, positions=start + rows, logits=rows)
        (result,) = session.target.submit([(session.state, work)]).result()
        session.state.commit(rows)
        parts.append(result.logits[:, : session.bundle.tokens.size].astype(np.float64))
    logits = np.concatenate(parts)
    logits -= logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), np.float64)


def _tokens_per_pass(agree: Sequence[bool]) -> float:
    """Mean tokens of a pass that verifies a chain of ``CHAIN``: the agreeing ones and the target's own after them."""
    at, passes = 0, 0
    while at < len(agree):
        run = 0
        while run < CHAIN and at + run < len(agree) and agree[at + run]:
            run += 1
        at, passes = at + run + 1, passes + 1
    return len(agree) / passes


def _texts_and_acceptance(target: Session, draft: Session) -> dict[str, Any]:
    repeated, agreed, overlaps, ended = [], [], [], 0
    per_pass = []
    texts = []
    for prompt in _prompts():
        ids = target.encode(prompt)
        answer = target.generate(ids, n_predict=NEW_TOKENS, sampling=SamplingConfig(temperature=0))
        ended += answer.stop_reason == "eos"
        repeated.append(repeated_share(prompt + answer.text))
        texts.append(prompt + answer.text)
        whole = np.concatenate([ids, np.asarray(answer.tokens, np.int32)])[:-1]
        wanted, drafted = (_log_probs(session, whole)[len(ids) - 1 :] for session in (target, draft))
        # The chain must match what was generated, so this is the text's token, not an argmax computed anew.
        agree = drafted.argmax(axis=1) == np.asarray(answer.tokens)
        agreed.extend(agree.tolist())
        overlaps.extend(np.minimum(np.exp(wanted), np.exp(drafted)).sum(axis=1).tolist())
        per_pass.append(_tokens_per_pass(agree.tolist()))
    return {
        "prompts": len(texts),
        "tokens": len(agreed),
        "ended_by_themselves": ended / len(texts),
        "looping_share": float(np.mean(np.array(repeated) > LOOPS_FROM)),
        "repeated_4_grams_median": float(np.median(repeated)),
        "acceptance_greedy": float(np.mean(agreed)),
        "acceptance_sampled": float(np.mean(overlaps)),
        "tokens_per_pass_chain_of_4": float(np.mean(per_pass)),
        "samples": texts[:5],
    }


def measure(target_path: Path, draft_path: Path, twin_path: Path | None, folder: Path, text: Path) -> dict[str, Any]:
    """All figures; the bundles are made in ``folder``."""
    checkpoints = {"target": open_checkpoint(target_path), "draft": open_checkpoint(draft_path)}
    vocabulary = Vocabulary.from_str(checkpoints["target"].tokenizer_json)
    size = vocabulary.get_vocab_size()
    windows = [np.asarray(vocabulary.encode(story).ids[:WINDOW], np.int32) for story in _stories(text)]
    result: dict[str, Any] = {"stories": len(windows), "scored_tokens": sum(len(window) - 1 for window in windows)}
    for name, checkpoint in checkpoints.items():
        quantize(
            checkpoint,
            folder / name,
            QuantizeOptions(method="ternary" if name == "target" else "int8"),
            vocab_limit=size,
        )
        result[f"{name}_parameters"] = Bundle.open(folder / name).quantization["parameters"]
    with (
        Session.open(folder / "target", ctx_size=1024) as target,
        Session.open(folder / "draft", ctx_size=1024) as draft,
    ):
        for name, session in (("target", target), ("draft", draft)):
            score = perplexity(session.target, session.run.limits, windows, vocab_limit=size)
            result[f"{name}_perplexity"] = score.perplexity
        if twin_path is not None:
            result["twin_perplexity"] = float_perplexity(open_checkpoint(twin_path), windows, vocab_limit=size)
            result["target_to_twin"] = result["target_perplexity"] / result["twin_perplexity"]
        result |= _texts_and_acceptance(target, draft)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=demo.TARGET)
    parser.add_argument("--draft", type=Path, default=demo.DRAFT)
    parser.add_argument("--twin", type=Path, help="the float model of the same size and tokens")
    parser.add_argument("--text", type=Path, default=demo.HELD_OUT, help="stories to score, blank lines between them")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(args.target, args.draft, args.twin, Path(folder), args.text)
    except EdgedecError as error:
        sys.exit(f"embedded_pair: {error}")
    if args.json:
        print(json.dumps(result, indent=2))
        return
    samples = result.pop("samples")
    for name, value in result.items():
        print(f"{name:<28} {value:.4f}" if isinstance(value, float) else f"{name:<28} {value}")
    for text in samples:
        print(f"\n{text}")


if __name__ == "__main__":
    main()
