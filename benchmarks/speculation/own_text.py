"""Measure the share of accepted guesses on text that the target writes itself, which is what an answer is.

    .venv/bin/python -m benchmarks.speculation.own_text [--prompts 40] [--tokens 150] [--temp 0.8] [--every 2] [--json]

``verifiers.py`` reads the held-out stories. Here the embedded target continues the first words of each of them at
``--temp``, and both models then read its text. The rules that choose a guess are those of ``verifiers.py``. With the
defaults the standard error of a share is about 0.007.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import numpy as np

from benchmarks.speculation.verifiers import accepted, rows_of
from edgedec import demo
from edgedec.runtime.protocols import F32, I32
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.session.session import Session

__all__ = ["measure", "written"]

OPENING_WORDS = 8
NO_HISTORY = np.zeros(0, np.int32)


def written(prompts: int, tokens: int, temperature: float) -> Iterator[tuple[int, I32]]:
    """Yield (tokens of the prompt, ids of the prompt and of the text that the target writes after it)."""
    stories = [line for line in demo.HELD_OUT.read_text("utf-8").splitlines() if line]
    with Session.open(demo.bundle_path(), ctx_size=512) as session:
        for seed, story in enumerate(stories[:prompts]):
            ids = session.encode(" ".join(story.split()[:OPENING_WORDS]))
            sampling = SamplingConfig(temperature=temperature, seed=seed)
            answer = session.generate(ids, n_predict=tokens, sampling=sampling)
            yield len(ids), np.concatenate([ids, np.array(answer.tokens, np.int32)])


def _positions(prompts: int, tokens: int, temperature: float, every: int) -> Iterator[tuple[F32, F32]]:
    starts, texts = zip(*written(prompts, tokens, temperature), strict=True)
    rows = (rows_of("demo", list(texts)), rows_of("demo-draft", list(texts)))
    for start, target, draft in zip(starts, *rows, strict=True):
        yield from zip(target[start - 1 : -1 : every], draft[start - 1 : -1 : every], strict=True)


def measure(prompts: int, tokens: int, temperature: float, every: int, draws: int) -> dict[str, float]:
    """Return by rule the share of accepted guesses, one at a time, and the number of positions."""
    rng, shares = np.random.default_rng(0), dict[str, list[float]]()
    count = 0
    for target, draft in _positions(prompts, tokens, temperature, every):
        sampler = Sampler(SamplingConfig(temperature=temperature), len(target))
        p, q = (sampler.distribution(row, NO_HISTORY).astype(np.float64) for row in (target, draft))
        raw = np.exp(draft - draft.max()).astype(np.float64)
        for rule, (one, _) in accepted(p / p.sum(), q / q.sum(), raw / raw.sum(), rng, draws).items():
            shares.setdefault(rule, []).append(one)
        count += 1
    return {rule: float(np.mean(values)) for rule, values in shares.items()} | {"positions": count}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40, metavar="N")
    parser.add_argument("--tokens", type=int, default=150, metavar="N", help="tokens of a text at most")
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--every", type=int, default=2, metavar="N", help="look at every N-th token")
    parser.add_argument(
        "--draws", type=int, default=32, metavar="N", help="draws of the shared numbers at each of them"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.prompts, options.tokens, options.temp, options.every, options.draws)
    if options.json:
        print(json.dumps(figures))
        return
    for rule, share in figures.items():
        print(f"{rule:16}{share:8.3f}" if rule != "positions" else f"{rule:16}{share:8.0f}")


if __name__ == "__main__":
    main()
