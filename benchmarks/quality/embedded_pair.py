"""Measure the embedded pair: the target and its float twin, the draft's acceptance, and the share of looping texts.

    .venv/bin/python -m benchmarks.quality.embedded_pair --twin build/demo-pair-2/models/twin [--json]

The measurement runs on this machine, with stories that are not in the training text. The repository does not keep the twin;
without --twin its line is left out, and a note says what makes it. Perplexity is measured on the stories of --text, each
from its own start, with the target and the draft as bundles with int8 activations on the CPU and the twin in float32. Loops
are the share of 4-word sequences of a greedy text that occurred earlier in it. Acceptance is measured on the target's
greedy texts and on the held-out stories: how often the draft's likeliest token is the target's, the probability that a
token drawn from the draft is accepted (the sum of min(draft, target), 2211.17192), and the tokens per pass of a chain.

Conversations with greedy answers in the chat format (``exam``) show whether the names of a story are consistent, questions
about a story are answered correctly, instructions are followed, and facts are right. They use held-out seeds of the present
text generator. --choices adds the questions of a file as open questions, for a pair that was trained on text from another
version of the generator.
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
from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.quantize.calibration import float_perplexity
from edgedec.quantize.demo_pair import exam as checks
from edgedec.quantize.demo_pair.check import is_right
from edgedec.quantize.demo_pair.data import HELD_OUT_SEED
from edgedec.quantize.demo_pair.talk import Turn
from edgedec.quantize.demo_pair.world import Question, repeated_share, tale
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import Checkpoint, open_checkpoint
from edgedec.runtime.measure.choices import read_items
from edgedec.runtime.measure.perplexity import perplexity
from edgedec.runtime.protocols import Pass
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

NO_TWIN = (
    "embedded_pair: without --twin the perplexity of the float twin is left out; the repository does not keep the twin, "
    "and the commands of docs/reports/demo-model.md, section Recipe, make one in build/demo-pair-2/models/twin\n"
)
WINDOW = 512
PROMPTS, NEW_TOKENS, ANSWER_TOKENS = 100, 256, 400
CHAIN = 4  # drafted tokens per pass
LOOPS_FROM = 0.2  # share of repeated 4-word sequences from which a text counts as looping
F64 = NDArray[np.float64]


def _prompts() -> list[str]:
    """Return the first 3 to 10 words of held-out stories."""
    lengths = np.random.default_rng(0).integers(3, 11, PROMPTS)
    return [" ".join(tale(HELD_OUT_SEED + 20_000 + at).text.split()[: int(words)]) for at, words in enumerate(lengths)]


def _stories(file: Path) -> list[str]:
    return file.read_text("utf-8").strip().split("\n\n")


def _log_probs(session: Session, ids: NDArray[np.int32]) -> F64:
    """Return the log softmax of the logits after each of ids [n], over the tokenizer's ids, [n, size]."""
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
    """Return the mean tokens of a pass that verifies a chain of ``CHAIN``: the agreeing tokens and the target's own."""
    at, passes = 0, 0
    while at < len(agree):
        run = 0
        while run < CHAIN and at + run < len(agree) and agree[at + run]:
            run += 1
        at, passes = at + run + 1, passes + 1
    return len(agree) / passes


def _acceptance(target: Session, draft: Session, texts: Sequence[tuple[int, NDArray[np.int32]]]) -> dict[str, float]:
    """Return the acceptance of the draft for every id after the prompt of (length of the prompt, ids) pairs."""
    agreed: list[bool] = []
    overlaps: list[float] = []
    per_pass = []
    for first, ids in texts:
        verified, drafted = (_log_probs(session, ids[:-1])[first - 1 :] for session in (target, draft))
        agree = (drafted.argmax(axis=1) == verified.argmax(axis=1)).tolist()
        agreed.extend(agree)
        overlaps.extend(np.minimum(np.exp(verified), np.exp(drafted)).sum(axis=1).tolist())
        per_pass.append(_tokens_per_pass(agree))
    return {
        "tokens": len(agreed),
        "likeliest_token_agrees": float(np.mean(agreed)),
        "accepted_when_sampling": float(np.mean(overlaps)),
        f"tokens_per_pass_chain_of_{CHAIN}": float(np.mean(per_pass)),
    }


def _greedy_texts(target: Session) -> tuple[dict[str, Any], list[tuple[int, NDArray[np.int32]]]]:
    """Write greedy texts and return their figures, and the texts for ``_acceptance``."""
    repeated, texts, ended, samples = [], [], 0, []
    for prompt in _prompts():
        ids = target.encode(prompt)
        answer = target.generate(ids, n_predict=NEW_TOKENS, sampling=SamplingConfig(temperature=0))
        ended += answer.stop_reason == "eos"
        samples.append(prompt + answer.text)
        repeated.append(repeated_share(samples[-1]))
        texts.append((len(ids), np.concatenate([ids, np.asarray(answer.tokens, np.int32)])))
    # Texts with the same words 31 to 38 tell the same story.
    middles = {" ".join(text.split()[30:38]) for text in samples}
    figures = {
        "prompts": len(samples),
        "ended_by_themselves": ended / len(samples),
        "looping_share": float(np.mean(np.array(repeated) > LOOPS_FROM)),
        "repeated_4_grams_median": float(np.median(repeated)),
        "different_stories": len(middles),
        "samples": samples[:5],
    }
    return figures, texts


def _answer(target: Session, turns: Sequence[Turn], ask: str) -> str:
    """Return the greedy answer in a conversation."""
    said = [*(text for turn in turns for text in turn), ask]
    messages = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said)]
    greedy = SamplingConfig(temperature=0)
    return target.generate(target.encode_chat(messages), n_predict=ANSWER_TOKENS, sampling=greedy).text.strip()


def _tell(target: Session, opening: str) -> str:
    answer = target.generate(target.encode(opening), n_predict=NEW_TOKENS, sampling=SamplingConfig(temperature=0))
    return opening + answer.text


def _open_questions(target: Session, file: Path) -> dict[str, float]:
    """Measure the multiple-choice questions of a file without their choices: the share of right answers by category."""
    right: dict[str, list[bool]] = {}
    for item in read_items(file):
        answers = [text.strip() for text in item.choices]
        answer = answers.pop(item.answer)
        question = Question(question=item.question, answer=answer, wrong=tuple(answers))
        text = _tell(target, item.question)[len(item.question) :].strip().split("\n")[0]
        right.setdefault(item.category or "", []).append(is_right(text, question))
    return {f"open_{category}": float(np.mean(values)) for category, values in right.items()}


def _talk(target: Session, scale: float, choices: Path | None) -> dict[str, Any]:
    """Measure conversations; ``scale`` is the share of the full number of checks."""

    def ask(turns: Sequence[Turn], text: str) -> str:
        return _answer(target, turns, text)

    def count(full: int) -> int:
        return 2 * max(1, round(full * scale / 2))

    return {
        "stories": checks.stories(ask, lambda text: _tell(target, text), count(100)),
        "questions": checks.questions(ask, count(500)),
        "own stories": checks.own_questions(ask, count(50)),
        "instructions": checks.instructions(ask, count(220)),
        "facts": checks.facts(ask, count(300)),
        **({"file": _open_questions(target, choices)} if choices else {}),
    }


def _bundle(checkpoint: Checkpoint, folder: Path, vocab_limit: int) -> Path:
    """Write the bundle, which is ternary if the checkpoint is and int8 otherwise."""
    stored = json.loads((Path(checkpoint.source) / "config.json").read_bytes())  # the reader's own has it no more
    method = "ternary" if "quantization_config" in stored else "int8"
    quantize(checkpoint, folder, QuantizeOptions(method=method), vocab_limit=vocab_limit)
    return folder


def measure_talk(target_path: Path, folder: Path, *, scale: float, choices: Path | None) -> dict[str, Any]:
    """Return the figures of conversations with the target, whose bundle is written into ``folder``."""
    checkpoint = open_checkpoint(target_path)
    size = Vocabulary.from_str(checkpoint.tokenizer_json).get_vocab_size()
    with Session.open(_bundle(checkpoint, folder / "talk", size), ctx_size=1024) as target:
        return _talk(target, scale, choices)


def measure(target_path: Path, draft_path: Path, twin_path: Path | None, folder: Path, text: Path) -> dict[str, Any]:
    """Return perplexities, loops and acceptance; the bundles are written into ``folder``."""
    checkpoints = {"target": open_checkpoint(target_path), "draft": open_checkpoint(draft_path)}
    vocabulary = Vocabulary.from_str(checkpoints["target"].tokenizer_json)
    size = vocabulary.get_vocab_size()
    windows = [np.asarray(vocabulary.encode(story).ids[:WINDOW], np.int32) for story in _stories(text)]
    result: dict[str, Any] = {"stories": len(windows), "scored_tokens": sum(len(window) - 1 for window in windows)}
    for name, checkpoint in checkpoints.items():
        bundle = _bundle(checkpoint, folder / name, size)
        result[f"{name}_parameters"] = Bundle.open(bundle).quantization["parameters"]
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
        figures, texts = _greedy_texts(target)
        result |= figures
        result["acceptance"] = {
            "greedy texts": _acceptance(target, draft, texts),
            "held-out stories": _acceptance(target, draft, [(1, window) for window in windows]),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=demo.TARGET)
    parser.add_argument("--draft", type=Path, default=demo.DRAFT)
    parser.add_argument("--twin", type=Path, help="the float model of the same size and tokens")
    parser.add_argument("--text", type=Path, default=demo.HELD_OUT, help="stories to score, separated by blank lines")
    parser.add_argument("--choices", type=Path, help="a file of questions to ask without their choices")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the conversations' checks that are made")
    parser.add_argument("--talk", action="store_true", help="measure only the conversations")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.twin is None and not args.talk:
        sys.stderr.write(NO_TWIN)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            result = {} if args.talk else measure(args.target, args.draft, args.twin, folder, args.text)
            result["talk"] = measure_talk(args.target, folder, scale=args.scale, choices=args.choices)
    except EdgedecError as error:
        sys.exit(f"embedded_pair: {error}")
    if args.json:
        print(json.dumps(result, indent=2))
        return
    samples = [*result.pop("samples", []), *result["talk"]["stories"].pop("samples")]
    parts = {**result.pop("acceptance", {}), **result.pop("talk")}
    rows = result | {f"{name}: {key}": value for name, part in parts.items() for key, value in part.items()}
    for name, value in rows.items():
        print(f"{name:<46} {value:.4f}" if isinstance(value, float) else f"{name:<46} {value}")
    for text in samples:
        print(f"\n{text}")


if __name__ == "__main__":
    main()
